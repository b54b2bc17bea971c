//! The interface between limiters, layers and stores.

use std::pin::Pin;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::admin::{AdminError, BucketLevel, RecordedUsage, SweepResult};
use crate::model::{
    Adjusted, Adjustment, Checked, Error, Key, Limits, Outcome, Quota, Rule, Take, TakeError, TakeInParts, Throttle,
    Window, WindowLevel, WindowUsage,
};

pub(crate) mod sealed {
    /// Seals [`Store`](super::Store): its methods can change when the layers need it.
    pub trait Sealed {}
}

/// A store of buckets: the one interface between limiters and databases.
///
/// A store denies a request for which there are no tokens. It never waits for tokens, and a denial writes nothing.
///
/// The trait is sealed: [`MemoryStore`](crate::MemoryStore), [`SqlStore`](crate::SqlStore), [`AnyStore`](crate::AnyStore), the [layers](crate::layers) and an
/// [`Arc`] of any of them are stores. Tests implement [`TestStore`](crate::store::TestStore).
pub trait Store: sealed::Sealed + Send + Sync + 'static {
    /// Returns the store's capabilities, which never change. A layer returns those of the underlying store.
    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    /// Decides each request independently, and returns the outcomes in the order of the requests.
    ///
    /// A request without enough tokens is denied at once. The store decides requests for the same bucket in the order
    /// given. If another transaction has locked a row, the store repeats the call until the deadline.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Key, MemoryStore, Rule, Store, Take};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = MemoryStore::new(); // or PgStore::from(pool)
    /// let takes = [
    ///     Take::from(Key::try_from("client:42")?).rule(Rule::Quota("10/s".parse()?)).cost(6),
    ///     Take::from(Key::try_from("uploads")?).rule(Rule::Quota("1/min".parse()?)).max_wait(Duration::from_millis(250)),
    /// ];
    /// for outcome in store.take(&takes).await? {
    ///     let decision = outcome?;
    ///     println!("{} {:?}", decision.is_granted(), decision.wait());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an error if there is no answer to any request. An error of one request is its [`Outcome`].
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, it leaves no transaction open, but the tokens may have been taken.
    fn take(&self, takes: &[Take]) -> impl Future<Output = Result<Vec<Outcome>, Error>> + Send {
        async move {
            let expanded = expand_all(self, takes).await?;
            let takes = expanded.as_deref().unwrap_or(takes);
            if takes.iter().any(Take::has_modes) {
                let mut outcomes = Vec::with_capacity(takes.len());
                for take in takes {
                    outcomes.push(take_expanded(self, take).await?);
                }
                return Ok(outcomes);
            }
            if let Some(takes) = Checked::all(takes) {
                return self.take_checked(takes, CallOptions::default()).await;
            }
            let checks: Vec<Result<Checked<&Take>, TakeError>> = takes.iter().map(Checked::try_from).collect();
            let valid: Checked<Vec<Take>> = checks.iter().flatten().map(|take| take.cloned()).collect();
            let mut outcomes = self.take_checked(valid.as_slice(), CallOptions::default()).await?.into_iter();
            let in_order = checks.into_iter().filter_map(|check| match check {
                Ok(_) => outcomes.next(),
                Err(error) => Some(Err(error)),
            });
            Ok(in_order.collect())
        }
    }

    /// Decides one request, as [`take`](Self::take) does.
    ///
    /// # Errors
    ///
    /// As for [`take`](Self::take).
    fn take_one(&self, take: &Take) -> impl Future<Output = Result<Outcome, Error>> + Send {
        async move {
            let expanded = expand(self, take).await?;
            take_expanded(self, expanded.as_ref().unwrap_or(take)).await
        }
    }

    /// Refunds or charges tokens of granted requests, and returns the results in the order of the adjustments. Each
    /// receipt is adjusted once.
    ///
    /// A database makes 256 adjustments in one transaction.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no answer to one of the adjustments. The store does not repeat the call. The
    /// adjustments may have been made, unless the error rules that out for all of them.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the adjustments may have been made.
    fn adjust(
        &self,
        adjustments: &[Adjustment],
    ) -> impl Future<Output = Result<Vec<Result<Adjusted, TakeError>>, Error>> + Send {
        self.adjust_with(adjustments, CallOptions::default())
    }

    /// Lowers a bucket to the level that an upstream states, and returns whether the bucket held more. Never raises the
    /// bucket, so a repeated call changes nothing. Creates the bucket if its rule can create it.
    ///
    /// # Errors
    ///
    /// Returns an error if the limit cannot be lowered, or as for [`take`](Self::take). The bucket may have been
    /// lowered then.
    fn throttle(&self, key: &Key, rule: &Rule, throttle: Throttle) -> impl Future<Output = Result<bool, Error>> + Send;

    /// Returns the interface that reads, sweeps and counts, if this kind of store has one. A layer returns that of the
    /// underlying store. Default: `None`.
    fn maintenance(&self) -> Option<&dyn Maintenance> {
        None
    }

    /// Decides requests that were checked. Limiters and layers call this method; callers use [`take`](Self::take).
    ///
    /// # Errors
    ///
    /// As for [`take`](Self::take).
    fn take_checked(
        &self,
        takes: Checked<&[Take]>,
        options: CallOptions,
    ) -> impl Future<Output = Result<Vec<Outcome>, Error>> + Send;

    /// Decides one request that was checked. Layers implement this method to save the allocation of a list.
    ///
    /// # Errors
    ///
    /// As for [`take`](Self::take).
    fn take_one_checked(
        &self,
        take: Checked<&Take>,
        options: CallOptions,
    ) -> impl Future<Output = Result<Outcome, Error>> + Send {
        async move { Ok(self.take_checked(take.as_slice(), options).await?.pop().expect("a store answers each request")) }
    }

    /// Decides one request without a call, if this process knows the answer. A limiter calls this method first.
    ///
    /// `None`: nothing was taken, and [`take_one_checked`](Self::take_one_checked) decides the request. Default: `None`.
    fn try_take(&self, take: Checked<&Take>) -> Option<Outcome> {
        let _ = take;
        None
    }

    /// Makes adjustments, as [`adjust`](Self::adjust) does.
    ///
    /// # Errors
    ///
    /// As for [`adjust`](Self::adjust).
    fn adjust_with(
        &self,
        adjustments: &[Adjustment],
        options: CallOptions,
    ) -> impl Future<Output = Result<Vec<Result<Adjusted, TakeError>>, Error>> + Send;
}

/// Decides one request with one limit for each bucket.
async fn take_expanded<S: Store + ?Sized>(store: &S, take: &Take) -> Result<Outcome, Error> {
    let take = match Checked::try_from(take) {
        Ok(take) => take,
        Err(error) => return Ok(Err(error)),
    };
    let Some(mut parts) = TakeInParts::of(take) else {
        return store.take_one_checked(take, CallOptions::default()).await;
    };
    while let Some(part) = parts.next_part() {
        let answer = store.take_one_checked(part.take.as_ref(), CallOptions::default()).await;
        parts.record(&part, answer);
    }
    parts.into_answer()
}

/// The request for each limit of its plans and rules. `Err`: this process does not know one of the plans.
#[inline]
pub(crate) fn expand_known<S: Store + ?Sized>(store: &S, take: &Take) -> Result<Option<Take>, UnreadPlan> {
    let Some(store) = take.plans().next().and_then(|_| store.maintenance()) else { return Ok(take.expanded(|_| None)) };
    let known = take.plans().map(|plan| Some((plan, store.known_plan(plan)?)));
    Ok(with_plans(take, &known.collect::<Option<KnownPlans<'_>>>().ok_or(UnreadPlan)?))
}

/// This process has not read a plan of the request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UnreadPlan;

/// The request for each limit of its plans and rules. Reads the plans that this process does not know.
pub(crate) async fn expand<S: Store + ?Sized>(store: &S, take: &Take) -> Result<Option<Take>, Error> {
    let Some(store) = take.plans().next().and_then(|_| store.maintenance()) else { return Ok(take.expanded(|_| None)) };
    let mut known = KnownPlans::new();
    for plan in take.plans() {
        let limits = match store.known_plan(plan) {
            Some(limits) => limits,
            None => store.read_plan(plan).await?,
        };
        known.push((plan, limits));
    }
    Ok(with_plans(take, &known))
}

type KnownPlans<'a> = SmallVec<[(&'a Key, Limits); 2]>;

fn with_plans(take: &Take, known: &KnownPlans<'_>) -> Option<Take> {
    take.expanded(|plan| known.iter().find(|(other, _)| *other == plan).map(|(_, limits)| limits.clone()))
}

/// The requests for each limit of their plans and rules. `None`: all are as they are.
async fn expand_all<S: Store + ?Sized>(store: &S, takes: &[Take]) -> Result<Option<Vec<Take>>, Error> {
    if takes.iter().all(|take| matches!(expand_known(store, take), Ok(None))) {
        return Ok(None);
    }
    let mut all = Vec::with_capacity(takes.len());
    for take in takes {
        all.push(expand(store, take).await?.unwrap_or_else(|| take.clone()));
    }
    Ok(Some(all))
}

/// How a store makes a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CallOptions {
    /// Whether the call ends after one lock timeout. Default: false, so the store repeats the call until its deadline.
    ///
    /// A [`Batcher`](crate::layers::Batcher) repeats such a call key by key, so that the other keys need not wait for the
    /// locked one.
    pub fail_fast_on_lock: bool,
}

impl<S: Store> sealed::Sealed for Arc<S> {}

impl<S: Store> Store for Arc<S> {
    #[inline]
    fn capabilities(&self) -> Capabilities {
        (**self).capabilities()
    }

    async fn take_checked(&self, takes: Checked<&[Take]>, options: CallOptions) -> Result<Vec<Outcome>, Error> {
        (**self).take_checked(takes, options).await
    }

    async fn take_one_checked(&self, take: Checked<&Take>, options: CallOptions) -> Result<Outcome, Error> {
        (**self).take_one_checked(take, options).await
    }

    fn try_take(&self, take: Checked<&Take>) -> Option<Outcome> {
        (**self).try_take(take)
    }

    async fn adjust_with(
        &self,
        adjustments: &[Adjustment],
        options: CallOptions,
    ) -> Result<Vec<Result<Adjusted, TakeError>>, Error> {
        (**self).adjust_with(adjustments, options).await
    }

    async fn throttle(&self, key: &Key, rule: &Rule, throttle: Throttle) -> Result<bool, Error> {
        (**self).throttle(key, rule, throttle).await
    }

    fn maintenance(&self) -> Option<&dyn Maintenance> {
        (**self).maintenance()
    }
}

/// A store that counts requests in sliding windows that all processes share.
pub trait SharedWindows: Store {
    /// Counts requests in a key's window now, even beyond its maximum, and returns what all processes have counted. A
    /// cost of 0 only reads.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no answer. The requests may have been counted then.
    fn count(&self, key: &Key, window: &Window, cost: u64) -> impl Future<Output = Result<WindowUsage, Error>> + Send;
}

impl<S: SharedWindows> SharedWindows for Arc<S> {
    async fn count(&self, key: &Key, window: &Window, cost: u64) -> Result<WindowUsage, Error> {
        (**self).count(key, window, cost).await
    }
}

/// The methods of a [`Store`] that read levels, sweep, and count denials. Only stores that keep buckets have them.
///
/// ```
/// use tollgate::{store::Maintenance, MemoryStore, Store};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tollgate::Error> {
/// let store = MemoryStore::new();
/// assert!(store.maintenance().is_some());
/// assert!(store.sweep(1000).await?.finished);
/// # Ok(())
/// # }
/// ```
pub trait Maintenance: Send + Sync {
    /// Returns the bucket that a request for a key under a rule would find, with the limits that the request would give
    /// it. If there is no bucket yet, returns the full one that the first request would create.
    ///
    /// Reads without a lock, and takes and writes nothing.
    ///
    /// # Errors
    ///
    /// Returns an error if the rule is a sliding window, or if the plan or the provisioned bucket does not exist. Also if
    /// this kind of store cannot report levels, the store is unreachable, or the role may not read.
    fn level<'a>(&'a self, key: &'a Key, rule: &'a Rule) -> MaintenanceFuture<'a, BucketLevel, AdminError> {
        let _ = (key, rule);
        Box::pin(async { Err(AdminError::Unsupported) })
    }

    /// Returns what a key's sliding window has counted, under the limits of the last request that it counted. If there
    /// is no window yet, returns an empty one under the limits given.
    ///
    /// Reads without a lock, and counts and writes nothing.
    ///
    /// # Errors
    ///
    /// Returns an error if this kind of store cannot report levels, the store is unreachable, or the role may not read.
    fn window_level<'a>(&'a self, key: &'a Key, window: &'a Window) -> MaintenanceFuture<'a, WindowLevel, AdminError> {
        let _ = (key, window);
        Box::pin(async { Err(AdminError::Unsupported) })
    }

    /// Returns the limits of a plan, as this process knows them: a change shows within a second. `None`: call
    /// [`read_plan`](Self::read_plan). Default: one limit without a name.
    fn known_plan(&self, plan: &Key) -> Option<Limits> {
        let _ = plan;
        Some(Quota::unlimited().into())
    }

    /// Reads the limits of a plan. A plan that does not exist has one limit, whose requests the store refuses.
    ///
    /// # Errors
    ///
    /// Returns an error if the store is unreachable, or the role may not read plans.
    fn read_plan<'a>(&'a self, plan: &'a Key) -> MaintenanceFuture<'a, Limits> {
        let _ = plan;
        Box::pin(async { Ok(Quota::unlimited().into()) })
    }

    /// Deletes expired rows in one bounded step that reads about `limit` rows. On a server, a step reads at most 1000 rows.
    ///
    /// Expired rows are buckets that were not provisioned and have been full for a minute, and windows in which no request
    /// has counted for a minute. A [`MemoryStore`](crate::MemoryStore) does not wait for the minute. Expired receipts and
    /// overrides, and denial counts that are two days old, are deleted as well. Deleting a full bucket changes no decision,
    /// because a bucket that is created again is full.
    ///
    /// The store remembers where a step ended, and the next step of any process continues there. A store that keeps no
    /// rows of its own does nothing.
    ///
    /// # Errors
    ///
    /// Returns an error if the store is unreachable, or the role may not sweep.
    fn sweep(&self, limit: u32) -> MaintenanceFuture<'_, SweepResult> {
        let _ = limit;
        Box::pin(async { Ok(SweepResult::default()) })
    }

    /// Records the usage of the period that has ended, in one bounded step that reads about `limit` buckets, if usage is
    /// [recorded](crate::Admin::set_usage_recording). Deletes periods that are too old. On a server, a step reads at most 1000
    /// buckets. A limiter calls it once a minute while requests come.
    ///
    /// The store remembers where a step ended, and the next step of any process continues there. A store that keeps no
    /// rows of its own does nothing.
    ///
    /// # Errors
    ///
    /// Returns an error if the store is unreachable, or the role may not record usage.
    fn record_usage(&self, limit: u32) -> MaintenanceFuture<'_, RecordedUsage> {
        let _ = limit;
        Box::pin(async { Ok(RecordedUsage::default()) })
    }

    /// Adds counts of denials to those that [`Admin::most_denied`](crate::Admin::most_denied) reads. No decision reads
    /// the counts. A store that keeps no rows of its own does nothing.
    ///
    /// # Errors
    ///
    /// Returns an error if the store is unreachable, or the role may not add counts. Some counts may have been added.
    fn count_denials<'a>(&'a self, denials: &'a [(Key, u64)]) -> MaintenanceFuture<'a, ()> {
        let _ = denials;
        Box::pin(async { Ok(()) })
    }
}

/// The future of a [`Maintenance`] method, boxed so that layers can pass it on without naming its type.
pub type MaintenanceFuture<'a, T, E = Error> = Pin<Box<dyn Future<Output = Result<T, E>> + Send + 'a>>;

/// The properties of a [`Store`] on which its callers depend.
///
/// ```
/// use tollgate::{store::Capabilities, MemoryStore, Store};
///
/// assert_eq!(MemoryStore::new().capabilities(), Capabilities::default().in_process());
/// let database_with_one_writer = Capabilities::default().concurrent_calls(1);
/// assert_ne!(database_with_one_writer, Capabilities::default());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "answer it as a store's capabilities"]
#[non_exhaustive]
pub struct Capabilities {
    /// Whether the store decides in this process.
    pub in_process: bool,
    /// The most requests for several buckets each that fit in one call.
    pub max_take_all: usize,
    /// The most keys in one call. With 1, requests share a call only if they are equal, and neither wait nor have an id.
    pub max_keys: usize,
    /// The number of concurrent calls with which the store is fastest, if each carries many requests.
    pub concurrent_calls: usize,
}

impl Capabilities {
    /// Declares that the store decides in this process, so that a limiter needs no layers. Default: false.
    #[inline]
    pub const fn in_process(self) -> Self {
        Self { in_process: true, ..self }
    }

    /// Sets how many requests for several buckets each fit in one call. With more than 1, the limiter batches them.
    /// Default: 1.
    #[inline]
    pub const fn max_take_all(self, requests: usize) -> Self {
        Self { max_take_all: requests, ..self }
    }

    /// Sets the most keys in one call: 1 for a store whose keys are on several servers, which also takes each wait and adjustment in
    /// a call of its own. Default: no limit.
    #[inline]
    pub fn max_keys(self, keys: usize) -> Self {
        Self { max_keys: keys.max(1), ..self }
    }

    /// Sets the number of concurrent calls with which the store is fastest, from 1 to 64. Default: 2, so that one call is
    /// on the network while the other is in the database.
    ///
    /// With 1, a lock applies to the whole store, so a [`Contended`](crate::Error::Contended) call is not repeated in
    /// parts.
    #[inline]
    pub fn concurrent_calls(self, calls: usize) -> Self {
        Self { concurrent_calls: calls.clamp(1, 64), ..self }
    }
}

impl Default for Capabilities {
    #[inline]
    fn default() -> Self {
        Self { in_process: false, max_take_all: 1, max_keys: usize::MAX, concurrent_calls: 2 }
    }
}
