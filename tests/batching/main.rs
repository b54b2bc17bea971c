//! Requests that share calls.

// No other crate uses the items of a test.
#![allow(unreachable_pub)]

mod adjusting;
mod locked;
mod next_call;
mod stores;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use stores::{Connected, Gated, Panics, YieldsRandomly};
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, JoinSet, yield_now};
use tokio::time::timeout;
use tollgate::{
    Admin, AnyStore, Error, Key, Limiter, MemoryStore, Quota, Rule, Store, Take,
    clock::ManualClock,
    layers::{Batcher, LeaseOptions},
    model::Outcome,
};
use tollgate_tests::cancellation;

fn take(key: &str) -> Take {
    Take::from(Key::try_from(key).expect("a key")).rule(rule("50/h"))
}

fn rule(quota: &str) -> Rule {
    quota.parse::<Quota>().expect("a quota").into()
}

fn spawn_take<S: Store>(batcher: &Arc<Batcher<S>>, take: Take) -> JoinHandle<Result<Outcome, Error>> {
    let batcher = Arc::clone(batcher);
    tokio::spawn(async move { batcher.take_one(&take).await })
}

/// How often a task was woken.
#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Runs all tasks until they wait.
async fn settle() {
    for _ in 0..100 {
        yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn requests_during_a_call_share_the_next() -> anyhow::Result<()> {
    let gated = Arc::new(Gated::new(0));
    let batcher = Arc::new(Batcher::new(Arc::clone(&gated)));
    let first = spawn_take(&batcher, take("a"));
    settle().await;
    let others: Vec<_> = (0..99).map(|_| spawn_take(&batcher, take("a"))).collect();
    settle().await;
    gated.gate.add_permits(2);
    let mut granted = usize::from(first.await??.is_ok_and(|decision| decision.is_granted()));
    for other in others {
        granted += usize::from(other.await??.is_ok_and(|decision| decision.is_granted()));
    }
    assert_eq!(gated.calls().iter().map(Vec::len).collect::<Vec<_>>(), [1, 99]);
    assert_eq!(granted, 50);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn few_requests_are_called_alone_and_more_together() -> anyhow::Result<()> {
    let gated = Arc::new(Gated::new(0));
    let batcher = Arc::new(Batcher::new(Arc::clone(&gated)));
    let few: Vec<_> = (0..4).map(|n| spawn_take(&batcher, take(&format!("key:{n}")))).collect();
    settle().await;
    assert_eq!(gated.calls().iter().map(Vec::len).collect::<Vec<_>>(), [1; 4]);
    let more: Vec<_> = (4..100).map(|n| spawn_take(&batcher, take(&format!("key:{n}")))).collect();
    settle().await;
    gated.gate.add_permits(1000);
    for answered in few.into_iter().chain(more) {
        assert!(answered.await??.is_ok_and(|decision| decision.is_granted()));
    }
    let calls: Vec<_> = gated.calls().iter().map(Vec::len).collect();
    assert_eq!(calls.iter().sum::<usize>(), 100);
    assert!(calls.len() <= 6, "four calls of one request, then few batches: {calls:?}");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn requests_for_several_buckets_share_calls() -> anyhow::Result<()> {
    let gated = Arc::new(Gated::new(0));
    several_share_calls(&gated, Batcher::new(Arc::clone(&gated))).await
}

#[tokio::test(start_paused = true)]
async fn requests_for_several_buckets_of_any_store_share_calls() -> anyhow::Result<()> {
    let gated = Arc::new(Gated::new(0));
    several_share_calls(&gated, Batcher::new(AnyStore::new(Arc::clone(&gated)))).await
}

async fn several_share_calls<S: Store>(gated: &Gated, batcher: Batcher<S>) -> anyhow::Result<()> {
    let batcher = Arc::new(batcher);
    let all_of = |user: &str| take("all").and(Key::try_from(user).expect("a key"), rule("1/h"));
    let requests: Vec<_> = ["a", "b", "b", "c"].map(|user| spawn_take(&batcher, all_of(user))).into();
    settle().await;
    let single = spawn_take(&batcher, take("d"));
    settle().await;
    gated.gate.add_permits(8);
    let mut granted = Vec::new();
    for request in requests {
        granted.push(request.await??.is_ok_and(|decision| decision.is_granted()));
    }
    assert!(single.await??.is_ok());
    assert_eq!(granted, [true, true, false, true], "each user has one");
    assert_eq!(gated.calls(), [vec!["all"], vec!["d"], vec!["all"; 3]]);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn slow_key_delays_no_other_and_has_one_call_at_a_time() -> anyhow::Result<()> {
    let mut gated = Gated::new(1000);
    gated.locked = Some(Key::try_from("slow")?);
    let gated = Arc::new(gated);
    let batcher = Arc::new(Batcher::new(Arc::clone(&gated)));
    let slow = spawn_take(&batcher, take("slow"));
    for n in 0..200 {
        let more = spawn_take(&batcher, take("slow"));
        assert!(spawn_take(&batcher, take(&format!("quick:{n}"))).await??.is_ok());
        assert!(!more.is_finished());
    }
    assert!(!slow.is_finished());
    assert_eq!(gated.max_in_flight.load(Ordering::Relaxed), 1);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn cancelled_first_caller_leaves_others_their_answers() -> anyhow::Result<()> {
    let gated = Arc::new(Gated::new(0));
    let batcher = Arc::new(Batcher::new(Arc::clone(&gated)));
    let leader = spawn_take(&batcher, take("a"));
    settle().await;
    let others: Vec<_> = (0..10).map(|_| spawn_take(&batcher, take("a"))).collect();
    settle().await;
    leader.abort();
    assert!(leader.await.is_err_and(|error| error.is_cancelled()));
    gated.gate.add_permits(2);
    for other in others {
        assert!(other.await??.is_ok_and(|decision| decision.is_granted()));
    }
    // The call of the cancelled caller was in flight, and took a token.
    assert_eq!(gated.store.peek(take("a").key()).await?.map(|level| level.granted()), Some(11));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn unpolled_first_caller_delays_no_other() -> anyhow::Result<()> {
    let gated = Arc::new(Gated::new(0));
    let batcher = Arc::new(Batcher::new(Arc::clone(&gated)));
    let request = take("a");
    let mut leader = std::pin::pin!(batcher.take_one(&request));
    assert!(timeout(Duration::from_millis(1), &mut leader).await.is_err());
    gated.gate.add_permits(2);
    // The leader runs in the same task, so this await does not poll it.
    assert!(batcher.take_one(&take("a")).await?.is_ok_and(|decision| decision.is_granted()));
    assert!(leader.await?.is_ok_and(|decision| decision.is_granted()));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn unpolled_caller_keeps_no_connection() -> anyhow::Result<()> {
    let batcher = Batcher::new(Connected { store: MemoryStore::new(), connections: Semaphore::new(1) });
    let request = take("a");
    let mut leader = std::pin::pin!(batcher.take_one(&request));
    assert!(timeout(Duration::from_millis(1), &mut leader).await.is_err());
    for n in 0..4 {
        // The leader runs in the same task, so this await does not poll it.
        let request = take(&format!("other:{n}"));
        assert!(timeout(Duration::from_secs(1), batcher.take_one(&request)).await???.is_granted());
    }
    assert!(leader.await?.is_ok_and(|decision| decision.is_granted()));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn unpolled_callers_keep_no_connections() -> anyhow::Result<()> {
    // Each of the first four requests starts its own call.
    let leading: Vec<_> = (0..4).map(|n| take(&format!("leader:{n}"))).collect();
    let several = take("one").and(Key::try_from("other")?, rule("50/h"));
    // A request for one bucket, one for several, and two that bypass the queue.
    let late = [vec![take("late")], vec![several.max_wait(Duration::from_secs(1))], vec![take("one"), take("other")]];
    for late in late {
        let batcher = Batcher::new(Connected { store: MemoryStore::new(), connections: Semaphore::new(1) });
        let mut leaders: Vec<_> = leading.iter().map(|request| Box::pin(batcher.take_one(request))).collect();
        for leader in &mut leaders {
            assert!(leader.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        }
        // The leaders run in the same task, so this await does not poll them.
        for outcome in timeout(Duration::from_secs(2), batcher.take(&late)).await?? {
            assert!(outcome?.is_granted());
        }
        for leader in leaders {
            assert!(leader.await??.is_granted());
        }
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn unpolled_caller_delays_no_peek_and_no_close() -> anyhow::Result<()> {
    let store = Connected { store: MemoryStore::new(), connections: Semaphore::new(1) };
    let limiter = Limiter::builder(store).build("50/h")?;
    for closes in [false, true] {
        let mut leader = Box::pin(limiter.allow("a"));
        assert!(leader.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        if closes {
            timeout(Duration::from_secs(1), limiter.close()).await??;
        } else {
            assert_eq!(timeout(Duration::from_secs(1), limiter.peek("b")).await??.available(), 50);
        }
        assert!(leader.await?.is_granted());
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn unpolled_refund_delays_no_close_and_no_metric() -> anyhow::Result<()> {
    let store = Connected { store: MemoryStore::new(), connections: Semaphore::new(1) };
    let limiter = Limiter::builder(store).count_denials(10).build("1/h")?;
    assert!(limiter.allow("a").await?.is_granted());
    let reserved = limiter.reserve_request(&limiter.request("a")?.max_wait(Duration::from_hours(2))).await?;
    assert!(reserved.is_granted() && !limiter.allow("a").await?.is_granted());
    let mut cancelling = Box::pin(reserved.cancel());
    assert!(cancelling.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    timeout(Duration::from_secs(1), limiter.close()).await??;
    assert_eq!(cancelling.await?, 1);
    let denied = limiter.store().store.most_denied(10).await?;
    assert_eq!(denied.len(), 1, "{denied:?}");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn closing_limiter_waits_for_refunds_of_cancelled_waits() -> anyhow::Result<()> {
    let gated = Arc::new(Gated::new(2));
    let limiter = Limiter::builder(Arc::clone(&gated)).build("1/h")?;
    assert!(limiter.allow("a").await?.is_granted());
    {
        let waiting = limiter.wait_n("a", 1, Duration::from_secs(7200));
        assert!(timeout(Duration::from_secs(1), waiting).await.is_err());
    }
    let mut closing = std::pin::pin!(limiter.close());
    assert!(timeout(Duration::from_secs(1), &mut closing).await.is_err());
    gated.gate.add_permits(1);
    closing.await?;
    assert_eq!(gated.store.peek(&Key::try_from("a")?).await?.map(|level| level.granted()), Some(1));
    Ok(())
}

#[test]
fn ended_runtime_leaves_no_caller_waiting() -> anyhow::Result<()> {
    let runtime = || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let gated = Arc::new(Gated::new(0));
    let batcher = Arc::new(Batcher::new(Arc::clone(&gated)));
    let (ending, staying) = (runtime()?, runtime()?);
    {
        // The call of the first request runs in a task of this runtime. The second request waits behind it.
        let _within = ending.enter();
        drop([spawn_take(&batcher, take("a")), spawn_take(&batcher, take("a"))]);
    }
    while gated.calls().is_empty() {
        std::thread::yield_now();
    }
    ending.shutdown_timeout(Duration::from_secs(20));
    gated.gate.add_permits(100);
    staying.block_on(async {
        for _ in 0..3 {
            let request = spawn_take(&batcher, take("a"));
            let outcome = timeout(Duration::from_secs(20), request).await???;
            assert!(outcome?.is_granted());
        }
        Ok(())
    })
}

#[tokio::test]
async fn panicking_store_leaves_no_caller_waiting() -> anyhow::Result<()> {
    let batcher = Arc::new(Batcher::new(Panics(AtomicUsize::new(0))));
    let mut tasks = JoinSet::new();
    for _ in 0..10 {
        let batcher = Arc::clone(&batcher);
        tasks.spawn(async move { batcher.take_one(&take("a")).await });
    }
    let mut ended = Vec::new();
    while let Some(result) = tasks.join_next().await {
        ended.push(result);
    }
    assert!(ended.iter().any(|result| !matches!(result, Ok(Ok(Ok(_))))), "{ended:?}");
    assert!(batcher.take_one(&take("a")).await?.is_ok());
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn randomly_cancelled_calls_lose_no_token() -> anyhow::Result<()> {
    const TASKS: u64 = 100;
    const CALLS: u64 = 1000;
    let batcher = Arc::new(Batcher::new(Arc::new(YieldsRandomly(MemoryStore::with_clock(ManualClock::default())))));
    let (known, unknown) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS {
        let (batcher, known, unknown) = (Arc::clone(&batcher), Arc::clone(&known), Arc::clone(&unknown));
        tasks.spawn(async move {
            for _ in 0..CALLS {
                let key = Key::try_from(format!("key:{}", fastrand::u32(0..10))).expect("a key");
                let cost = fastrand::u64(1..3);
                let take = Take::from(key).rule(rule("8000/h")).cost(cost);
                let polls = fastrand::u32(0..30);
                tokio::select! {
                    biased;
                    outcome = batcher.take_one(&take) => {
                        if outcome.expect("an answer").expect("possible").is_granted() {
                            known.fetch_add(cost, Ordering::Relaxed);
                        }
                    }
                    () = async { for _ in 0..polls { yield_now().await } } => {
                        unknown.fetch_add(cost, Ordering::Relaxed);
                    }
                }
            }
        });
    }
    tasks.join_all().await;
    // All calls in flight for a key end before this request for the key is answered.
    let mut debited = 0;
    for n in 0..10 {
        let key = Key::try_from(format!("key:{n}"))?;
        let denied = batcher.take_one(&Take::from(key.clone()).rule(rule("8000/h")).cost(8000)).await??;
        assert!(!denied.is_granted());
        debited += batcher.store().0.peek(&key).await?.map_or(0, |level| level.granted());
    }
    let (known, unknown) = (known.load(Ordering::Relaxed), unknown.load(Ordering::Relaxed));
    assert!(known <= debited && debited <= known + unknown, "{known} {debited} {unknown}");
    assert!(known > 0 && unknown > 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn randomly_cancelled_calls_through_all_layers_lose_no_token() -> anyhow::Result<()> {
    let keys = || ["ample:0", "ample:1", "tight:0", "tight:1"].map(|key| Key::try_from(key).expect("a key"));
    let limiter = Limiter::builder(YieldsRandomly(MemoryStore::new())).build("1/s")?;
    cancellation::check_cancelled_calls(&limiter, &limiter.store().0, keys(), 50_000).await?;
    let leasing = Limiter::builder(YieldsRandomly(MemoryStore::new())).lease(LeaseOptions::default()).build("1/s")?;
    cancellation::check_cancelled_calls(&leasing, &leasing.store().0, keys(), 50_000).await
}
