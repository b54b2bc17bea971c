//! The deny cache: repeats recent denials from memory, and lets one request per key call the store.

use std::collections::HashMap;
use std::fmt;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::RandomState;
use parking_lot::Mutex;
use quick_cache::UnitWeighter;
use quick_cache::sync::{Cache, DefaultLifecycle, EntryAction, EntryResult};
use smallvec::SmallVec;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

use crate::model::{
    Adjusted, Adjustment, Checked, Decision, Error, Key, Limit, Outcome, Rule, Source, Take, TakeError, Throttle,
};
use crate::store::{CallOptions, Capabilities, Maintenance, Store, sealed};

mod forget_counts;

use forget_counts::ForgetCounts;

/// A store that repeats recent denials of the underlying store from memory.
///
/// An attack costs the database at most one call for each key, process and second, and two calls for each grant: the grant,
/// and the denial after it. (A grant does not tell whether the next request would be denied: it can be a trial in shadow mode.)
///
/// After a denial, memory denies requests for the same key under the same rule that need as many tokens or more, cost and
/// minimum remaining together. It does so until the first of them would be granted, and for a second at most, from when the
/// denied request was sent. So a refund elsewhere, a reset, a larger plan or another mode takes effect within a second.
/// [`adjust`](Store::adjust) of this store takes effect at once.
///
/// After that time one request calls the store. Requests that arrive meanwhile wait for its answer, 100 ms at most. If it is
/// denied, so are they. If it is granted, they call the store, too.
///
/// Apart from that second, memory never denies a request that the store would grant. A request for fewer tokens than were
/// denied goes to the store. So does a request for more tokens than the store has called possible, because more than the
/// capacity is an error. Each costs a call of its own. [`retry_after`](crate::Decision::retry_after) is that of the denied
/// request, and too short for requests of more tokens.
///
/// The store decides every request that can wait, has an id, names several buckets or is under a sliding window. Grants, errors
/// and the answers of a [`Fallback`](crate::Fallback) are never kept. Answers from memory have the source
/// [`DenyCache`](crate::model::Source::DenyCache).
///
/// ```
/// use tollgate::{layers::DenyCache, model::Source, Limiter, MemoryStore, Quota};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tollgate::Error> {
/// let limiter = Limiter::new(DenyCache::new(MemoryStore::new()), Quota::per_hour(1))?;
/// assert!(limiter.allow("user:42").await?.is_granted());
/// assert_eq!(limiter.allow("user:42").await?.source(), Source::Store);
/// assert_eq!(limiter.allow("user:42").await?.source(), Source::DenyCache);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct DenyCache<S> {
    store: S,
    denials: DeniedKeys,
    probes: Probes,
}

impl<S> DenyCache<S> {
    pub(crate) const MAX_KEYS: usize = 65_536;

    /// Creates a cache of 65,536 keys over a store.
    pub fn new(store: S) -> Self {
        Self { store, denials: DeniedKeys::new(Self::MAX_KEYS), probes: Probes::default() }
    }

    /// Sets how many keys the cache remembers at most. Default: 65,536.
    ///
    /// Beyond the limit, the cache forgets the least requested keys, and their next requests go to the store. A key takes about
    /// 250 bytes.
    #[must_use]
    pub fn max_keys(self, max_keys: usize) -> Self {
        Self { denials: DeniedKeys::new(max_keys), ..self }
    }

    /// Returns the number of keys that the cache remembers.
    #[must_use]
    pub fn len(&self) -> usize {
        self.denials.len()
    }

    /// Returns whether the cache remembers no key.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Forgets the denials of a key, for instance after a reset. The next request for the key goes to the store.
    ///
    /// A limiter over this store has another cache, unless it is built [without](crate::LimiterBuilder::without_deny_cache).
    pub fn forget(&self, key: &Key) {
        self.denials.forget(key);
    }

    /// Returns the underlying store.
    #[must_use]
    pub fn store(&self) -> &S {
        &self.store
    }
}

impl<S: Store> DenyCache<S> {
    /// Decides one request without a call, or returns why the store must decide it: for
    /// [`take_after_miss`](Self::take_after_miss), so that the cache is searched once.
    #[inline]
    pub(crate) fn try_take_or_miss(&self, take: Checked<&Take>) -> Result<Outcome, CacheMiss> {
        match self.denials.find(&take) {
            Ok(denial) => Ok(Ok(denial)),
            // A denial is left to `take_after_miss`, which remembers it.
            Err(CacheMiss::Unknown) => {
                let granted = self.store.try_take(take).filter(|now| now.as_ref().is_ok_and(Decision::is_granted));
                granted.ok_or(CacheMiss::Unknown)
            }
            // `take_after_miss` sends one probe for all of them.
            Err(CacheMiss::Expired) => Err(CacheMiss::Expired),
        }
    }

    /// Decides a request that the cache did not answer. When a denial has expired, one request calls the store and the others
    /// wait for its answer.
    pub(crate) async fn take_after_miss(
        &self,
        take: Checked<&Take>,
        miss: CacheMiss,
        options: CallOptions,
    ) -> Result<Outcome, Error> {
        let probe = match miss {
            CacheMiss::Unknown => None,
            CacheMiss::Expired => {
                let probe = self.probes.begin(take.key()).await;
                // Another probe may have been denied meanwhile.
                if let Ok(denial) = self.denials.find(&take) {
                    return Ok(Ok(denial));
                }
                probe
            }
        };
        let sent = self.denials.stamp(&take);
        let outcome = self.store.take_one_checked(take, options).await?;
        self.denials.learn(&take, sent, &outcome);
        if probe.is_some() && matches!(self.denials.find(&take), Err(CacheMiss::Expired)) {
            // Tokens are available again, so the next requests need no probe.
            self.denials.remove(take.key());
        }
        Ok(outcome)
    }
}

impl<S: Store> sealed::Sealed for DenyCache<S> {}

impl<S: Store> Store for DenyCache<S> {
    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    /// Calls the store once for the requests that memory does not deny, in their order.
    async fn take_checked(&self, takes: Checked<&[Take]>, options: CallOptions) -> Result<Vec<Outcome>, Error> {
        if let Some(take) = takes.one() {
            return Ok(vec![self.take_one_checked(take, options).await?]);
        }
        let known: Vec<Option<Outcome>> = takes.iter().map(|take| self.denials.find(&take).ok().map(Ok)).collect();
        let unknown: SmallVec<[Checked<&Take>; 1]> =
            takes.iter().zip(&known).filter(|(_, known)| known.is_none()).map(|(take, _)| take).collect();
        if unknown.is_empty() {
            return Ok(known.into_iter().flatten().collect());
        }
        let stamps: Vec<_> = unknown.iter().map(|take| self.denials.stamp(take)).collect();
        let outcomes = if unknown.len() == takes.len() {
            self.store.take_checked(takes, options).await?
        } else {
            let unknown: Checked<Vec<Take>> = unknown.iter().map(|take| take.cloned()).collect();
            self.store.take_checked(unknown.as_slice(), options).await?
        };
        for ((take, sent), outcome) in unknown.iter().zip(stamps).zip(&outcomes) {
            self.denials.learn(take, sent, outcome);
        }
        let mut outcomes = outcomes.into_iter();
        Ok(known.into_iter().filter_map(|known| known.or_else(|| outcomes.next())).collect())
    }

    async fn take_one_checked(&self, take: Checked<&Take>, options: CallOptions) -> Result<Outcome, Error> {
        match self.denials.find(&take) {
            Ok(denial) => Ok(Ok(denial)),
            Err(miss) => self.take_after_miss(take, miss, options).await,
        }
    }

    fn try_take(&self, take: Checked<&Take>) -> Option<Outcome> {
        self.try_take_or_miss(take).ok()
    }

    /// Forgets the keys, regardless of the result.
    async fn adjust_with(
        &self,
        adjustments: &[Adjustment],
        options: CallOptions,
    ) -> Result<Vec<Result<Adjusted, TakeError>>, Error> {
        let _adjusted = AdjustGuard(&self.denials, adjustments);
        self.store.adjust_with(adjustments, options).await
    }

    /// Forgets the key: its denials now last longer.
    async fn throttle(&self, key: &Key, rule: &Rule, throttle: Throttle) -> Result<bool, Error> {
        let lowered = self.store.throttle(key, rule, throttle).await;
        self.denials.forget(key);
        lowered
    }

    fn maintenance(&self) -> Option<&dyn Maintenance> {
        self.store.maintenance()
    }
}

/// Why the cache does not answer a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CacheMiss {
    /// The cache has no denial that covers the request.
    Unknown,
    /// The denial that covers the request has expired.
    Expired,
}

/// A call that gives tokens back. When it ends or is dropped, the tokens may be available, so it forgets the keys.
struct AdjustGuard<'a>(&'a DeniedKeys, &'a [Adjustment]);

impl Drop for AdjustGuard<'_> {
    fn drop(&mut self) {
        for adjustment in self.1 {
            self.0.forget(&adjustment.receipt.key);
        }
    }
}

/// The denials by key, as far as the cache has room.
struct DeniedKeys {
    cache: Cache<Key, Denial, UnitWeighter, RandomState>,
    forgotten: ForgetCounts,
    hasher: RandomState,
}

/// When a request was sent to the store, and how often its key had been forgotten by then.
#[derive(Clone, Copy)]
struct QueryStamp {
    sent: Instant,
    forgotten: u64,
}

impl DeniedKeys {
    fn new(max_keys: usize) -> Self {
        let hasher = RandomState::default();
        let most = max_keys.max(1);
        let cache = Cache::with(most, most as u64, UnitWeighter, hasher.clone(), DefaultLifecycle::default());
        Self { cache, forgotten: ForgetCounts::new(), hasher }
    }

    fn len(&self) -> usize {
        self.cache.len()
    }

    /// Returns the denial of a request.
    #[inline]
    fn find(&self, take: &Take) -> Result<Decision, CacheMiss> {
        let Some(Limit { key, rule, .. }) = take.plain().filter(|_| take.max_wait.is_zero()) else {
            return Err(CacheMiss::Unknown);
        };
        self.cache.get(key).map_or(Err(CacheMiss::Unknown), |denial| denial.answer(take, rule))
    }

    /// Notes the time and the key's count, before the request is sent to the store.
    fn stamp(&self, take: &Take) -> QueryStamp {
        // Reads the count before the clock, so that no forgetting between the two is missed.
        let forgotten = self.forgotten.times(self.hash(take.key()));
        QueryStamp { sent: Instant::now(), forgotten }
    }

    /// Keeps a denial of the store.
    fn learn(&self, take: &Take, stamp: QueryStamp, outcome: &Outcome) {
        let Some(denial) = outcome.as_ref().ok().and_then(|decision| Denial::of(take, stamp.sent, decision)) else {
            return;
        };
        let key = take.key();
        let mut later = Some(denial);
        let kept = self.cache.entry(key, None, |_, known| {
            if let Some(later) = later.take() {
                known.add(later, take);
            }
            EntryAction::Retain(())
        });
        if let (EntryResult::Vacant(place), Some(denial)) = (kept, later) {
            // Fails if another thread forgets the key at this moment.
            let _ = place.insert(denial);
        }
        // `forget` counts before it removes. So either this thread sees the count, or `forget` sees the denial.
        if self.forgotten.times(self.hash(key)) != stamp.forgotten {
            self.remove(key);
        }
    }

    fn forget(&self, key: &Key) {
        self.forgotten.count(self.hash(key));
        self.remove(key);
    }

    /// Removes the denial of a key.
    fn remove(&self, key: &Key) {
        self.cache.remove(key);
    }

    fn hash(&self, key: &Key) -> u64 {
        self.hasher.hash_one(key)
    }
}

impl fmt::Debug for DeniedKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeniedKeys").field("keys", &self.len()).finish_non_exhaustive()
    }
}

/// A denial of the store, and the requests that it covers.
///
/// Tokens come only with time and by giving back. So as long as the denied request would be denied again, so would each request
/// that needs as many tokens or more: its cost and its minimum remaining together.
#[derive(Clone, Debug)]
struct Denial {
    rule: Rule,
    /// How many tokens the request needed: its cost and its minimum remaining.
    needed: u64,
    /// The largest need that is known to be possible.
    possible: u64,
    until: Instant,
    answered: Instant,
    decision: Decision,
}

impl Denial {
    /// The denial in an answer to a request that was sent at `sent`. `None` if the answer is not a denial of the store.
    fn of(take: &Take, sent: Instant, decision: &Decision) -> Option<Self> {
        let Limit { rule, .. } = take.plain().filter(|_| take.max_wait.is_zero())?;
        let until = sent + decision.retry_after().map_or(MAX_AGE, |retry_after| retry_after.min(MAX_AGE));
        // A denial that has expired when it arrives does not cover later requests.
        if decision.is_granted() || decision.source() != Source::Store || until <= Instant::now() {
            return None;
        }
        Some(Self {
            rule: rule.clone(),
            needed: needed(take),
            possible: decision.capacity().unwrap_or(0).max(needed(take)),
            until,
            // `retry_after` counts from this instant.
            answered: Instant::now(),
            decision: decision.clone().with_source(Source::DenyCache),
        })
    }

    /// The answer to a request now.
    #[inline]
    fn answer(self, take: &Take, rule: &Rule) -> Result<Decision, CacheMiss> {
        if !self.covers(take, rule) || needed(take) > self.possible {
            return Err(CacheMiss::Unknown);
        }
        let now = Instant::now();
        if now < self.until { Ok(self.decision.aged_by(now - self.answered)) } else { Err(CacheMiss::Expired) }
    }

    /// Adds a later denial. It replaces this one, unless this one covers it: then it only raises the possible need.
    fn add(&mut self, later: Self, take: &Take) {
        let same = later.needed == self.needed;
        if Instant::now() < self.until && self.covers(take, &later.rule) && !(same && later.until > self.until) {
            self.possible = self.possible.max(later.possible);
        } else {
            *self = later;
        }
    }

    #[inline]
    fn covers(&self, take: &Take, rule: &Rule) -> bool {
        needed(take) >= self.needed && *rule == self.rule
    }
}

#[inline]
fn needed(take: &Take) -> u64 {
    take.cost.saturating_add(take.min_remaining)
}

/// The time within which changes that this process does not see take effect.
const MAX_AGE: Duration = Duration::from_secs(1);

/// The keys for which a request is asking the store whether a denial still holds.
#[derive(Debug, Default)]
struct Probes(Mutex<HashMap<Key, Arc<Semaphore>>>);

/// The request that asks the store. When it ends or is dropped, the waiting requests continue.
#[derive(Debug)]
struct Probe<'a> {
    probes: &'a Probes,
    key: &'a Key,
    ended: Arc<Semaphore>,
}

impl Probes {
    /// Makes the caller the probe, or waits until the current probe has its answer.
    async fn begin<'a>(&'a self, key: &'a Key) -> Option<Probe<'a>> {
        let current = {
            let mut probes = self.0.lock();
            let current = probes.get(key).cloned();
            if current.is_none() {
                let ended = Arc::new(Semaphore::new(0));
                probes.insert(key.clone(), Arc::clone(&ended));
                return Some(Probe { probes: self, key, ended });
            }
            current
        };
        let current = current?;
        // The semaphore has no permits: `acquire` returns when it is closed.
        if timeout(PROBE_TIMEOUT, current.acquire()).await.is_err() {
            self.end(key, &current);
        }
        None
    }

    /// Wakes the requests that wait for this probe.
    fn end(&self, key: &Key, ended: &Arc<Semaphore>) {
        let mut probes = self.0.lock();
        if probes.get(key).is_some_and(|other| Arc::ptr_eq(other, ended)) {
            probes.remove(key);
        }
        ended.close();
    }
}

impl Drop for Probe<'_> {
    fn drop(&mut self) {
        self.probes.end(self.key, &self.ended);
    }
}

/// The future of a probe may never be polled again, so the others wait no longer than this.
const PROBE_TIMEOUT: Duration = Duration::from_millis(100);
