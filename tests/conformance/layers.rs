//! The layers between a case and its store.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tollgate::{
    Adjusted, Adjustment, Error, Key, Rule, Store, Take, TakeError, Throttle, layers::DenyCache, model::Outcome,
    store::Maintenance, store::TestStore,
};

/// The layers between a case and its store.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub enum Layers {
    None,
    /// Denials are cached, and each request is a separate call, as in a limiter without batching.
    Denying,
    /// Concurrent requests are coalesced into calls.
    Batched,
    /// A limiter's default layers: both.
    Stacked,
}

/// The number of clock changes and operators' changes.
#[derive(Clone, Debug, Default)]
pub struct Changes(Arc<AtomicU64>);

impl Changes {
    pub fn add(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    fn count(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}

/// A deny cache over a store or over a batching layer.
///
/// A denial is cached for up to a second of the host's time. A case could miss an operator's change for as long, and an
/// injected clock passes that second in no time. So the cache is emptied after each change.
pub struct Denying<S: Store> {
    underlying: Arc<S>,
    denials: Mutex<(u64, Arc<DenyCache<Arc<S>>>)>,
    changes: Changes,
}

impl<S: Store> Denying<S> {
    pub fn new(underlying: S, changes: Changes) -> Self {
        let underlying = Arc::new(underlying);
        let denials = Mutex::new((changes.count(), Arc::new(DenyCache::new(Arc::clone(&underlying)))));
        Self { underlying, denials, changes }
    }

    fn cache(&self) -> Arc<DenyCache<Arc<S>>> {
        let mut denials = self.denials.lock();
        let changes = self.changes.count();
        if denials.0 != changes {
            *denials = (changes, Arc::new(DenyCache::new(Arc::clone(&self.underlying))));
        }
        Arc::clone(&denials.1)
    }
}

impl<S: Store> TestStore for Denying<S> {
    async fn take(&self, takes: &[Take]) -> Result<Vec<Outcome>, Error> {
        self.cache().take(takes).await
    }

    async fn adjust(&self, adjustments: &[Adjustment]) -> Result<Vec<Result<Adjusted, TakeError>>, Error> {
        self.cache().adjust(adjustments).await
    }

    async fn throttle(&self, key: &Key, rule: &Rule, throttle: Throttle) -> Result<bool, Error> {
        self.cache().throttle(key, rule, throttle).await
    }

    fn maintenance(&self) -> Option<&dyn Maintenance> {
        self.underlying.maintenance()
    }
}
