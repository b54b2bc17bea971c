//! The deadline of a limiter without a fallback, over a store that does not answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tollgate::{
    Adjusted, Adjustment, Admin, Error, Key, Limiter, MemoryStore, Store, Take, TakeError, Throttle,
    clock::ManualClock, model::Outcome, store::TestStore,
};
use uuid::Uuid;

use super::until;

/// A store whose calls wait for a permit of the gate, and then answer as `MemoryStore` does.
struct Gated {
    store: MemoryStore<ManualClock>,
    gate: Semaphore,
    taken: AtomicUsize,
    adjusted: AtomicUsize,
    /// The number of calls that carried these adjustments.
    adjusting: AtomicUsize,
}

impl Gated {
    fn new() -> Arc<Self> {
        let store = MemoryStore::with_clock(ManualClock::default());
        let [taken, adjusted, adjusting] = [const { AtomicUsize::new(0) }; 3];
        Arc::new(Self { store, gate: Semaphore::new(0), taken, adjusted, adjusting })
    }

    fn open(&self) {
        self.gate.add_permits(1_000_000);
    }
}

impl TestStore for Gated {
    async fn take(&self, takes: &[Take]) -> Result<Vec<Outcome>, Error> {
        self.gate.acquire().await.map_err(Error::other)?.forget();
        self.taken.fetch_add(takes.len(), Ordering::SeqCst);
        self.store.take(takes).await
    }

    async fn adjust(&self, adjustments: &[Adjustment]) -> Result<Vec<Result<Adjusted, TakeError>>, Error> {
        let adjusted = self.store.adjust(adjustments).await;
        self.adjusting.fetch_add(1, Ordering::SeqCst);
        self.adjusted.fetch_add(adjustments.len(), Ordering::SeqCst);
        adjusted
    }

    async fn throttle(&self, _: &Key, _: &tollgate::Rule, _: Throttle) -> Result<bool, Error> {
        std::future::pending().await
    }
}

fn limiter(store: &Arc<Gated>) -> Result<Limiter<Arc<Gated>>, Error> {
    Limiter::builder(Arc::clone(store)).deadline(DEADLINE).build("10/s burst 5")
}

fn exceeds_deadline<T>(answer: Result<T, Error>) {
    let Err(error) = answer else { panic!("the store did not answer") };
    assert!(matches!(error, Error::DeadlineExceeded(DEADLINE)) && error.is_outcome_unknown(), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn every_method_ends_by_the_deadline_without_a_fallback() -> anyhow::Result<()> {
    let store = Gated::new();
    let limiter = limiter(&store)?;
    let start = Instant::now();
    exceeds_deadline(limiter.allow("a").await);
    exceeds_deadline(limiter.reserve("a").await);
    exceeds_deadline(limiter.wait("a").await);
    exceeds_deadline(limiter.throttle("a", Throttle::retry_after(Duration::from_secs(1))).await);
    assert_eq!((start.elapsed(), limiter.fallback_count()), (4 * DEADLINE, 0));
    Ok(())
}

/// Five thousand waits are queued before the last one.
#[tokio::test(start_paused = true)]
async fn last_of_a_long_queue_ends_by_its_deadline() -> anyhow::Result<()> {
    let store = Gated::new();
    let limiter = limiter(&store)?;
    let key = Key::try_from("a")?;
    let wait = |start: Instant| {
        let (limiter, key) = (limiter.clone(), key.clone());
        async move {
            exceeds_deadline(limiter.wait(&key).await);
            start.elapsed()
        }
    };
    let mut waiting = JoinSet::new();
    for _ in 0..5_000 {
        waiting.spawn(wait(Instant::now()));
    }
    sleep(DEADLINE / 2).await;
    waiting.spawn(wait(Instant::now()));
    while let Some(elapsed) = waiting.join_next().await {
        assert_eq!(elapsed?, DEADLINE);
    }

    // The store was only slow. Its one call was for the first wait, which got a token.
    store.open();
    until(|| store.taken.load(Ordering::SeqCst) == 1).await;
    assert!(store.store.take_one(&limiter.request(&key)?.cost(4)).await??.is_granted());
    let level = store.store.peek(&key).await?.expect("the bucket exists");
    assert_eq!((level.available(), level.granted()), (0, 5), "a request that was dropped in the queue takes nothing");
    exceeds_deadline(Limiter::builder(Gated::new()).deadline(DEADLINE).build("1/s")?.wait(&key).await);
    // The limiter has seen no answer yet. Its probe closes the circuit, and the queue of the key accepts new requests.
    assert!(matches!(limiter.allow(&key).await, Err(Error::CircuitOpen { .. })));
    limiter.close().await?;
    assert!(!limiter.allow(&key).await?.is_granted());
    assert!(limiter.wait(&key).await?.is_granted());
    Ok(())
}

/// The request is granted after its deadline. Its repetition has the same scheduled time.
#[tokio::test(start_paused = true)]
async fn repeated_wait_with_an_id_is_charged_once() -> anyhow::Result<()> {
    let store = Gated::new();
    let limiter = limiter(&store)?;
    let key = Key::try_from("a")?;
    let take = limiter.request(&key)?.cost(5);
    assert!(store.store.take_one(&take).await??.is_granted());
    let job = take.max_wait(Duration::from_mins(1)).id(Uuid::from_u128(7), Duration::from_hours(1));
    exceeds_deadline(limiter.wait_request(&job).await);
    store.open();
    until(|| store.taken.load(Ordering::SeqCst) == 1).await;
    limiter.close().await?;
    let repeated = limiter.wait_request(&job).await?;
    assert_eq!((repeated.is_granted(), repeated.decision().wait()), (true, Duration::from_millis(500)));
    let level = store.store.peek(&key).await?.expect("the bucket exists");
    assert_eq!((level.available(), level.granted(), store.adjusted.load(Ordering::SeqCst)), (-5, 10, 0));
    Ok(())
}

const DEADLINE: Duration = Duration::from_millis(50);

#[tokio::test(start_paused = true)]
async fn refunds_of_cancelled_waits_share_one_call() -> anyhow::Result<()> {
    let store = Gated::new();
    let limiter = Limiter::builder(Arc::clone(&store)).build("10/s burst 5")?;
    let wait = || {
        let limiter = limiter.clone();
        async move { limiter.wait("a").await }
    };
    let first = tokio::spawn(wait());
    sleep(Duration::from_millis(1)).await;
    let mut waiting: JoinSet<_> = (0..14).map(|_| wait()).collect();
    sleep(Duration::from_millis(1)).await;
    store.gate.add_permits(1);
    assert!(first.await??.is_granted());
    // The call of the 14 waits is in flight.
    sleep(Duration::from_millis(1)).await;
    waiting.shutdown().await;
    store.open();
    until(|| store.adjusted.load(Ordering::SeqCst) > 0).await;
    // Five waits got their tokens at once, so they keep them.
    assert_eq!((store.adjusting.load(Ordering::SeqCst), store.adjusted.load(Ordering::SeqCst)), (1, 10));
    assert_eq!(store.store.peek(&Key::try_from("a")?).await?.map(|level| level.available()), Some(0));
    Ok(())
}
