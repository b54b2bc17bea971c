//! Adjustments that share calls.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};
use tollgate::{
    Adjusted, Adjustment, Admin, Error, Key, Limiter, MemoryStore, Receipt, Store, Take, TakeError, layers::Batcher,
    model::Outcome, store::TestStore,
};
use uuid::Uuid;

use super::stores::{Connected, Cut, Gated, Panics};
use super::{settle, take};

type Answers = Result<Vec<Result<Adjusted, TakeError>>, Error>;

fn refund(key: &str) -> Adjustment {
    Receipt::new(Uuid::new_v4(), Key::try_from(key).expect("a key"), 1).refund(1)
}

fn adjust<S: Store>(batcher: &Arc<Batcher<S>>, adjustments: Vec<Adjustment>) -> JoinHandle<Answers> {
    let batcher = Arc::clone(batcher);
    tokio::spawn(async move { batcher.adjust(&adjustments).await })
}

/// Creates a store with empty buckets, whose gate is closed.
async fn taken(keys: &[&str], locked: Option<&str>) -> anyhow::Result<(Arc<Gated>, Arc<Batcher<Arc<Gated>>>)> {
    let mut gated = Gated::new(0);
    gated.locked = locked.map(Key::try_from).transpose()?;
    for key in keys {
        assert!(gated.store.take_one(&take(key).cost(50)).await??.is_granted());
    }
    let gated = Arc::new(gated);
    Ok((Arc::clone(&gated), Arc::new(Batcher::new(gated))))
}

async fn available(gated: &Gated, key: &str) -> anyhow::Result<i64> {
    Ok(gated.store.peek(&Key::try_from(key)?).await?.map_or(0, |level| level.available()))
}

#[tokio::test(start_paused = true)]
async fn refunds_during_a_call_share_the_next() -> anyhow::Result<()> {
    let (gated, batcher) = taken(&["a", "b"], None).await?;
    let first = adjust(&batcher, vec![refund("a")]);
    settle().await;
    let several = adjust(&batcher, vec![refund("b"), refund("missing"), refund("b")]);
    let others: Vec<_> = (0..40).map(|_| adjust(&batcher, vec![refund("a")])).collect();
    settle().await;
    gated.gate.add_permits(1000);
    assert_eq!(first.await??, [Ok(Adjusted::Done(1))]);
    let unknown = Err(TakeError::UnknownBucket(Key::try_from("missing")?));
    assert_eq!(several.await??, [Ok(Adjusted::Done(1)), unknown, Ok(Adjusted::Done(1))]);
    for other in others {
        assert_eq!(other.await??, [Ok(Adjusted::Done(1))]);
    }
    assert_eq!(gated.adjusted().iter().map(Vec::len).collect::<Vec<_>>(), [1, 3, 40]);
    assert_eq!((available(&gated, "a").await?, available(&gated, "b").await?), (41, 2));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn many_refunds_of_a_limiter_share_few_calls() -> anyhow::Result<()> {
    let gated = Arc::new(Gated::new(1000));
    let limiter = Limiter::builder(Arc::clone(&gated)).build("500/h")?;
    let mut reservations = Vec::new();
    for n in 0..250 {
        reservations.push(limiter.reserve_n(format!("key:{}", n % 10), 2).await?);
    }
    gated.gate.forget_permits(1000);
    let refunding: JoinSet<_> = reservations.into_iter().map(|reservation| reservation.refund(1)).collect();
    settle().await;
    gated.gate.add_permits(1000);
    for given_back in refunding.join_all().await {
        assert_eq!(given_back?, 1);
    }
    let calls: Vec<_> = gated.adjusted().iter().map(Vec::len).collect();
    assert!(calls.iter().sum::<usize>() == 250 && calls.len() <= 8, "{calls:?}");
    for n in 0..10 {
        assert_eq!(available(&gated, &format!("key:{n}")).await?, 475);
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn cancelled_refunds_in_the_queue_are_made() -> anyhow::Result<()> {
    let (gated, batcher) = taken(&["a"], None).await?;
    let callers: Vec<_> = (0..10).map(|_| adjust(&batcher, vec![refund("a")])).collect();
    settle().await;
    for caller in &callers {
        caller.abort();
    }
    for caller in callers {
        assert!(caller.await.is_err_and(|error| error.is_cancelled()));
    }
    gated.gate.add_permits(2);
    settle().await;
    assert_eq!(gated.adjusted().iter().map(Vec::len).collect::<Vec<_>>(), [1, 9]);
    assert_eq!(available(&gated, "a").await?, 10);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn unpolled_first_refund_delays_no_other() -> anyhow::Result<()> {
    let (gated, batcher) = taken(&["a"], None).await?;
    let own = [refund("a")];
    let mut leader = pin!(batcher.adjust(&own));
    assert!(timeout(Duration::from_millis(1), &mut leader).await.is_err());
    gated.gate.add_permits(2);
    // The leader runs in the same task, so this await does not poll it.
    assert_eq!(batcher.adjust(&[refund("a")]).await?, [Ok(Adjusted::Done(1))]);
    assert_eq!(leader.await?, [Ok(Adjusted::Done(1))]);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn unpolled_refund_keeps_no_connection_from_takes() -> anyhow::Result<()> {
    let batcher = Batcher::new(Connected { store: MemoryStore::new(), connections: Semaphore::new(1) });
    let request = take("a");
    assert!(batcher.take_one(&take("a").cost(9)).await??.is_granted());
    {
        let own = [refund("a")];
        let mut leader = pin!(batcher.adjust(&own));
        assert!(timeout(Duration::from_millis(1), &mut leader).await.is_err());
        // The leader runs in the same task, so this await does not poll it.
        assert!(timeout(Duration::from_secs(1), batcher.take_one(&request)).await???.is_granted());
        assert_eq!(leader.await?, [Ok(Adjusted::Done(1))]);
    }
    let mut leader = pin!(batcher.take_one(&request));
    assert!(timeout(Duration::from_millis(1), &mut leader).await.is_err());
    assert_eq!(timeout(Duration::from_secs(1), batcher.adjust(&[refund("a")])).await??, [Ok(Adjusted::Done(1))]);
    assert!(leader.await??.is_granted());
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn slow_key_does_not_delay_refunds_of_others() -> anyhow::Result<()> {
    let (gated, batcher) = taken(&["slow", "quick"], Some("slow")).await?;
    gated.gate.add_permits(1000);
    let slow = adjust(&batcher, vec![refund("slow")]);
    settle().await;
    for _ in 0..20 {
        assert_eq!(adjust(&batcher, vec![refund("quick")]).await??, [Ok(Adjusted::Done(1))]);
    }
    assert!(!slow.is_finished());
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn rolled_back_refunds_are_repeated_key_by_key() -> anyhow::Result<()> {
    let (gated, batcher) = taken(&["a", "b", "first"], Some("locked")).await?;
    let first = adjust(&batcher, vec![refund("first")]);
    settle().await;
    let locked = adjust(&batcher, vec![refund("a"), refund("locked"), refund("b")]);
    let others: Vec<_> = ["b", "a", "b"].map(|key| adjust(&batcher, vec![refund(key)])).into();
    settle().await;
    gated.gate.add_permits(1000);
    for answered in others.into_iter().chain([first]) {
        assert_eq!(answered.await??, [Ok(Adjusted::Done(1))]);
    }
    assert!(!locked.is_finished());
    let mut calls = gated.adjusted();
    calls[2..].sort();
    let rolled_back = vec!["a", "a", "locked", "b", "b", "b"];
    assert_eq!(calls, [vec!["first"], rolled_back, vec!["a"; 2], vec!["b"; 3], vec!["locked"]]);
    assert_eq!((available(&gated, "a").await?, available(&gated, "b").await?), (2, 3));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn locked_key_rolls_back_one_call_and_delays_no_other() -> anyhow::Result<()> {
    let (gated, batcher) = taken(&["quick", "first"], Some("locked")).await?;
    let first = adjust(&batcher, vec![refund("first")]);
    settle().await;
    let mut locked = vec![adjust(&batcher, vec![refund("locked"), refund("quick")])];
    settle().await;
    gated.gate.add_permits(1000);
    assert_eq!(first.await??, [Ok(Adjusted::Done(1))]);
    settle().await;
    for _ in 0..20 {
        locked.push(adjust(&batcher, vec![refund("locked")]));
        locked.push(adjust(&batcher, vec![refund("locked"), refund("quick")]));
        assert_eq!(adjust(&batcher, vec![refund("quick")]).await??, [Ok(Adjusted::Done(1))]);
    }
    assert!(locked.iter().all(|locked| !locked.is_finished()));
    let calls = gated.adjusted().iter().filter(|call| call.iter().any(|key| key == "locked")).count();
    assert_eq!(calls, 2, "one shared call, and one for the locked key alone");
    assert_eq!(available(&gated, "quick").await?, 41);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn refunds_of_a_slow_key_keep_their_order() -> anyhow::Result<()> {
    let (gated, batcher) = taken(&["a"], None).await?;
    let first = adjust(&batcher, vec![refund("a")]);
    // The call is old after 25 ms, so calls for other keys can start beside it.
    sleep(Duration::from_millis(100)).await;
    let receipt = refund("a");
    let others: Vec<_> = (0..3).map(|_| adjust(&batcher, vec![receipt.clone()])).collect();
    let quick = adjust(&batcher, vec![refund("b")]);
    sleep(Duration::from_millis(100)).await;
    assert_eq!(gated.adjusted(), [["a"], ["b"]]);
    gated.gate.add_permits(1000);
    assert_eq!(first.await??, [Ok(Adjusted::Done(1))]);
    assert!(quick.await??[0].is_err(), "there is no such bucket");
    let mut answers = Vec::new();
    for other in others {
        answers.extend(other.await??);
    }
    assert_eq!(answers, [Ok(Adjusted::Done(1)), Ok(Adjusted::Repeated), Ok(Adjusted::Repeated)]);
    assert_eq!(gated.adjusted()[2..], [["a"; 3]]);
    assert_eq!(adjust(&batcher, vec![refund("a")]).await??, [Ok(Adjusted::Done(1))]);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn full_queue_rejects_refunds() -> anyhow::Result<()> {
    const MAX_WAITING: usize = 32_768;
    let (gated, batcher) = taken(&["a"], None).await?;
    let _first = adjust(&batcher, vec![refund("a")]);
    settle().await;
    let _queued = adjust(&batcher, vec![refund("a"); MAX_WAITING]);
    settle().await;
    let overloaded = batcher.adjust(&[refund("a")]).await;
    assert!(matches!(overloaded, Err(Error::Overloaded(MAX_WAITING))), "{overloaded:?}");
    assert_eq!(gated.adjusted().len(), 1);
    Ok(())
}

#[tokio::test]
async fn panicking_store_leaves_no_refund_waiting() -> anyhow::Result<()> {
    let batcher = Arc::new(Batcher::new(Panics(AtomicUsize::new(0))));
    let mut callers: JoinSet<_> = (0..10)
        .map(|_| {
            let batcher = Arc::clone(&batcher);
            async move { batcher.adjust(&[refund("a")]).await }
        })
        .collect();
    let mut ended = Vec::new();
    while let Some(result) = callers.join_next().await {
        ended.push(result);
    }
    assert!(ended.iter().any(|result| !matches!(result, Ok(Ok(_)))), "{ended:?}");
    assert_eq!(batcher.adjust(&[refund("a")]).await?, [Ok(Adjusted::Done(1))]);
    Ok(())
}

#[tokio::test]
async fn one_lost_answer_makes_the_outcome_unknown() -> anyhow::Result<()> {
    for keys in [["locked", "cut off"], ["cut off", "locked"]] {
        let error = Batcher::new(Cut).adjust(&keys.map(refund)).await.expect_err("no answer");
        assert!(error.is_outcome_unknown(), "{keys:?}: {error:?}");
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn refunds_behind_a_panicking_call_go_in_the_next() -> anyhow::Result<()> {
    let panics = Arc::new(Panics(AtomicUsize::new(0)));
    let batcher = Arc::new(Batcher::new(Slow(Arc::clone(&panics))));
    let first = adjust(&batcher, vec![refund("a")]);
    // The first call is old by now, and the second refund waits behind it.
    sleep(Duration::from_millis(50)).await;
    let second = adjust(&batcher, vec![refund("a")]);
    assert!(matches!(first.await?, Err(Error::OutcomeUnknown(_))));
    assert_eq!(second.await??, [Ok(Adjusted::Done(1))]);
    assert_eq!(panics.0.load(Ordering::Relaxed), 2);
    Ok(())
}

/// A store whose calls are old before they are answered.
struct Slow<S>(S);

impl<S: Store> TestStore for Slow<S> {
    async fn take(&self, takes: &[Take]) -> Result<Vec<Outcome>, Error> {
        self.0.take(takes).await
    }

    async fn adjust(&self, adjustments: &[Adjustment]) -> Answers {
        sleep(Duration::from_millis(100)).await;
        self.0.adjust(adjustments).await
    }
}
