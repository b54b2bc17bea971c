//! Ten thousand who wait for one key.

use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tollgate::{
    Adjusted, Adjustment, Bound, Error, Limiter, MemoryStore, Store, Take, TakeError, clock::Clock, model::Outcome,
};

use super::until;
use crate::scenarios::START;

#[tokio::test(start_paused = true)]
async fn waits_are_granted_in_order_by_few_calls() -> anyhow::Result<()> {
    let mut line = Line::new()?;
    while let Some(waited) = line.waiting.join_next().await {
        waited?;
    }
    assert!(line.turns().into_iter().eq(0..WAITERS), "some overtook others");
    assert_eq!((line.store.granted.load(Ordering::SeqCst), line.store.adjusts.load(Ordering::SeqCst)), (10_000, 0));
    let takes = line.store.takes.load(Ordering::SeqCst);
    assert!(takes <= 50, "{takes} calls for {WAITERS} waiters");
    Ok(())
}

/// I3, too: what is owed is what was granted and not given back.
#[tokio::test(start_paused = true)]
async fn cancelled_waits_change_no_order_and_lose_no_token() -> anyhow::Result<()> {
    for (seed, after) in [(1, Duration::ZERO), (2, Duration::from_millis(1)), (3, Duration::from_secs(3))] {
        let mut line = Line::new()?;
        // Nobody sleeps while others are in line, so no time passes until all have their turn.
        until(|| line.store.granted.load(Ordering::SeqCst) == 10_000).await;
        sleep(after).await;
        let mut random = fastrand::Rng::with_seed(seed);
        let served = line.turns();
        let mut leaving = 0;
        for (number, waiter) in line.waiters.iter().enumerate() {
            // The last one leaves too: nobody stands behind it.
            if (random.u32(..10) < 3 || number == WAITERS - 1) && !served.contains(&number) {
                waiter.abort();
                leaving += 1;
            }
        }
        until(|| line.store.adjusts.load(Ordering::SeqCst) == leaving).await;
        let denied = line.limiter.allow().await?;
        let (granted, back) = (&line.store.granted, &line.store.given_back);
        let owed = granted.load(Ordering::SeqCst) - back.load(Ordering::SeqCst);
        let full_at = line.begun.elapsed() + denied.reset_after();
        assert_eq!((denied.is_granted(), full_at), (false, Duration::from_millis(owed.unsigned_abs())), "seed {seed}");
        assert!(back.load(Ordering::SeqCst) > 0, "the last one's, at least");

        let mut gone = 0;
        while let Some(waited) = line.waiting.join_next().await {
            gone += usize::from(waited.is_err_and(|error| error.is_cancelled()));
        }
        let turns = line.turns();
        assert!(gone > 2000 && turns.len() == WAITERS - gone, "{gone} left, {} were served", turns.len());
        assert!(turns.is_sorted(), "some overtook others");
    }
    Ok(())
}

struct Line {
    store: Arc<Counting>,
    limiter: Bound<Arc<Counting>>,
    waiting: JoinSet<()>,
    waiters: Vec<tokio::task::AbortHandle>,
    turns: Arc<Mutex<Vec<usize>>>,
    begun: Instant,
}

impl Line {
    fn new() -> anyhow::Result<Self> {
        let begun = Instant::now();
        let store = Arc::new(Counting::new(begun));
        let limiter = Limiter::builder(Arc::clone(&store))
            .max_wait(Duration::from_mins(1))
            .build("1000/s burst 1")?
            .bind("one")?;
        let turns = Arc::new(Mutex::new(Vec::new()));
        let mut waiting = JoinSet::new();
        let wait = |number| {
            let (limiter, turns) = (limiter.clone(), Arc::clone(&turns));
            async move {
                assert!(limiter.wait().await.expect("the store is this process").is_granted());
                turns.lock().expect("nobody panics").push(number);
            }
        };
        let waiters = (0..WAITERS).map(|number| waiting.spawn(wait(number))).collect();
        Ok(Self { store, limiter: limiter.clone(), waiting, waiters, turns: Arc::clone(&turns), begun })
    }

    /// Who was served, in that order.
    fn turns(&self) -> Vec<usize> {
        self.turns.lock().expect("nobody panics").clone()
    }
}

/// Counts its calls and tokens.
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

impl Store for Counting {
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
