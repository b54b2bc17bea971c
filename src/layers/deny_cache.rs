use smallvec::SmallVec;

use crate::model::{Adjusted, Adjustment, Decision, Error, HoldBack, Key, Outcome, Rule, Take, TakeError};
use crate::store::{Capabilities, Maintenance, Store};

mod denial;
mod denials;
mod forgotten;
mod probes;

use denials::{Denials, Known};
use probes::Probes;

/// A store that answers from memory what the store beneath has just denied, so that an attack costs the database at most
/// one call for each key, process and second, and two for each grant: that one, and the one that is denied next. (A grant does
/// not say whether the next request would be denied: it may be under a trial, whose mode is shadow.)
///
/// When there is no token, requests for the same key under the same rule that need as many tokens or more, with those that they
/// leave to others, are denied from memory until the first of them would be granted, and for a second at most. That counts from
/// when the denied request was sent, so whatever makes tokens come earlier (a refund elsewhere, a reset, an upgrade, a
/// switched mode) is seen within a second; [`adjust`](Store::adjust) of this store is seen at once.
///
/// When that time is over, one request asks the store, and the others that come meanwhile wait for its answer, 100 ms at
/// most: if it is denied, so are they; if it is granted, they ask, too.
///
/// Nothing is ever denied that the store would have granted then, but for that second. A request for fewer tokens than
/// were denied goes to the store, and so does one for more than the store has said to be possible: more than a bucket ever
/// holds stays an error. Each costs a call of its own. [`retry_after`](crate::Decision::retry_after) is that of the denied
/// request, and too short for those that ask for more.
///
/// Requests that may wait, that have an id, that name several buckets, or that are under a sliding window are the store's
/// to decide. Grants, errors and the answers of a [`Fallback`](crate::Fallback) are never kept. Answers from memory have the
/// source [`DenyCache`](crate::model::Source::DenyCache).
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
    denials: Denials,
    probes: Probes,
}

impl<S> DenyCache<S> {
    pub(crate) const MOST_KEYS: usize = 65_536;

    /// Over a store.
    pub fn new(store: S) -> Self {
        Self { store, denials: Denials::new(Self::MOST_KEYS), probes: Probes::default() }
    }

    /// How many keys it remembers at most; 65,536 if not said. Beyond that, those that are asked for least are forgotten:
    /// then the store is asked again. A key takes about 250 bytes.
    #[must_use]
    pub fn most_keys(self, most_keys: usize) -> Self {
        Self { denials: Denials::new(most_keys), ..self }
    }

    /// How many keys it remembers.
    #[must_use]
    pub fn len(&self) -> usize {
        self.denials.len()
    }

    /// Whether it remembers no key.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Forgets what was denied for a key, for instance after a reset: the next request for it asks the store. A limiter over
    /// this one has a cache of its own, unless it is built [without](crate::LimiterBuilder::without_deny_cache).
    pub fn forget(&self, key: &Key) {
        self.denials.forget(key);
    }

    /// The store beneath.
    #[must_use]
    pub fn store(&self) -> &S {
        &self.store
    }
}

impl<S: Store> DenyCache<S> {
    /// When a denial ends, one request asks the store, and the others wait for its answer.
    async fn take_or_wait_for_probe(&self, take: &Take) -> Result<Outcome, Error> {
        let probe = match self.denials.find(take) {
            Known::Denied(decision) => return Ok(Ok(decision)),
            Known::Nothing => None,
            Known::Past => {
                let probe = self.probes.begin(take.key()).await;
                // Another probe may have found it out meanwhile.
                if let Some(decision) = self.denials.find(take).denied() {
                    return Ok(Ok(decision));
                }
                probe
            }
        };
        let question = self.denials.question(take);
        let outcome = self.store.take_one(take).await?;
        self.denials.learn(take, question, &outcome);
        if probe.is_some() && matches!(self.denials.find(take), Known::Past) {
            // Now there are tokens, or more every moment: nobody need ask first.
            self.denials.remove(take.key());
        }
        Ok(outcome)
    }
}

impl<S: Store> Store for DenyCache<S> {
    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    /// Asks the store for all that memory does not answer in one call, in their order.
    async fn take(&self, takes: &[Take]) -> Result<Vec<Outcome>, Error> {
        if let [take] = takes {
            return Ok(vec![self.take_or_wait_for_probe(take).await?]);
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

    fn try_take(&self, take: &Take) -> Option<Outcome> {
        match self.denials.find(take) {
            Known::Denied(decision) => Some(Ok(decision)),
            // What is denied is asked for once more, to be remembered.
            Known::Nothing => self.store.try_take(take).filter(|now| now.as_ref().is_ok_and(Decision::is_granted)),
            // One of those who come now asks the store for all of them.
            Known::Past => None,
        }
    }

    /// Forgets the keys, whatever comes of it.
    async fn adjust(&self, adjustments: &[Adjustment]) -> Result<Vec<Result<Adjusted, TakeError>>, Error> {
        let _adjusted = Adjusting(&self.denials, adjustments);
        self.store.adjust(adjustments).await
    }

    /// Forgets the key: what it denied stays denied, but for longer.
    async fn hold_back(&self, key: &Key, rule: &Rule, hold: HoldBack) -> Result<bool, Error> {
        let lowered = self.store.hold_back(key, rule, hold).await;
        self.denials.forget(key);
        lowered
    }

    fn maintenance(&self) -> Option<&dyn Maintenance> {
        self.store.maintenance()
    }
}

/// A call that gives tokens back. However it ends, dropped too, they may be there.
struct Adjusting<'a>(&'a Denials, &'a [Adjustment]);

impl Drop for Adjusting<'_> {
    fn drop(&mut self) {
        for adjustment in self.1 {
            self.0.forget(&adjustment.receipt.key);
        }
    }
}
