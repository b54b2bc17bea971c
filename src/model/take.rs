use std::time::Duration;

use smallvec::SmallVec;
use uuid::Uuid;

use crate::model::bucket::{BucketRequest, MAX_WAIT_NS};
use crate::model::quota::nanoseconds;
use crate::model::receipt::random_id;
use crate::model::{Key, Limit, Rule, TakeError, Window};

/// A request for tokens of one bucket, or of several: then from all of them or from none.
///
/// Built by [`Limiter::request`](crate::Limiter::request), or from a [`Key`] or a [`Limit`]: `Take::from(key).rule(rule)`.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Key, Quota, Rule, Take};
///
/// let user = Take::from(Key::try_from("user:42")?).cost(3).min_remaining(20).max_wait(Duration::from_millis(50));
/// let both = user.and(Key::try_from("tenant:7")?, Rule::try_from(Quota::per_day(1000))?);
/// assert_eq!((both.keys().count(), both.tokens(), both.required_remaining()), (2, 3, 20));
/// # Ok::<(), tollgate::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Take {
    pub(crate) limits: SmallVec<[Limit; 1]>,
    /// Of the limits that have none of their own, as what to keep is.
    pub(crate) cost: u64,
    pub(crate) max_wait: Duration,
    pub(crate) min_remaining: u64,
    pub(crate) id: Option<Uuid>,
    pub(crate) hold: Duration,
    pub(crate) id_of: IdOf,
    /// Whether the first bucket is the limiter's own, and not one that others share with it.
    pub(crate) own: bool,
    pub(crate) refundable: bool,
    /// Whether what is denied passes all the same, and is told so.
    pub(crate) shadow: bool,
}

/// Who made the id of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IdOf {
    /// Who may repeat the request with it.
    Caller,
    /// For that request alone.
    Crate,
}

impl Take {
    /// How many tokens to take from each bucket that has no [cost of its own](Limit::cost); 1 if not said.
    #[must_use]
    pub fn cost(mut self, cost: u64) -> Self {
        self.cost = cost;
        self.limits.iter_mut().for_each(|limit| limit.follow(cost, self.min_remaining));
        self.with_limit_values()
    }

    /// How long the caller would wait for them; not at all if not said. A year at most.
    #[must_use]
    pub fn max_wait(self, max_wait: Duration) -> Self {
        Self { max_wait, ..self }
    }

    /// How many tokens must remain for others, in each bucket that has no [such number](Limit::min_remaining) and no cost of its own; none
    /// if not said.
    #[must_use]
    pub fn min_remaining(mut self, min_remaining: u64) -> Self {
        self.min_remaining = min_remaining;
        self.limits.iter_mut().for_each(|limit| limit.follow(self.cost, min_remaining));
        self.with_limit_values()
    }

    /// Under which terms; the bucket's own if not said. Of several buckets, the last one named.
    #[must_use]
    pub fn rule(mut self, rule: Rule) -> Self {
        if let Some(last) = self.limits.last_mut() {
            last.rule = rule;
        }
        self
    }

    /// Another bucket that the same number of tokens is taken from: from all or from none, in one call.
    ///
    /// A bucket named twice is named once, under the rule given last.
    #[must_use]
    pub fn and(self, key: Key, rule: Rule) -> Self {
        self.and_limit(Limit::new(key, rule))
    }

    /// Another bucket, as by [`and`](Self::and), of which perhaps not the same number of tokens is taken: a call of a model
    /// is one request, and so many tokens.
    ///
    /// ```
    /// use tollgate::{Key, Limit, Rule, Take};
    ///
    /// let requests = Limit::new(Key::try_from("account:requests")?, Rule::try_from("50/min")?);
    /// let tokens = Limit::new(Key::try_from("account:tokens")?, Rule::try_from("40000/min")?);
    /// let call = Take::from(requests).and_limit(tokens.cost(1200));
    /// assert_eq!(call.limits().map(Limit::tokens).collect::<Vec<_>>(), [1, 1200]);
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    #[must_use]
    pub fn and_limit(mut self, mut limit: Limit) -> Self {
        self.own &= self.key() != limit.key();
        limit.follow(self.cost, self.min_remaining);
        self.limits.retain(|other| other.key != limit.key);
        self.limits.push(limit);
        self.with_limit_values()
    }

    /// The same at another cost, whatever its only limit says for itself.
    pub(crate) fn costing(mut self, cost: u64) -> Self {
        self.cost = cost;
        self.limits.iter_mut().for_each(|limit| limit.cost = cost);
        self
    }

    /// What its only limit says for itself, the request says.
    pub(crate) fn with_limit_values(self) -> Self {
        match self.limits[..] {
            [Limit { cost, min_remaining, .. }] => Self { cost, min_remaining, ..self },
            _ => self,
        }
    }

    /// Gives the request an id, which is remembered for `hold`: repeated with it, because nobody knows what became of
    /// the first, it takes nothing more. It can also be settled until then. No id is remembered for longer than 366 days.
    ///
    /// A grant writes one row more for each bucket; a denial is not remembered. Who waits with an id and gives up, by a deadline
    /// or by dropping the future, has not given its tokens back: whoever repeats the request goes on with its turn.
    #[must_use]
    pub fn id(self, id: Uuid, hold: Duration) -> Self {
        Self { id: Some(id), hold, id_of: IdOf::Caller, ..self }
    }

    /// Whether its id was made for it alone, so that nobody repeats it.
    pub(crate) fn has_fresh_id(&self) -> bool {
        self.id_of == IdOf::Crate
    }

    /// Gives the request a random [id](Self::id), so that it can be settled until `hold` has passed.
    ///
    /// For requests that nobody repeats: a repetition, also of a clone, takes nothing. A [`MemoryStore`](crate::MemoryStore)
    /// forgets the id once it is settled, and a [local fallback](crate::Fallback::Local) does not remember it.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Limiter, MemoryStore};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tollgate::Error> {
    /// let limiter = Limiter::new(MemoryStore::new(), "40000/min")?;
    /// let estimate = limiter.request("account:tokens")?.cost(1200).fresh_id(Duration::from_secs(600));
    /// let call = limiter.reserve_all(&estimate).await?;
    /// call.settle(1087).await?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn fresh_id(self, hold: Duration) -> Self {
        Self { id: Some(random_id()), hold, id_of: IdOf::Crate, ..self }
    }

    /// Its tokens may have to be given back, for instance if what they are for fails: then they are the store's, and none
    /// that a [`Lease`](crate::layers::Lease) took ahead, of which nothing can be given back.
    #[must_use]
    pub fn refundable(self) -> Self {
        Self { refundable: true, ..self }
    }

    /// Marks the request as a trial, which the caller lets pass even if it is denied.
    ///
    /// The [`Decision`](crate::Decision) stays a denial. Metrics, traces and
    /// [denial counts](crate::LimiterBuilder::count_denials) report it in mode [`Shadow`](crate::Mode::Shadow).
    #[must_use]
    pub fn shadow(self) -> Self {
        Self { shadow: true, ..self }
    }

    /// The buckets that it takes from, how many tokens, and under which terms: for a [`Store`](crate::Store) or a log of your
    /// own, as what follows is.
    pub fn limits(&self) -> impl Iterator<Item = &Limit> {
        self.limits.iter()
    }

    /// How many tokens it takes from each bucket that has no cost of its own.
    #[must_use]
    pub fn tokens(&self) -> u64 {
        self.cost
    }

    /// How many must remain for others, in each that has no such number of its own.
    #[must_use]
    pub fn required_remaining(&self) -> u64 {
        self.min_remaining
    }

    /// How long the caller would wait for them.
    #[must_use]
    pub fn wait_limit(&self) -> Duration {
        self.max_wait
    }

    /// Its id, if it has one.
    #[must_use]
    pub fn request_id(&self) -> Option<Uuid> {
        self.id
    }

    /// The buckets that it takes from.
    pub fn keys(&self) -> impl Iterator<Item = &Key> {
        self.limits.iter().map(Limit::key)
    }

    /// The bucket; of several, the first.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.limits[0].key
    }

    /// The only limit, if it asks for the tokens of one bucket and no store has to remember it: what may be answered without
    /// asking the store.
    #[inline]
    pub(crate) fn plain(&self) -> Option<&Limit> {
        match &self.limits[..] {
            [Limit { rule: Rule::Window(_), .. }] => None,
            [limit] if self.id.is_none() => Some(limit),
            _ => None,
        }
    }

    /// The same, if it may also be answered with tokens that cannot be given back.
    #[inline]
    pub(crate) fn lendable(&self) -> Option<&Limit> {
        self.plain().filter(|_| !self.refundable)
    }

    /// Whether it is decided now and not remembered, so that it can be one of many in a call.
    pub(crate) fn is_momentary(&self) -> bool {
        self.max_wait.is_zero() && self.id.is_none()
    }

    /// Whether nothing limits it.
    pub(crate) fn is_unlimited(&self) -> bool {
        self.limits.iter().all(Limit::is_unlimited)
    }

    /// The same without the buckets that have no limit, and the places of those that are left; `None` if all have one.
    pub(crate) fn limited(&self) -> Option<(Self, SmallVec<[usize; 4]>)> {
        let has_limit = |limit: &Limit| !limit.is_unlimited();
        if self.limits.iter().all(has_limit) {
            return None;
        }
        let mut limited = self.clone();
        limited.limits.retain(|limit| has_limit(limit));
        let places = self.limits.iter().enumerate().filter(|(_, limit)| has_limit(limit));
        Some((limited.with_limit_values(), places.map(|(place, _)| place).collect()))
    }

    /// For its only bucket, or for the first of several, in the arithmetic's units.
    #[inline]
    pub(crate) fn request(&self) -> Result<BucketRequest, TakeError> {
        if self.limits.iter().any(|limit| limit.cost == 0) {
            return Err(TakeError::ZeroCost);
        }
        if self.limits.len() > 1
            && let Some(window) = self.limits.iter().find(|limit| matches!(limit.rule, Rule::Window(_)))
        {
            return Err(TakeError::WindowNotAlone(window.key.clone()));
        }
        Ok(self.request_at(0))
    }

    /// For the bucket at a place, if it was found to be possible by [`request`](Self::request).
    #[inline]
    pub(crate) fn request_at(&self, place: usize) -> BucketRequest {
        // Larger figures than any bucket holds stay so; half of the range keeps their sums within it.
        let tokens = |n: u64| i64::try_from(n).unwrap_or(i64::MAX).min(i64::MAX / 2);
        let Limit { cost, min_remaining, .. } = self.limits[place];
        BucketRequest {
            cost: tokens(cost),
            max_wait: nanoseconds(self.max_wait).min(MAX_WAIT_NS),
            min_remaining: tokens(min_remaining),
        }
    }

    /// The sliding window that it is under, if it is.
    pub(crate) fn window(&self) -> Option<&Window> {
        match &self.limits[0].rule {
            Rule::Window(window) => Some(window),
            _ => None,
        }
    }

    /// For how many nanoseconds the id is remembered.
    pub(crate) fn hold_ns(&self) -> i64 {
        nanoseconds(self.hold).min(MAX_WAIT_NS)
    }
}

impl Take {
    /// All that a limiter says, in one move.
    #[inline]
    pub(crate) fn under(key: Key, rule: Rule, cost: u64, min_remaining: u64) -> Self {
        Self::of(Limit::of(key, rule, cost, min_remaining))
    }

    #[inline]
    pub(crate) fn of(limit: Limit) -> Self {
        Self {
            cost: limit.cost,
            max_wait: Duration::ZERO,
            min_remaining: limit.min_remaining,
            limits: SmallVec::from_buf([limit]),
            id: None,
            hold: Duration::ZERO,
            id_of: IdOf::Caller,
            own: true,
            refundable: false,
            shadow: false,
        }
    }
}

impl From<Key> for Take {
    fn from(key: Key) -> Self {
        Self::under(key, Rule::Provisioned, 1, 0)
    }
}

impl From<Limit> for Take {
    /// A request whose cost is the limit's, and what it keeps, too: also of buckets added to it that say no cost of their own.
    fn from(limit: Limit) -> Self {
        Self::of(limit)
    }
}
