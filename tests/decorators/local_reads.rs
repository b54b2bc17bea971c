//! Sliding windows that a process decides from its own copy of the counts.

use std::pin::pin;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use chrono::{DateTime, TimeDelta};
use futures_util::future::join_all;
use tokio::task::yield_now;
use tokio::time::{Instant, advance, sleep};
use tollgate::{
    Admin, Decision, Error, Key, Limiter, Mode, Rule, Store, Take, Window, clock::Clock, layers::LocalReads,
    model::Source, store::SharedWindows,
};

use super::counting::Counting;
use super::underlying::take;

#[tokio::test(start_paused = true)]
async fn local_denial_makes_no_call_and_grant_makes_one() -> anyhow::Result<()> {
    let store = Counting::new();
    let reads = LocalReads::new(store.clone());
    for n in 0..10 {
        assert!(allow(&reads, "a").await?.is_granted());
        // The first request for a key reads the counts before it counts itself.
        assert_eq!(store.counted(), if n == 0 { vec![0, 1] } else { vec![1] });
    }
    for _ in 0..1000 {
        let denied = allow(&reads, "a").await?;
        assert_eq!((denied.is_granted(), denied.source()), (false, Source::LocalReads));
        yield_now().await;
    }
    assert_eq!((store.counted(), store.taken()), (vec![], 0));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn denials_read_once_per_sub_interval_without_waiting() -> anyhow::Result<()> {
    let store = Counting::new();
    let reads = LocalReads::new(store.clone());
    fill(&reads, "a", 10).await?;
    store.counted();
    store.answers_after(Duration::from_millis(30));
    for _ in 0..5 {
        advance(SUB_INTERVAL).await;
        for _ in 0..40 {
            let now = Instant::now();
            assert!(!allow(&reads, "a").await?.is_granted());
            assert_eq!(now.elapsed(), Duration::ZERO);
            yield_now().await;
        }
        assert_eq!(store.counted(), [0]);
        // Waits until the read is answered.
        sleep(Duration::from_millis(31)).await;
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn denials_read_once_a_second_while_the_store_fails() -> anyhow::Result<()> {
    let store = Counting::new();
    let reads = LocalReads::new(store.clone());
    // A window in which no sub-interval ends, and one in which many do.
    let often = Take::from(key("often")?).rule(Rule::Window(Window::new(10, 10 * INTERVAL, SUB_INTERVAL)?));
    for take in [of_a_week(&key("seldom")?)?, often] {
        store.fails.store(false, Ordering::SeqCst);
        while reads.take_one(&take).await??.is_granted() {}
        advance(SUB_INTERVAL).await;
        store.fails.store(true, Ordering::SeqCst);
        store.counted();
        for _ in 0..5 * 1000 {
            advance(Duration::from_millis(1)).await;
            assert!(!reads.take_one(&take).await??.is_granted());
            yield_now().await;
        }
        let calls = store.counted().len();
        assert!((4..=6).contains(&calls), "{calls} calls in five seconds");
        store.fails.store(false, Ordering::SeqCst);
        assert!(store.memory.reset(take.key()).await?);
        let since = Instant::now();
        while !reads.take_one(&take).await??.is_granted() {
            advance(Duration::from_millis(10)).await;
            yield_now().await;
        }
        assert!(since.elapsed() <= Duration::from_millis(1020), "{:?}", since.elapsed());
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn local_denial_does_not_count_as_a_store_answer() -> anyhow::Result<()> {
    let limiter = Limiter::builder(LocalReads::new(Counting::new())).deadline(Duration::from_millis(100));
    let limiter = limiter.build("10 in 7d at 7d")?;
    while limiter.allow("full").await?.is_granted() {}
    limiter.store().store().answers_after(Duration::from_hours(1));
    for number in 0..16 {
        assert!(!limiter.allow("full").await?.is_granted());
        let failed = limiter.allow(format!("user:{number}")).await;
        assert!(matches!(failed, Err(Error::DeadlineExceeded(_))), "{failed:?}");
    }
    let requests = (0..10).map(|number| limiter.allow(format!("other:{number}")));
    let circuit_open =
        join_all(requests).await.into_iter().filter(|answer| matches!(answer, Err(Error::CircuitOpen { .. })));
    assert_eq!(circuit_open.count(), 10, "no request waits for the store");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn grant_is_stored_before_it_is_answered() -> anyhow::Result<()> {
    let store = Counting::new();
    let reads = LocalReads::new(store.clone());
    fill(&reads, "a", 1).await?;
    store.answers_after(Duration::from_millis(30));
    let now = Instant::now();
    assert!(allow(&reads, "a").await?.is_granted());
    assert_eq!(now.elapsed(), Duration::from_millis(30));
    assert_eq!(store.memory.count(&key("a")?, &window()?, 0).await?.requests(), 2);
    store.fails.store(true, Ordering::SeqCst);
    assert!(allow(&reads, "a").await.is_err(), "the outcome is unknown");
    Ok(())
}

/// Answers do not include grants that are still in flight.
#[tokio::test(start_paused = true)]
async fn process_never_exceeds_the_maximum_with_grants_in_flight() -> anyhow::Result<()> {
    let store = Counting::new();
    let reads = LocalReads::new(store.clone());
    fill(&reads, "a", 1).await?;
    store.answers_after(Duration::from_millis(8));
    let each = async |delay| {
        sleep(Duration::from_millis(delay)).await;
        let mut granted = 0;
        while allow(&reads, "a").await?.is_granted() {
            granted += 1;
        }
        anyhow::Ok(granted)
    };
    let granted = tokio::try_join!(each(0), each(1), each(2), each(3), each(4))?;
    assert_eq!(granted.0 + granted.1 + granted.2 + granted.3 + granted.4, 9, "{granted:?}");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn boundary_replaces_local_counts_with_shared_counts() -> anyhow::Result<()> {
    let store = Counting::new();
    let reads = LocalReads::new(store.clone());
    fill(&reads, "a", 10).await?;
    // An operator resets the key in the store.
    assert!(store.memory.reset(&key("a")?).await?);
    advance(Duration::from_millis(99)).await;
    for _ in 0..100 {
        assert!(!allow(&reads, "a").await?.is_granted(), "no request has read the counts yet");
        yield_now().await;
    }
    advance(Duration::from_millis(1)).await;
    assert!(!allow(&reads, "a").await?.is_granted(), "the request that starts the read is decided by the old counts");
    yield_now().await;
    let granted = allow(&reads, "a").await?;
    assert_eq!((granted.is_granted(), granted.remaining()), (true, Some(9)));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn process_sees_other_grants_with_its_next_grant() -> anyhow::Result<()> {
    let store = Counting::new();
    let (one, other) = (LocalReads::new(store.clone()), LocalReads::new(store.clone()));
    fill(&one, "a", 4).await?;
    // The first read includes the four grants of the other process.
    assert_eq!(allow(&other, "a").await?.remaining(), Some(5));
    fill(&other, "a", 5).await?;
    assert!(!allow(&other, "a").await?.is_granted());
    // The first process knows of four grants. One request exceeds the maximum, and its answer includes all grants.
    let beyond = allow(&one, "a").await?;
    assert_eq!((beyond.is_granted(), beyond.remaining()), (true, Some(0)));
    assert!(!allow(&one, "a").await?.is_granted());
    assert_eq!(store.memory.count(&key("a")?, &window()?, 0).await?.requests(), 11);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn sub_intervals_follow_the_store_clock() -> anyhow::Result<()> {
    let store = Counting::new();
    // The store's clock is half a sub-interval ahead of the host's, which is at a boundary.
    store.steps(SUB_INTERVAL / 2);
    let reads = LocalReads::new(store.clone());
    fill(&reads, "a", 10).await?;
    store.counted();
    advance(Duration::from_millis(49)).await;
    assert!(!allow(&reads, "a").await?.is_granted());
    yield_now().await;
    assert_eq!(store.counted(), [0; 0], "its sub-interval has not ended");
    advance(Duration::from_millis(1)).await;
    assert!(!allow(&reads, "a").await?.is_granted());
    yield_now().await;
    assert_eq!(store.counted(), [0]);

    // The store's clock steps by more than the window. Only the store's next answer shows the step.
    store.steps(Duration::from_secs(5));
    assert!(!allow(&reads, "a").await?.is_granted());
    advance(SUB_INTERVAL).await;
    assert!(!allow(&reads, "a").await?.is_granted());
    yield_now().await;
    assert!(allow(&reads, "a").await?.is_granted());
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn unblocking_is_seen_within_a_second() -> anyhow::Result<()> {
    let store = Counting::new();
    let reads = LocalReads::new(store.clone());
    let take = of_a_week(&key("a")?)?;
    assert!(reads.take_one(&take).await??.is_granted());
    store.memory.set_mode(Mode::Block, None, None).await?;
    // The local counts grant this request. The answer of the store reports the block.
    let _ = reads.take_one(&take).await??;
    assert!(!reads.take_one(&take).await??.is_granted());
    let denied = reads.take_one(&take).await??;
    assert_eq!((denied.is_granted(), denied.retry_after()), (false, None), "the block has no end");
    store.memory.set_mode(Mode::Enforce, None, None).await?;
    store.counted();
    let since = Instant::now();
    while !reads.take_one(&take).await??.is_granted() {
        advance(Duration::from_millis(10)).await;
        yield_now().await;
    }
    assert!(since.elapsed() <= Duration::from_millis(1020), "{:?}", since.elapsed());
    assert_eq!(store.counted(), [0, 1], "one read, then the grant");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn operator_change_reaches_denied_keys_within_a_second() -> anyhow::Result<()> {
    for switched in [Some(Mode::Off), Some(Mode::Shadow), None] {
        let (store, take) = (Counting::new(), of_a_week(&key("a")?)?);
        let reads = LocalReads::new(store.clone());
        while reads.take_one(&take).await??.is_granted() {}
        match switched {
            Some(mode) => store.memory.set_mode(mode, None, None).await?,
            None => drop(store.memory.reset(take.key()).await?),
        }
        store.counted();
        let since = Instant::now();
        while !reads.take_one(&take).await??.is_granted() {
            advance(Duration::from_millis(10)).await;
            yield_now().await;
        }
        assert!(since.elapsed() <= Duration::from_millis(1020), "{switched:?}: {:?}", since.elapsed());
        assert_eq!(store.counted(), [0, 1], "{switched:?}: one read, then the grant");
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn shadow_window_passes_all_and_marks_the_excess() -> anyhow::Result<()> {
    let (store, take) = (Counting::new(), of_a_week(&key("a")?)?);
    store.memory.set_mode(Mode::Shadow, None, None).await?;
    let reads = LocalReads::new(store);
    for n in 0..20 {
        let decision = reads.take_one(&take).await??;
        let expected = if n < 10 { Mode::Enforce } else { Mode::Shadow };
        assert_eq!((decision.is_granted(), decision.mode()), (true, expected), "request {n}");
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn blocked_request_states_the_end_of_the_block() -> anyhow::Result<()> {
    let store = Counting::new();
    let reads = LocalReads::new(store.clone());
    fill(&reads, "a", 1).await?;
    let until = DateTime::from_timestamp_nanos(store.clock.now()) + TimeDelta::seconds(10);
    store.memory.set_mode(Mode::Block, None, Some(until)).await?;
    // The local counts grant this request. The answer of the store reports the block.
    let _ = allow(&reads, "a").await?;
    advance(Duration::from_secs(4)).await;
    let denied = allow(&reads, "a").await?;
    assert_eq!((denied.is_granted(), denied.source()), (false, Source::LocalReads));
    assert_eq!(denied.retry_after(), Some(Duration::from_secs(6)));
    Ok(())
}

/// A denial is answered outside a runtime, too. Its background read needs one.
#[test]
fn local_denial_needs_no_runtime() -> anyhow::Result<()> {
    let reads = LocalReads::new(Counting::new());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    runtime.block_on(reads.store().memory.set_mode(Mode::Block, None, None))?;
    // A sub-interval this short ends between two requests.
    let shortest = Duration::from_micros(1);
    let take = Take::from(key("a")?).rule(Rule::Window(Window::new(10, shortest, shortest)?));
    for _ in 0..2 {
        assert!(!runtime.block_on(reads.take_one(&take))??.is_granted());
    }
    // Lets the background read of the last request end.
    runtime.block_on(async { drop(tokio::spawn(async {}).await) });
    for _ in 0..100 {
        let denied = pin!(reads.take_one(&take)).poll(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(denied, Poll::Ready(Ok(Ok(decision))) if !decision.is_granted()));
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn keys_beyond_max_keys_are_decided_by_the_store() -> anyhow::Result<()> {
    let store = Counting::new();
    let reads = LocalReads::new(store.clone()).max_keys(2);
    fill(&reads, "a", 10).await?;
    fill(&reads, "b", 10).await?;
    store.counted();
    for n in 0..500 {
        let granted = allow(&reads, &format!("other:{n}")).await?;
        assert_eq!((granted.is_granted(), granted.source()), (true, Source::Store));
    }
    assert_eq!((store.counted(), store.taken()), (vec![], 500), "they were decided exactly, and not remembered");
    assert_eq!(allow(&reads, "a").await?.source(), Source::LocalReads);
    // A key whose window has expired makes room for another key.
    advance(INTERVAL + SUB_INTERVAL).await;
    assert_eq!(allow(&reads, "c").await?.source(), Source::LocalReads);
    assert_eq!((store.counted(), store.taken()), (vec![0, 1], 500));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn waits_and_minimum_remaining_are_decided_by_the_store() -> anyhow::Result<()> {
    let store = Counting::new();
    let reads = LocalReads::new(store.clone());
    let plain = Take::from(key("a")?).rule(Rule::Window(window()?));
    for take in
        [plain.clone().max_wait(INTERVAL), plain.clone().min_remaining(1), plain.id(uuid::Uuid::new_v4(), INTERVAL)]
    {
        assert_eq!(reads.take_one(&take).await??.source(), Source::Store);
    }
    assert_eq!((store.counted(), store.taken()), (vec![], 3));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn failure_after_a_grant_in_the_same_call_is_unknown() -> anyhow::Result<()> {
    let store = Counting::new();
    let reads = LocalReads::new(store.clone());
    let bucket = take("b", "2/h")?;
    let window = Take::from(key("a")?).rule(Rule::Window(window()?));
    store.fails.store(true, Ordering::SeqCst);
    let error = reads.take(&[window.clone(), bucket.clone()]).await.expect_err("it fails");
    assert!(!error.is_outcome_unknown(), "nothing was taken before: {error}");
    let error = reads.take(&[bucket.clone(), window]).await.expect_err("it fails");
    assert!(error.is_outcome_unknown(), "a token is taken: {error}");
    // Without a window, all requests go in one call.
    let left: Vec<bool> =
        reads.take(&[bucket.clone(), bucket]).await?.into_iter().flatten().map(|one| one.is_granted()).collect();
    assert_eq!((left, store.taken()), (vec![true, false], 3));
    Ok(())
}

fn key(key: &str) -> anyhow::Result<Key> {
    Ok(Key::try_from(key)?)
}

fn window() -> anyhow::Result<Window> {
    Ok(Window::new(10, INTERVAL, SUB_INTERVAL)?)
}

/// Creates a request under a window in which no sub-interval ends during a test.
fn of_a_week(key: &Key) -> anyhow::Result<Take> {
    let week = Duration::from_secs(7 * 24 * 3600);
    Ok(Take::from(key.clone()).rule(Rule::Window(Window::new(10, week, week)?)))
}

async fn allow(reads: &LocalReads<Counting>, name: &str) -> anyhow::Result<Decision> {
    Ok(reads.take_one(&Take::from(key(name)?).rule(Rule::Window(window()?))).await??)
}

async fn fill(reads: &LocalReads<Counting>, name: &str, count: u64) -> anyhow::Result<()> {
    for _ in 0..count {
        anyhow::ensure!(allow(reads, name).await?.is_granted());
    }
    Ok(())
}

const INTERVAL: Duration = Duration::from_secs(1);
const SUB_INTERVAL: Duration = Duration::from_millis(100);
