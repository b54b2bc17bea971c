//! Ten thousand who wait for one key.

use std::future::poll_fn;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, advance, sleep};
use tollgate::{Adjusted, Adjustment, Bound, Clock, Error, Limiter, MemoryStore, Outcome, Store, Take, TakeError};

use super::{goes_on, until};
use crate::scenarios::START;

#[tokio::test(start_paused = true)]
async fn all_are_served_in_the_order_in_which_they_came_by_few_calls() -> anyhow::Result<()> {
    let mut line = Line::new()?;
    while let Some(waited) = line.waiting.join_next().await {
        waited?;
    }
    assert!(line.turns().into_iter().eq(0..WAITERS), "some overtook others");
    assert_eq!((line.store.granted.load(Ordering::SeqCst), line.store.adjusts.load(Ordering::SeqCst)), (10_000, 0));
    let takes = line.store.takes.load(Ordering::SeqCst);
    assert!(takes <= 16, "{takes} calls for {WAITERS} waiters");
    Ok(())
}

/// I3, too: what is owed is what was granted and not given back.
#[tokio::test(start_paused = true)]
async fn those_who_stay_keep_their_order_when_others_leave_and_no_token_is_lost_or_made() -> anyhow::Result<()> {
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

/// Their turns have come, and their threads poll them in any order.
#[tokio::test(start_paused = true)]
async fn nobody_goes_on_before_who_is_ahead_unless_that_leaves_or_is_not_polled() -> anyhow::Result<()> {
    let store = Arc::new(Counting::new(Instant::now()));
    let limiter = Limiter::builder(Arc::clone(&store)).build("1000/s burst 1")?.bind("one")?;
    let all_are_due = async || {
        assert!(limiter.allow().await.is_ok_and(|decision| decision.is_granted()));
        let mut waiting = [(); 3].map(|()| Box::pin(limiter.wait()));
        let granted = store.granted.load(Ordering::SeqCst) + 3;
        assert!(waiting.each_mut().map(goes_on) == [false; 3]);
        until(|| store.granted.load(Ordering::SeqCst) == granted).await;
        assert!(waiting.each_mut().map(goes_on) == [false; 3]);
        advance(Duration::from_secs(1)).await;
        waiting
    };
    let [mut first, mut second, mut third] = all_are_due().await;
    assert!(!goes_on(&mut third) && !goes_on(&mut second) && goes_on(&mut first), "the second went on first");
    assert!(!goes_on(&mut third) && goes_on(&mut second) && goes_on(&mut third), "the third went on first");

    let [first, second, mut third] = all_are_due().await;
    drop(second);
    assert!(!goes_on(&mut third), "the first is there still");
    drop(first);
    assert!(goes_on(&mut third), "nobody is there");

    let [_never, mut second, mut third] = all_are_due().await;
    assert!(!goes_on(&mut third) && !goes_on(&mut second));
    advance(Duration::from_millis(24)).await;
    assert!(!goes_on(&mut second), "it may be polled yet");
    advance(Duration::from_millis(1)).await;
    assert!(goes_on(&mut second) && goes_on(&mut third), "it is not polled any more");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn on_several_threads_too_nobody_goes_on_before_who_is_ahead() -> anyhow::Result<()> {
    let store = Arc::new(Counting::new(Instant::now()));
    let limiter = Limiter::builder(Arc::clone(&store)).build("10000/s burst 5000")?.bind("one")?;
    assert!(limiter.allow_n(5000).await?.is_granted() && limiter.reserve_n(5000).await?.is_granted());
    let mut waiting = [(); 4000].map(|()| {
        let limiter = limiter.clone();
        Box::pin(async move { limiter.wait().await })
    });
    // So they come one after the other, and have their answers when they are polled again.
    assert!(waiting.iter_mut().all(|wait| !goes_on(wait)));
    while store.granted.load(Ordering::SeqCst) < 4002 {
        sleep(Duration::from_millis(1)).await;
    }
    let moments = Arc::new(AtomicUsize::default());
    let waiting = waiting.map(|mut wait| {
        let moments = Arc::clone(&moments);
        tokio::spawn(async move {
            let (mut polls, mut moment, mut now, mut pause) = (0, 0, Instant::now(), Duration::ZERO);
            let granted = poll_fn(|context| {
                (polls, moment, pause, now) =
                    (polls + 1, moments.fetch_add(1, Ordering::SeqCst), now.elapsed(), Instant::now());
                wait.as_mut().poll(context)
            });
            assert!(granted.await?.is_granted());
            // Polled when its turn had come, and again when it had let the one ahead go first for as long as it does.
            let has_waited = polls > 2 && pause >= Duration::from_millis(25);
            anyhow::Ok((moment, moments.fetch_add(1, Ordering::SeqCst), has_waited))
        })
    });
    let mut ahead = 0;
    for (number, waited) in waiting.into_iter().enumerate() {
        let (polled, went_on, has_waited) = waited.await??;
        assert!(ahead < went_on || has_waited, "{number} went on before the one ahead was polled");
        ahead = polled;
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
            .longest_wait(Duration::from_mins(1))
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
