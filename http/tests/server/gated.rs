use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::{Notify, Semaphore};
use tollgate::{Adjusted, Adjustment, Error, MemoryStore, Store, Take, TakeError, model::Outcome, store::TestStore};

/// A store that answers when it has permits.
pub struct Gated {
    pub store: MemoryStore,
    /// Notified of each request for tokens.
    pub requested: Notify,
    /// Permits to take and to give back.
    pub takes: Semaphore,
    pub adjusts: Semaphore,
    pub adjusted: AtomicU64,
}

impl Gated {
    /// Blocks takes, but gives back at once.
    pub fn before_it_takes() -> Arc<Self> {
        Self::with_leave(0, Semaphore::MAX_PERMITS)
    }

    /// Takes at once, but blocks adjustments.
    pub fn before_it_gives_back() -> Arc<Self> {
        Self::with_leave(Semaphore::MAX_PERMITS, 0)
    }

    /// Answers at once. The limiter still adds the layers that it adds before a database.
    pub fn open() -> Arc<Self> {
        Self::with_leave(Semaphore::MAX_PERMITS, Semaphore::MAX_PERMITS)
    }

    fn with_leave(takes: usize, adjusts: usize) -> Arc<Self> {
        let (takes, adjusts) = (Semaphore::new(takes), Semaphore::new(adjusts));
        let (requested, adjusted) = (Notify::new(), AtomicU64::new(0));
        Arc::new(Self { store: MemoryStore::new(), requested, takes, adjusts, adjusted })
    }
}

impl TestStore for Gated {
    async fn take(&self, takes: &[Take]) -> Result<Vec<Outcome>, Error> {
        self.requested.notify_one();
        self.takes.acquire().await.map_err(Error::other)?.forget();
        self.store.take(takes).await
    }

    async fn adjust(&self, adjustments: &[Adjustment]) -> Result<Vec<Result<Adjusted, TakeError>>, Error> {
        self.adjusted.fetch_add(1, Ordering::SeqCst);
        self.adjusts.acquire().await.map_err(Error::other)?.forget();
        self.store.adjust(adjustments).await
    }
}
