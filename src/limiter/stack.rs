use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};
use tokio_util::task::TaskTracker;

use crate::layers::{Batcher, DenyCache, Lease, LeaseOptions};
use crate::model::{Adjusted, Adjustment, Error, Key, Outcome, Rule, Take, TakeError, Throttle};
use crate::store::{Capabilities, Maintenance, Store};

/// A limiter's store below its layers.
#[derive(Debug)]
pub(super) struct Stack<S: Store> {
    /// The store itself.
    pub(super) store: Arc<S>,
    /// The deadline of calls for a waiting caller, if there is one.
    pub(super) deadline: Option<Duration>,
    /// The tasks that run without a caller.
    pub(super) tasks: TaskTracker,
    asked: Cached<S>,
}

type Cached<S> = Optional<DenyCache<Leased<S>>, Leased<S>>;
type Leased<S> = Optional<Lease<Batched<S>>, Batched<S>>;
type Batched<S> = Optional<Batcher<S>, Arc<S>>;

/// The layers between a limiter and its store.
#[derive(Clone, Debug)]
pub(super) struct Layers {
    pub(super) denials: Option<usize>,
    pub(super) lease: Option<LeaseOptions>,
    pub(super) batches: bool,
}

impl Default for Layers {
    fn default() -> Self {
        Self { denials: Some(DenyCache::<()>::MAX_KEYS), lease: None, batches: true }
    }
}

impl<S: Store> Stack<S> {
    pub(super) fn new(store: S, layers: Layers, deadline: Option<Duration>) -> Self {
        let (store, tasks) = (Arc::new(store), TaskTracker::new());
        let Layers { denials, lease, batches } =
            // A store in this process has no calls to save.
            if store.capabilities().in_process { Layers { denials: None, lease: None, batches: false } } else { layers };
        let asked = if batches {
            Optional::With(Batcher::tracked(Arc::clone(&store), &tasks))
        } else {
            Optional::Without(Arc::clone(&store))
        };
        let asked = match lease {
            Some(options) => Optional::With(Lease::with_options(asked, options)),
            None => Optional::Without(asked),
        };
        let asked = match denials {
            Some(max_keys) => Optional::With(DenyCache::new(asked).max_keys(max_keys)),
            None => Optional::Without(asked),
        };
        Self { store, deadline, tasks, asked }
    }

    /// Gives back prefetched tokens, and returns how many. Reports the last denial counts, and waits for running tasks.
    pub(super) async fn close(&self, telling: impl Future<Output = ()>) -> Result<u64, Error> {
        let leased = match &self.asked {
            Optional::With(cache) => cache.store(),
            Optional::Without(leased) => leased,
        };
        let lease = match leased {
            Optional::With(lease) => Some(lease),
            Optional::Without(_) => None,
        };
        let latest = Instant::now() + CLOSE_TIMEOUT;
        let given_back = match lease {
            Some(lease) => {
                let given_back = timeout_at(latest, lease.close()).await;
                given_back.unwrap_or(Err(Error::DeadlineExceeded(CLOSE_TIMEOUT)))
            }
            None => Ok(0),
        };
        // After the tokens, because counts can be lost and tokens cannot.
        let _told = timeout_at(latest, telling).await;
        self.tasks.close();
        // Bounded, because further requests can keep spawning tasks.
        let _ended = timeout_at(latest, self.tasks.wait()).await;
        given_back
    }
}

impl<S: Store> Store for Stack<S> {
    #[inline]
    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    async fn take(&self, takes: &[Take]) -> Result<Vec<Outcome>, Error> {
        self.asked.take(takes).await
    }

    async fn take_one(&self, take: &Take) -> Result<Outcome, Error> {
        self.asked.take_one(take).await
    }

    async fn adjust(&self, adjustments: &[Adjustment]) -> Result<Vec<Result<Adjusted, TakeError>>, Error> {
        self.asked.adjust(adjustments).await
    }

    #[inline]
    fn try_take(&self, take: &Take) -> Option<Outcome> {
        // The compiler knows the kind of the store here, and a store in this process needs no layers.
        if self.store.capabilities().in_process { self.store.try_take(take) } else { self.asked.try_take(take) }
    }

    async fn throttle(&self, key: &Key, rule: &Rule, hold: Throttle) -> Result<bool, Error> {
        self.asked.throttle(key, rule, hold).await
    }

    fn maintenance(&self) -> Option<&dyn Maintenance> {
        self.store.maintenance()
    }
}

/// The bound on closing. Longer than a call with the store's default deadline.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// A store with or without a layer.
#[derive(Debug)]
enum Optional<L, S> {
    With(L),
    Without(S),
}

impl<L: Store, S: Store> Store for Optional<L, S> {
    async fn take(&self, takes: &[Take]) -> Result<Vec<Outcome>, Error> {
        match self {
            Self::With(layer) => layer.take(takes).await,
            Self::Without(store) => store.take(takes).await,
        }
    }

    async fn take_one(&self, take: &Take) -> Result<Outcome, Error> {
        match self {
            Self::With(layer) => layer.take_one(take).await,
            Self::Without(store) => store.take_one(take).await,
        }
    }

    async fn adjust(&self, adjustments: &[Adjustment]) -> Result<Vec<Result<Adjusted, TakeError>>, Error> {
        match self {
            Self::With(layer) => layer.adjust(adjustments).await,
            Self::Without(store) => store.adjust(adjustments).await,
        }
    }

    #[inline]
    fn try_take(&self, take: &Take) -> Option<Outcome> {
        match self {
            Self::With(layer) => layer.try_take(take),
            Self::Without(store) => store.try_take(take),
        }
    }

    async fn throttle(&self, key: &Key, rule: &Rule, hold: Throttle) -> Result<bool, Error> {
        match self {
            Self::With(layer) => layer.throttle(key, rule, hold).await,
            Self::Without(store) => store.throttle(key, rule, hold).await,
        }
    }
}
