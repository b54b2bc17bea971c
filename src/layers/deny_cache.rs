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
    Adjusted, Adjustment, Decision, Error, Key, Limit, Outcome, Rule, Source, Take, TakeError, Throttle,
};
use crate::store::{Capabilities, Maintenance, Store};

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

impl<S: Store> Store for DenyCache<S> {
    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    /// Calls the store once for the requests that memory does not deny, in their order.
    async fn take(&self, takes: &[Take]) -> Result<Vec<Outcome>, Error> {
        if let [take] = takes {
            return Ok(vec![self.take_one(take).await?]);
        }
        let known: Vec<Option<Outcome>> = takes.iter().map(|take| self.denials.find(take).denied().map(Ok)).collect();
        let asked: SmallVec<[&Take; 1]> =
            takes.iter().zip(&known).filter(|(_, known)| known.is_none()).map(|(take, _)| take).collect();
        if asked.is_empty() {
            return Ok(known.into_iter().flatten().collect());
        }
        let questions: Vec<_> = asked.iter().map(|take| self.denials.question(take)).collect();
        let answers = if asked.len() == takes.len() {
            self.store.take(takes).await?
        } else {
            self.store.take(&asked.iter().copied().cloned().collect::<Vec<_>>()).await?
        };
        for ((take, question), outcome) in asked.iter().zip(questions).zip(&answers) {
            self.denials.learn(take, question, outcome);
        }
        let mut answers = answers.into_iter();
        Ok(known.into_iter().filter_map(|known| known.or_else(|| answers.next())).collect())
    }

    /// Decides a request. When a denial has expired, one request asks the store and the others wait for its answer.
    async fn take_one(&self, take: &Take) -> Result<Outcome, Error> {
        let probe = match self.denials.find(take) {
            CachedAnswer::Denied(decision) => return Ok(Ok(decision)),
            CachedAnswer::Nothing => None,
            CachedAnswer::Past => {
                let probe = self.probes.begin(take.key()).await;
                // Another probe may have been denied meanwhile.
                if let Some(decision) = self.denials.find(take).denied() {
                    return Ok(Ok(decision));
                }
                probe
            }
        };
        let question = self.denials.question(take);
        let outcome = self.store.take_one(take).await?;
        self.denials.learn(take, question, &outcome);
        if probe.is_some() && matches!(self.denials.find(take), CachedAnswer::Past) {
            // Tokens are available again, so the next requests need no probe.
            self.denials.remove(take.key());
        }
        Ok(outcome)
    }

    fn try_take(&self, take: &Take) -> Option<Outcome> {
        match self.denials.find(take) {
            CachedAnswer::Denied(decision) => Some(Ok(decision)),
            // A denial is left to `take`, which remembers it.
            CachedAnswer::Nothing => {
                self.store.try_take(take).filter(|now| now.as_ref().is_ok_and(Decision::is_granted))
            }
            // `take` sends one probe for all of them.
            CachedAnswer::Past => None,
        }
    }

    /// Forgets the keys, regardless of the result.
    async fn adjust(&self, adjustments: &[Adjustment]) -> Result<Vec<Result<Adjusted, TakeError>>, Error> {
        let _adjusted = AdjustGuard(&self.denials, adjustments);
        self.store.adjust(adjustments).await
    }

    /// Forgets the key: its denials now last longer.
    async fn throttle(&self, key: &Key, rule: &Rule, hold: Throttle) -> Result<bool, Error> {
        let lowered = self.store.throttle(key, rule, hold).await;
        self.denials.forget(key);
        lowered
    }

    fn maintenance(&self) -> Option<&dyn Maintenance> {
        self.store.maintenance()
    }
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

/// The answer to a request, as far as the cache knows it.
enum CachedAnswer {
    Denied(Decision),
    /// A denial has expired.
    Past,
    Nothing,
}

impl CachedAnswer {
    fn denied(self) -> Option<Decision> {
        match self {
            Self::Denied(decision) => Some(decision),
            Self::Past | Self::Nothing => None,
        }
    }
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

    /// Looks up the answer to a request.
    #[inline]
    fn find(&self, take: &Take) -> CachedAnswer {
        let Some(Limit { key, rule, .. }) = take.plain().filter(|_| take.max_wait.is_zero()) else {
            return CachedAnswer::Nothing;
        };
        self.cache.get(key).map_or(CachedAnswer::Nothing, |denial| denial.answer(take, rule))
    }

    /// Notes the time and the key's count, before the request is sent to the store.
    fn question(&self, take: &Take) -> QueryStamp {
        // Reads the count before the clock, so that no forgetting between the two is missed.
        let forgotten = self.forgotten.times(self.hash(take.key()));
        QueryStamp { sent: Instant::now(), forgotten }
    }

    /// Keeps a denial of the store.
    fn learn(&self, take: &Take, question: QueryStamp, outcome: &Outcome) {
        let Some(denial) = outcome.as_ref().ok().and_then(|decision| Denial::of(take, question.sent, decision)) else {
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
        if self.forgotten.times(self.hash(key)) != question.forgotten {
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
        let until = sent + decision.retry_after().min(MAX_AGE);
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
            decision: decision.clone().by(Source::DenyCache),
        })
    }

    /// The answer to a request now.
    #[inline]
    fn answer(self, take: &Take, rule: &Rule) -> CachedAnswer {
        if !self.covers(take, rule) || needed(take) > self.possible {
            return CachedAnswer::Nothing;
        }
        let now = Instant::now();
        if now < self.until {
            CachedAnswer::Denied(self.decision.aged(now - self.answered))
        } else {
            CachedAnswer::Past
        }
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
        take.cost > 0 && needed(take) >= self.needed && *rule == self.rule
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
        let under_way = {
            let mut probes = self.0.lock();
            let under_way = probes.get(key).cloned();
            if under_way.is_none() {
                let ended = Arc::new(Semaphore::new(0));
                probes.insert(key.clone(), Arc::clone(&ended));
                return Some(Probe { probes: self, key, ended });
            }
            under_way
        };
        let under_way = under_way?;
        // The semaphore has no permits: `acquire` returns when it is closed.
        if timeout(PROBE_TIMEOUT, under_way.acquire()).await.is_err() {
            self.end(key, &under_way);
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
