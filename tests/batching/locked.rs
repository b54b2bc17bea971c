//! Requests for buckets that another transaction has locked.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::task::{JoinHandle, JoinSet};
use tokio::time::sleep;
use tollgate::{Error, Key, Store, layers::Batcher, model::Outcome};

use super::stores::{Gated, Locking};
use super::{settle, spawn_take, take};

/// Starts enough calls that further requests share calls.
async fn busy_with_a_locked_key()
-> anyhow::Result<(Arc<Gated>, Arc<Batcher<Arc<Gated>>>, Vec<JoinHandle<Result<Outcome, Error>>>)> {
    let mut gated = Gated::new(0);
    gated.locked = Some(Key::try_from("locked")?);
    let gated = Arc::new(gated);
    let batcher = Arc::new(Batcher::new(Arc::clone(&gated)));
    let first = (0..40).map(|n| spawn_take(&batcher, take(&format!("first:{n}")))).collect();
    settle().await;
    Ok((gated, batcher, first))
}

#[tokio::test(start_paused = true)]
async fn rolled_back_call_is_repeated_key_by_key() -> anyhow::Result<()> {
    let (gated, batcher, first) = busy_with_a_locked_key().await?;
    let locked = spawn_take(&batcher, take("locked"));
    let others: Vec<_> = (0..40).map(|n| spawn_take(&batcher, take(&format!("other:{}", n % 20)))).collect();
    settle().await;
    gated.gate.add_permits(1000);
    for answered in first.into_iter().chain(others) {
        assert!(answered.await??.is_ok_and(|decision| decision.is_granted()));
    }
    assert!(!locked.is_finished());
    let calls = gated.calls();
    assert!(calls.iter().any(|keys| keys.len() > 1 && keys.contains(&"locked".into())), "{calls:?}");
    assert!(calls.iter().any(|keys| *keys == ["locked"]), "{calls:?}");
    assert_eq!(gated.max_in_flight.load(Ordering::Relaxed), 1);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn caller_cancelled_before_the_repeated_call_takes_nothing() -> anyhow::Result<()> {
    let (gated, batcher, first) = busy_with_a_locked_key().await?;
    let _locked = spawn_take(&batcher, take("locked"));
    let others: Vec<_> = (0..40).map(|n| (n, spawn_take(&batcher, take(&format!("other:{n}"))))).collect();
    settle().await;
    while !gated.calls().iter().any(|keys| *keys == ["locked"]) {
        gated.gate.add_permits(1);
        settle().await;
    }
    // The shared call was rolled back. The gate is closed for the calls that repeat it.
    let is_called = |n: &i32| gated.calls().iter().any(|keys| keys.len() <= 2 && keys.contains(&format!("other:{n}")));
    let (in_flight, waiting): (Vec<_>, Vec<_>) = others.into_iter().partition(|(n, _)| is_called(n));
    assert!(!waiting.is_empty());
    let cancelled: Vec<_> = waiting.into_iter().map(|(n, caller)| (n, caller.abort())).collect();
    gated.gate.add_permits(1000);
    for answered in first.into_iter().chain(in_flight.into_iter().map(|(_, caller)| caller)) {
        assert!(answered.await??.is_ok_and(|decision| decision.is_granted()));
    }
    settle().await;
    assert!(cancelled.iter().all(|(n, ())| !is_called(n)), "{:?}", gated.calls());
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn seven_locked_keys_delay_no_other_key() -> anyhow::Result<()> {
    for alone in [0, 6] {
        let batcher = Arc::new(Batcher::new(Locking::default()));
        let mut asking: JoinSet<(bool, Result<Outcome, Error>)> = JoinSet::new();
        let mut start = |n: usize, is_locked| {
            let batcher = Arc::clone(&batcher);
            let request = take(&format!("{n:03}{}", if is_locked { ":locked" } else { "" }));
            asking.spawn(async move { (is_locked, batcher.take_one(&request).await) });
        };
        for n in 0..alone {
            start(n, true);
            sleep(Duration::from_millis(30)).await;
        }
        let free = 500;
        for n in 0..free {
            start(100 + n, false);
        }
        (alone..7).for_each(|n| start(n, true));
        let mut before = 0;
        while let Some((is_locked, outcome)) = asking.join_next().await.transpose()? {
            if is_locked {
                break;
            }
            assert!(outcome??.is_granted());
            before += 1;
        }
        assert_eq!(before, free, "answers before the first locked key, with {alone} locked keys called alone");
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn locked_key_is_called_alone_until_it_is_free() -> anyhow::Result<()> {
    let batcher = Arc::new(Batcher::new(Locking::default()));
    // Requests for other keys arrive all the time.
    let others = (0..40).map(|n| {
        let (batcher, request) = (Arc::clone(&batcher), take(&format!("other:{n}")));
        async move {
            while !batcher.store().is_free.load(Ordering::Relaxed) {
                assert!(batcher.take_one(&request).await??.is_granted());
            }
            anyhow::Ok(())
        }
    });
    let mut others: JoinSet<_> = others.collect();
    let mut locked = spawn_take(&batcher, take("locked"));
    for _ in 0..4 {
        // A second request for the locked key always waits behind the call in flight.
        sleep(Duration::from_secs(1)).await;
        let next = spawn_take(&batcher, take("locked"));
        assert!(matches!(locked.await?, Err(Error::Contended { .. })));
        locked = next;
    }
    let rolled_back: Vec<_> = batcher.store().contended().into_iter().filter(|keys| keys.len() > 1).collect();
    assert!((1..=3).contains(&rolled_back.len()), "{rolled_back:?}");
    batcher.store().is_free.store(true, Ordering::Relaxed);
    assert!(matches!(locked.await?, Err(Error::Contended { .. })), "called before the key was free");
    assert!(spawn_take(&batcher, take("locked")).await???.is_granted());
    while let Some(other) = others.join_next().await {
        other??;
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn requests_for_locked_keys_are_bounded() -> anyhow::Result<()> {
    const MAX_WAITING: usize = 32_768;
    let batcher = Arc::new(Batcher::new(Locking::default()));
    let mut asking = JoinSet::new();
    let mut refused = 0;
    for n in 0..80 {
        for m in 0..1000 {
            let (batcher, request) = (Arc::clone(&batcher), take(&format!("locked:{n}:{m}")));
            asking.spawn(async move { batcher.take_one(&request).await });
        }
        // Calls are rolled back meanwhile.
        sleep(Duration::from_millis(50)).await;
        while let Some(answered) = asking.try_join_next() {
            assert!(matches!(answered?, Err(Error::Overloaded(_))));
            refused += 1;
        }
    }
    // The batcher accepts at most twice as many as can wait, and twice six full calls.
    assert!(refused >= 80_000 - 2 * (MAX_WAITING + 6 * 1024), "{refused}");
    Ok(())
}
