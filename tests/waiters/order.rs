//! Ten thousand waits for one key.

use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tollgate::{
    Adjusted, Adjustment, Bound, Error, Limiter, MemoryStore, Store, Take, TakeError, clock::Clock, model::Outcome,
    store::TestStore,
};
use tollgate_tests::scenarios::START;

use super::until;

#[tokio::test(start_paused = true)]
async fn waits_are_granted_in_order_by_few_calls() -> anyhow::Result<()> {
    let mut waits = Waits::new()?;
    while let Some(waited) = waits.waiting.join_next().await {
        waited?;
    }
    assert!(waits.ended().into_iter().eq(0..WAITERS), "a wait overtook another one");
    assert_eq!((waits.store.granted.load(Ordering::SeqCst), waits.store.adjusts.load(Ordering::SeqCst)), (10_000, 0));
    let takes = waits.store.takes.load(Ordering::SeqCst);
    assert!(takes <= 50, "{takes} calls for {WAITERS} waiters");
    Ok(())
}

/// Also checks I3: the bucket owes exactly the tokens that were granted and not given back.
#[tokio::test(start_paused = true)]
async fn cancelled_waits_change_no_order_and_lose_no_token() -> anyhow::Result<()> {
    for (seed, after) in [(1, Duration::ZERO), (2, Duration::from_millis(1)), (3, Duration::from_secs(3))] {
        let mut waits = Waits::new()?;
        // No time passes until all waits are scheduled, because the runtime is not idle before.
        until(|| waits.store.granted.load(Ordering::SeqCst) == 10_000).await;
        sleep(after).await;
        let mut random = fastrand::Rng::with_seed(seed);
        let served = waits.ended();
        let mut cancelled = 0;
        for (number, waiter) in waits.waiters.iter().enumerate() {
            // Always cancels the last wait, because no other wait queues behind it.
            if (random.u32(..10) < 3 || number == WAITERS - 1) && !served.contains(&number) {
                waiter.abort();
                cancelled += 1;
            }
        }
        until(|| waits.store.adjusts.load(Ordering::SeqCst) == cancelled).await;
        let denied = waits.limiter.allow().await?;
        let (granted, back) = (&waits.store.granted, &waits.store.given_back);
        let owed = granted.load(Ordering::SeqCst) - back.load(Ordering::SeqCst);
        let full_at = waits.begun.elapsed() + denied.reset_after().expect("it refills");
        assert_eq!((denied.is_granted(), full_at), (false, Duration::from_millis(owed.unsigned_abs())), "seed {seed}");
        assert!(back.load(Ordering::SeqCst) > 0, "the last wait gives back its token");

        let mut gone = 0;
        while let Some(waited) = waits.waiting.join_next().await {
            gone += usize::from(waited.is_err_and(|error| error.is_cancelled()));
        }
        let ended = waits.ended();
        assert!(gone > 2000 && ended.len() == WAITERS - gone, "{gone} were cancelled, and {} granted", ended.len());
        assert!(ended.is_sorted(), "a wait overtook another one");
    }
    Ok(())
}

struct Waits {
    store: Arc<Counting>,
    limiter: Bound<Arc<Counting>>,
    waiting: JoinSet<()>,
    waiters: Vec<tokio::task::AbortHandle>,
    ended: Arc<Mutex<Vec<usize>>>,
    begun: Instant,
}

impl Waits {
    fn new() -> anyhow::Result<Self> {
        let begun = Instant::now();
        let store = Arc::new(Counting::new(begun));
        let limiter = Limiter::builder(Arc::clone(&store))
            .max_wait(Duration::from_mins(1))
            .build("1000/s burst 1")?
            .bind("one")?;
        let ended = Arc::new(Mutex::new(Vec::new()));
        let mut waiting = JoinSet::new();
        let wait = |number| {
            let (limiter, ended) = (limiter.clone(), Arc::clone(&ended));
            async move {
                assert!(limiter.wait().await.expect("the store is this process").is_granted());
                ended.lock().expect("no thread panics").push(number);
            }
        };
        let waiters = (0..WAITERS).map(|number| waiting.spawn(wait(number))).collect();
        Ok(Self { store, limiter: limiter.clone(), waiting, waiters, ended: Arc::clone(&ended), begun })
    }

    /// Reended the numbers of the granted waits, in the order in which they ended.
    fn ended(&self) -> Vec<usize> {
        self.ended.lock().expect("no thread panics").clone()
    }
}

/// A store that counts its calls and tokens.
pub(super) struct Counting {
    pub(super) store: MemoryStore<Paused>,
    takes: AtomicUsize,
    adjusts: AtomicUsize,
    granted: AtomicI64,
    given_back: AtomicI64,
}

impl Counting {
    pub(super) fn new(begun: Instant) -> Self {
        Self {
            store: MemoryStore::with_clock(Paused(begun)),
            takes: AtomicUsize::default(),
            adjusts: AtomicUsize::default(),
            granted: AtomicI64::default(),
            given_back: AtomicI64::default(),
        }
    }
}

impl TestStore for Counting {
    async fn take(&self, takes: &[Take]) -> Result<Vec<Outcome>, Error> {
        self.takes.fetch_add(1, Ordering::SeqCst);
        let outcomes = self.store.take(takes).await?;
        let granted = outcomes.iter().flatten().filter(|decision| decision.is_granted()).count();
        self.granted.fetch_add(i64::try_from(granted).expect("each takes one token"), Ordering::SeqCst);
        Ok(outcomes)
    }

    async fn adjust(&self, adjustments: &[Adjustment]) -> Result<Vec<Result<Adjusted, TakeError>>, Error> {
        let adjusted = self.store.adjust(adjustments).await?;
        for outcome in &adjusted {
            if let Ok(Adjusted::Done(tokens)) = outcome {
                self.given_back.fetch_add(*tokens, Ordering::SeqCst);
            }
        }
        self.adjusts.fetch_add(adjustments.len(), Ordering::SeqCst);
        Ok(adjusted)
    }
}

pub(super) struct Paused(pub(super) Instant);

impl Clock for Paused {
    fn now(&self) -> i64 {
        i64::try_from(self.0.elapsed().as_nanos()).expect("not that long") + START
    }
}

const WAITERS: usize = 10_000;
