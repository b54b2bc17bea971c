//! A store that records its calls for sliding windows.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::sleep;
use tollgate::{
    Adjusted, Adjustment, Error, Key, MemoryStore, Store, Take, TakeError, Window,
    clock::{Clock, RuntimeClock},
    model::{Outcome, WindowUsage},
    store::SharedWindows,
    store::TestStore,
};

/// A store in memory that records its calls. Its clock runs like the runtime's, and tests can set it ahead.
#[derive(Clone)]
pub(super) struct Counting {
    pub(super) memory: Arc<MemoryStore<StoreClock>>,
    pub(super) clock: StoreClock,
    /// The cost in each call of `count`.
    counted: Arc<Mutex<Vec<u64>>>,
    taken: Arc<AtomicU64>,
    delay: Arc<Mutex<Duration>>,
    pub(super) fails: Arc<AtomicBool>,
}

#[derive(Clone, Debug)]
pub(super) struct StoreClock {
    runtime: RuntimeClock,
    ahead: Arc<AtomicI64>,
}

impl Clock for StoreClock {
    fn now(&self) -> i64 {
        self.runtime.now() + self.ahead.load(Ordering::SeqCst)
    }
}

impl Counting {
    pub(super) fn new() -> Self {
        let clock = StoreClock { runtime: RuntimeClock::default(), ahead: Arc::default() };
        let memory = Arc::new(MemoryStore::with_clock(clock.clone()));
        let (counted, taken, delay, fails) = (Arc::default(), Arc::default(), Arc::default(), Arc::default());
        Self { memory, clock, counted, taken, delay, fails }
    }

    /// Returns the cost in each call of `count` since the last call of this method.
    pub(super) fn counted(&self) -> Vec<u64> {
        std::mem::take(&mut *self.counted.lock())
    }

    /// Returns how many requests the store was to decide.
    pub(super) fn taken(&self) -> u64 {
        self.taken.load(Ordering::SeqCst)
    }

    pub(super) fn answers_after(&self, delay: Duration) {
        *self.delay.lock() = delay;
    }

    pub(super) fn steps(&self, by: Duration) {
        let by = i64::try_from(by.as_nanos()).expect("a short step");
        self.clock.ahead.fetch_add(by, Ordering::SeqCst);
    }
}

impl TestStore for Counting {
    async fn take(&self, takes: &[Take]) -> Result<Vec<Outcome>, Error> {
        self.taken.fetch_add(takes.len() as u64, Ordering::SeqCst);
        self.memory.take(takes).await
    }

    async fn adjust(&self, adjustments: &[Adjustment]) -> Result<Vec<Result<Adjusted, TakeError>>, Error> {
        self.memory.adjust(adjustments).await
    }
}

impl SharedWindows for Counting {
    async fn count(&self, key: &Key, window: &Window, cost: u64) -> Result<WindowUsage, Error> {
        self.counted.lock().push(cost);
        if self.fails.load(Ordering::SeqCst) {
            return Err(Error::other(std::io::Error::other("broken")));
        }
        let counted = self.memory.count(key, window, cost).await?;
        let delay = *self.delay.lock();
        if !delay.is_zero() {
            sleep(delay).await;
        }
        Ok(counted)
    }
}
