//! Stores with delays, locks and faults.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::task::yield_now;
use tokio::time::sleep;
use tollgate::{
    Adjusted, Adjustment, Decision, Error, Key, MemoryStore, Rule, Store, Take, TakeError,
    admin::{AdminError, BucketLevel},
    clock::{Clock, ManualClock},
    model::Outcome,
    store::{Capabilities, Maintenance, MaintenanceFuture, TestStore},
};

/// A store in memory that answers a call for each permit of its gate, and records the keys of its calls.
pub(crate) struct Gated {
    pub(crate) store: MemoryStore<ManualClock>,
    calls: Mutex<Vec<Vec<String>>>,
    /// The keys of the adjustments in each call.
    adjusted: Mutex<Vec<Vec<String>>>,
    /// The number of takes in flight for each key.
    in_flight: Mutex<HashMap<Key, usize>>,
    /// The largest number of takes that were in flight for one key.
    pub(crate) max_in_flight: AtomicUsize,
    pub(crate) gate: Semaphore,
    /// A call for this key alone is never answered. A call for this key and others is rolled back.
    pub(crate) locked: Option<Key>,
    pub(crate) max_keys: usize,
}

impl Gated {
    pub(crate) fn new(open: usize) -> Self {
        Self {
            store: MemoryStore::with_clock(ManualClock::default()),
            calls: Mutex::default(),
            adjusted: Mutex::default(),
            in_flight: Mutex::default(),
            max_in_flight: AtomicUsize::new(0),
            gate: Semaphore::new(open),
            locked: None,
            max_keys: usize::MAX,
        }
    }

    pub(crate) fn calls(&self) -> Vec<Vec<String>> {
        self.calls.lock().clone()
    }

    pub(crate) fn adjusted(&self) -> Vec<Vec<String>> {
        self.adjusted.lock().clone()
    }
}

impl TestStore for Gated {
    fn capabilities(&self) -> Capabilities {
        Capabilities::default().max_take_all(64).max_keys(self.max_keys)
    }

    async fn take(&self, takes: &[Take]) -> Result<Vec<Outcome>, Error> {
        self.calls.lock().push(takes.iter().map(|take| take.key().to_string()).collect());
        let mut keys: Vec<&Key> = takes.iter().map(Take::key).collect();
        keys.dedup();
        for key in &keys {
            let mut in_flight = self.in_flight.lock();
            let calls = in_flight.entry((*key).clone()).or_default();
            *calls += 1;
            self.max_in_flight.fetch_max(*calls, Ordering::Relaxed);
        }
        let holds = keys.iter().any(|key| Some(*key) == self.locked.as_ref());
        let result = if holds && keys.len() > 1 {
            Err(Error::Contended { attempts: 1, source: Arc::new(std::fmt::Error) })
        } else if holds {
            std::future::pending().await
        } else {
            self.gate.acquire().await.map_err(Error::other)?.forget();
            self.store.take(takes).await
        };
        for key in keys {
            *self.in_flight.lock().entry(key.clone()).or_default() -= 1;
        }
        result
    }

    async fn adjust(&self, adjustments: &[Adjustment]) -> Result<Vec<Result<Adjusted, TakeError>>, Error> {
        let keys: Vec<&Key> = adjustments.iter().map(|adjustment| adjustment.receipt().key()).collect();
        self.adjusted.lock().push(keys.iter().map(ToString::to_string).collect());
        if keys.iter().any(|key| Some(*key) == self.locked.as_ref()) {
            if keys.iter().all(|key| *key == keys[0]) {
                std::future::pending::<()>().await;
            }
            return Err(Error::Contended { attempts: 1, source: Arc::new(std::fmt::Error) });
        }
        self.gate.acquire().await.map_err(Error::other)?.forget();
        self.store.adjust(adjustments).await
    }
}

/// A store in which keys that contain `locked` are locked. A call for such a key alone fails after five seconds, and a call
/// for several keys after 100 ms.
#[derive(Default)]
pub(crate) struct Locking {
    /// Whether the locks are released.
    pub(crate) is_free: AtomicBool,
    contended: Mutex<Vec<Vec<Key>>>,
}

impl Locking {
    /// Returns the keys of the calls that met a lock.
    pub(crate) fn contended(&self) -> Vec<Vec<Key>> {
        self.contended.lock().clone()
    }
}

impl TestStore for Locking {
    async fn take(&self, takes: &[Take]) -> Result<Vec<Outcome>, Error> {
        let mut keys: Vec<Key> = takes.iter().map(|take| take.key().clone()).collect();
        keys.dedup();
        if !self.is_free.load(Ordering::Relaxed) && keys.iter().any(|key| key.as_str().contains("locked")) {
            sleep(Duration::from_millis(if keys.len() > 1 { 100 } else { 5000 })).await;
            self.contended.lock().push(keys);
            return Err(Error::Contended { attempts: 1, source: Arc::new(std::fmt::Error) });
        }
        sleep(Duration::from_millis(20)).await;
        Ok(takes.iter().map(|_| Ok(Decision::grant(1))).collect())
    }

    async fn adjust(&self, adjustments: &[Adjustment]) -> Result<Vec<Result<Adjusted, TakeError>>, Error> {
        Ok(adjustments.iter().map(|_| Ok(Adjusted::Done(1))).collect())
    }
}

/// A store whose calls hold a connection until they are answered.
pub(crate) struct Connected {
    pub(crate) store: MemoryStore,
    pub(crate) connections: Semaphore,
}

impl TestStore for Connected {
    fn capabilities(&self) -> Capabilities {
        Capabilities::default().concurrent_calls(1)
    }

    async fn take(&self, takes: &[Take]) -> Result<Vec<Outcome>, Error> {
        let _connection = self.connections.acquire().await.map_err(Error::other)?;
        sleep(Duration::from_millis(10)).await;
        self.store.take(takes).await
    }

    async fn adjust(&self, adjustments: &[Adjustment]) -> Result<Vec<Result<Adjusted, TakeError>>, Error> {
        let _connection = self.connections.acquire().await.map_err(Error::other)?;
        sleep(Duration::from_millis(10)).await;
        self.store.adjust(adjustments).await
    }

    fn maintenance(&self) -> Option<&dyn Maintenance> {
        Some(self)
    }
}

impl Maintenance for Connected {
    fn level<'a>(&'a self, key: &'a Key, rule: &'a Rule) -> MaintenanceFuture<'a, BucketLevel, AdminError> {
        Box::pin(async {
            let _connection = self.connections.acquire().await.map_err(Error::other)?;
            self.store.level(key, rule).await
        })
    }

    fn count_denials<'a>(&'a self, denials: &'a [(Key, u64)]) -> MaintenanceFuture<'a, ()> {
        Box::pin(async {
            let _connection = self.connections.acquire().await.map_err(Error::other)?;
            self.store.count_denials(denials).await
        })
    }
}

/// A store that loses the answer for the key `cut off`. All other keys are locked.
pub(crate) struct Cut;

impl TestStore for Cut {
    async fn take(&self, takes: &[Take]) -> Result<Vec<Outcome>, Error> {
        Ok(takes.iter().map(|_| Ok(Decision::grant(1))).collect())
    }

    async fn adjust(&self, adjustments: &[Adjustment]) -> Result<Vec<Result<Adjusted, TakeError>>, Error> {
        yield_now().await;
        let source = Arc::new(std::fmt::Error);
        match adjustments {
            [cut] if cut.receipt().key().as_str() == "cut off" => Err(Error::OutcomeUnknown(source)),
            _ => Err(Error::Contended { attempts: 1, source }),
        }
    }
}

/// A store that panics in its first call.
pub(crate) struct Panics(pub(crate) AtomicUsize);

impl TestStore for Panics {
    async fn take(&self, takes: &[Take]) -> Result<Vec<Outcome>, Error> {
        yield_now().await;
        assert!(self.0.fetch_add(1, Ordering::Relaxed) > 0, "the first call panics");
        Ok(takes.iter().map(|_| Ok(Decision::grant(1))).collect())
    }

    async fn adjust(&self, adjustments: &[Adjustment]) -> Result<Vec<Result<Adjusted, TakeError>>, Error> {
        yield_now().await;
        assert!(self.0.fetch_add(1, Ordering::Relaxed) > 0, "the first call panics");
        Ok(adjustments.iter().map(|_| Ok(Adjusted::Done(1))).collect())
    }
}

/// A store that yields a random number of times before and after it decides.
pub(crate) struct YieldsRandomly<C: Clock>(pub(crate) MemoryStore<C>);

impl<C: Clock> TestStore for YieldsRandomly<C> {
    async fn take(&self, takes: &[Take]) -> Result<Vec<Outcome>, Error> {
        for _ in 0..fastrand::u32(0..4) {
            yield_now().await;
        }
        let outcomes = self.0.take(takes).await;
        for _ in 0..fastrand::u32(0..4) {
            yield_now().await;
        }
        outcomes
    }

    async fn adjust(&self, adjustments: &[Adjustment]) -> Result<Vec<Result<Adjusted, TakeError>>, Error> {
        self.0.adjust(adjustments).await
    }
}
