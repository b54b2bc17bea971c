//! The layers between a limiter and its store, as enums, so that the compiler knows each call's target.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};
use tokio_util::task::TaskTracker;

use crate::layers::deny_cache::CacheMiss;
use crate::layers::{Batcher, DenyCache, Lease, LeaseOptions};
use crate::model::{Adjusted, Adjustment, Checked, Error, Key, Outcome, Rule, Take, TakeError, Throttle};
use crate::store::{CallOptions, Capabilities, Store, sealed};

/// A limiter's store below its layers.
#[derive(Debug)]
pub(super) struct Stack<S: Store> {
    /// The store itself.
    pub(super) store: Arc<S>,
    /// The deadline of calls for a waiting caller, if there is one.
    pub(super) deadline: Option<Duration>,
    /// The tasks that run without a caller.
    pub(super) tasks: TaskTracker,
    layers: OuterLayer<S>,
}

/// The deny cache, if the limiter has one, over the inner layers.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "a limiter has one")]
enum OuterLayer<S: Store> {
    Cached(DenyCache<InnerLayers<S>>),
    Uncached(InnerLayers<S>),
}

/// The layers below the deny cache, and the store.
#[derive(Debug)]
enum InnerLayers<S: Store> {
    Batched(Batcher<S>),
    Direct(Arc<S>),
    LeasedAndBatched(Lease<Batcher<S>>),
    LeasedDirect(Lease<Arc<S>>),
}

/// The layers between a limiter and its store.
#[derive(Clone, Debug)]
pub(super) struct LayerOptions {
    pub(super) denials: Option<usize>,
    pub(super) lease: Option<LeaseOptions>,
    pub(super) batches: bool,
}

impl Default for LayerOptions {
    fn default() -> Self {
        Self { denials: Some(DenyCache::<()>::MAX_KEYS), lease: None, batches: true }
    }
}

impl<S: Store> Stack<S> {
    pub(super) fn new(store: S, layers: LayerOptions, deadline: Option<Duration>) -> Self {
        let (store, tasks) = (Arc::new(store), TaskTracker::new());
        let LayerOptions { denials, lease, batches } =
            // A store in this process has no calls to save.
            if store.capabilities().in_process { LayerOptions { denials: None, lease: None, batches: false } } else { layers };
        let batcher = || Batcher::tracked(Arc::clone(&store), &tasks);
        let inner = match (lease, batches) {
            (None, true) => InnerLayers::Batched(batcher()),
            (None, false) => InnerLayers::Direct(Arc::clone(&store)),
            (Some(options), true) => InnerLayers::LeasedAndBatched(Lease::with_options(batcher(), options)),
            (Some(options), false) => InnerLayers::LeasedDirect(Lease::with_options(Arc::clone(&store), options)),
        };
        let layers = match denials {
            Some(max_keys) => OuterLayer::Cached(DenyCache::new(inner).max_keys(max_keys)),
            None => OuterLayer::Uncached(inner),
        };
        Self { store, deadline, tasks, layers }
    }

    #[inline]
    pub(super) fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    /// Decides a request without a call, or returns why the store must decide it.
    #[inline]
    pub(super) fn try_take(&self, take: Checked<&Take>) -> Result<Outcome, CacheMiss> {
        // The compiler knows the kind of the store here, and a store in this process needs no layers.
        if self.store.capabilities().in_process {
            return self.store.try_take(take).ok_or(CacheMiss::Unknown);
        }
        match &self.layers {
            OuterLayer::Cached(cache) => cache.try_take_or_miss(take),
            OuterLayer::Uncached(inner) => inner.try_take(take).ok_or(CacheMiss::Unknown),
        }
    }

    /// Decides a request that [`try_take`](Self::try_take) did not decide.
    pub(super) async fn take_one(&self, take: Checked<&Take>, miss: CacheMiss) -> Result<Outcome, Error> {
        match &self.layers {
            OuterLayer::Cached(cache) => cache.take_after_miss(take, miss, CallOptions::default()).await,
            OuterLayer::Uncached(inner) => inner.take_one_checked(take, CallOptions::default()).await,
        }
    }

    pub(super) async fn adjust(&self, adjustments: &[Adjustment]) -> Result<Vec<Result<Adjusted, TakeError>>, Error> {
        match &self.layers {
            OuterLayer::Cached(cache) => cache.adjust(adjustments).await,
            OuterLayer::Uncached(inner) => inner.adjust(adjustments).await,
        }
    }

    pub(super) async fn throttle(&self, key: &Key, rule: &Rule, throttle: Throttle) -> Result<bool, Error> {
        match &self.layers {
            OuterLayer::Cached(cache) => cache.throttle(key, rule, throttle).await,
            OuterLayer::Uncached(inner) => inner.throttle(key, rule, throttle).await,
        }
    }

    /// Gives back prefetched tokens, and returns how many. Reports the last denial counts, and waits for running tasks.
    pub(super) async fn close(&self, report: impl Future<Output = ()>) -> Result<u64, Error> {
        let inner = match &self.layers {
            OuterLayer::Cached(cache) => cache.store(),
            OuterLayer::Uncached(inner) => inner,
        };
        let latest = Instant::now() + CLOSE_TIMEOUT;
        let closing = async {
            match inner {
                InnerLayers::LeasedAndBatched(lease) => lease.close().await,
                InnerLayers::LeasedDirect(lease) => lease.close().await,
                InnerLayers::Batched(_) | InnerLayers::Direct(_) => Ok(0),
            }
        };
        let given_back = timeout_at(latest, closing).await.unwrap_or(Err(Error::DeadlineExceeded(CLOSE_TIMEOUT)));
        // After the tokens, because counts can be lost and tokens cannot.
        let _reported = timeout_at(latest, report).await;
        self.tasks.close();
        // Bounded, because further requests can keep spawning tasks.
        let _ended = timeout_at(latest, self.tasks.wait()).await;
        given_back
    }
}

/// Expands an expression for the outermost of the inner layers.
macro_rules! on {
    ($inner:ident, $layer:ident => $body:expr) => {
        match $inner {
            InnerLayers::Batched($layer) => $body,
            InnerLayers::Direct($layer) => $body,
            InnerLayers::LeasedAndBatched($layer) => $body,
            InnerLayers::LeasedDirect($layer) => $body,
        }
    };
}

impl<S: Store> sealed::Sealed for InnerLayers<S> {}

impl<S: Store> Store for InnerLayers<S> {
    async fn take_checked(&self, takes: Checked<&[Take]>, options: CallOptions) -> Result<Vec<Outcome>, Error> {
        on!(self, layer => layer.take_checked(takes, options).await)
    }

    async fn take_one_checked(&self, take: Checked<&Take>, options: CallOptions) -> Result<Outcome, Error> {
        on!(self, layer => layer.take_one_checked(take, options).await)
    }

    #[inline]
    fn try_take(&self, take: Checked<&Take>) -> Option<Outcome> {
        on!(self, layer => layer.try_take(take))
    }

    async fn adjust_with(
        &self,
        adjustments: &[Adjustment],
        options: CallOptions,
    ) -> Result<Vec<Result<Adjusted, TakeError>>, Error> {
        on!(self, layer => layer.adjust_with(adjustments, options).await)
    }

    async fn throttle(&self, key: &Key, rule: &Rule, throttle: Throttle) -> Result<bool, Error> {
        on!(self, layer => layer.throttle(key, rule, throttle).await)
    }
}

/// The bound on closing. Longer than a call with the store's default deadline.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);
