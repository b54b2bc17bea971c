//! The underlying stores of these tests.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tollgate::{
    Adjusted, Adjustment, Error, Fallback, Key, Limiter, MemoryStore, Receipt, Rule, Store, Take, TakeError, Throttle,
    clock::RuntimeClock, model::Outcome, store::TestStore,
};

/// A store in memory that records its calls. Clones share one store.
#[derive(Clone)]
pub struct Noting {
    pub memory: Arc<MemoryStore<RuntimeClock>>,
    noted: Arc<Noted>,
}

#[derive(Default)]
struct Noted {
    calls: AtomicU64,
    costs: Mutex<Vec<u64>>,
    granted: AtomicU64,
    given_back: AtomicU64,
    /// The delay of answers.
    delay: Mutex<Duration>,
    /// The delay of adjustments.
    back: Mutex<Duration>,
}

impl Noting {
    pub fn new() -> Self {
        Self { memory: Arc::new(MemoryStore::with_clock(RuntimeClock::default())), noted: Arc::default() }
    }

    /// Returns the number of calls of `take`.
    pub fn calls(&self) -> u64 {
        self.noted.calls.load(Ordering::SeqCst)
    }

    /// Returns the cost of each request since the last call of this method.
    pub fn costs(&self) -> Vec<u64> {
        std::mem::take(&mut *self.noted.costs.lock())
    }

    /// Returns how many tokens were granted.
    pub fn granted(&self) -> u64 {
        self.noted.granted.load(Ordering::SeqCst)
    }

    /// Returns how many tokens were given back.
    pub fn given_back(&self) -> u64 {
        self.noted.given_back.load(Ordering::SeqCst)
    }

    /// Delays all further answers.
    pub fn answers_after(&self, delay: Duration) {
        *self.noted.delay.lock() = delay;
    }

    /// Delays all further adjustments.
    pub fn gives_back_after(&self, delay: Duration) {
        *self.noted.back.lock() = delay;
    }

    async fn delay(&self) {
        let delay = *self.noted.delay.lock();
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
    }
}

impl TestStore for Noting {
    async fn take(&self, takes: &[Take]) -> Result<Vec<Outcome>, Error> {
        self.noted.calls.fetch_add(1, Ordering::SeqCst);
        let outcomes = self.memory.take(takes).await?;
        for (take, outcome) in takes.iter().zip(&outcomes) {
            let cost = cost(take);
            self.noted.costs.lock().push(cost);
            if outcome.as_ref().is_ok_and(tollgate::Decision::is_granted) {
                self.noted.granted.fetch_add(cost, Ordering::SeqCst);
            }
        }
        self.delay().await;
        Ok(outcomes)
    }

    async fn adjust(&self, adjustments: &[Adjustment]) -> Result<Vec<Result<Adjusted, TakeError>>, Error> {
        let delay = *self.noted.back.lock();
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        let adjusted = self.memory.adjust(adjustments).await?;
        for adjusted in adjusted.iter().flatten() {
            if let Adjusted::Done(tokens) = adjusted {
                self.noted.given_back.fetch_add(tokens.unsigned_abs(), Ordering::SeqCst);
            }
        }
        Ok(adjusted)
    }

    async fn throttle(&self, key: &Key, rule: &Rule, throttle: Throttle) -> Result<bool, Error> {
        // Delays the call and its answer.
        self.delay().await;
        let lowered = self.memory.throttle(key, rule, throttle).await;
        self.delay().await;
        lowered
    }
}

/// A store that is a limiter with a fallback.
pub struct Falling<S: Store>(Limiter<S>);

impl<S: Store> Falling<S> {
    pub fn new(store: S, fallback: Fallback) -> Result<Self, Error> {
        Ok(Self(Limiter::builder(store).deadline(Duration::from_millis(50)).fallback(fallback).build("10/h")?))
    }
}

impl<S: Store> TestStore for Falling<S> {
    async fn take(&self, takes: &[Take]) -> Result<Vec<Outcome>, Error> {
        let mut outcomes = Vec::new();
        for take in takes {
            outcomes.push(Ok(self.0.decide(take).await?));
        }
        Ok(outcomes)
    }

    async fn adjust(&self, adjustments: &[Adjustment]) -> Result<Vec<Result<Adjusted, TakeError>>, Error> {
        self.0.store().adjust(adjustments).await
    }
}

/// A store that fails and counts its calls.
#[derive(Clone, Default)]
pub struct Broken(pub Arc<AtomicU64>);

impl TestStore for Broken {
    async fn take(&self, _: &[Take]) -> Result<Vec<Outcome>, Error> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Err(Error::other(std::io::Error::other("broken")))
    }

    async fn adjust(&self, _: &[Adjustment]) -> Result<Vec<Result<Adjusted, TakeError>>, Error> {
        Err(Error::other(std::io::Error::other("broken")))
    }
}

pub fn take(key: &str, rule: &str) -> anyhow::Result<Take> {
    Ok(Take::from(Key::try_from(key)?).rule(Rule::try_from(rule)?))
}

/// Returns the cost of a request, read from its `Debug` text.
fn cost(take: &Take) -> u64 {
    let text = format!("{take:?}");
    let (_, after) = text.split_once(" cost: ").expect("a request has a cost");
    after.split(',').next().and_then(|cost| cost.parse().ok()).expect("it is a number")
}

pub fn receipt(key: &str, cost: u64) -> anyhow::Result<Receipt> {
    Ok(Receipt::new(uuid::Uuid::new_v4(), Key::try_from(key)?, cost))
}
