use std::time::Duration;

use smallvec::SmallVec;
use uuid::Uuid;

use crate::bucket::{LONGEST_WAIT_NS, Request};
use crate::quota::span::nanoseconds;
use crate::{Key, Quota, QuotaBuilder, QuotaError, TakeError, Window};

/// A request for tokens of one bucket, or of several: then from all of them or from none.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Key, Quota, Rule, Take};
///
/// let user = Take::from(Key::try_from("user:42")?).cost(3).keep(20).max_wait(Duration::from_millis(50));
/// let both = user.and(Key::try_from("tenant:7")?, Rule::try_from(Quota::per_day(1000))?);
/// assert_eq!((both.keys().count(), both.tokens(), both.kept()), (2, 3, 20));
/// # Ok::<(), tollgate::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Take {
    pub(crate) limits: SmallVec<[(Key, Rule); 1]>,
    pub(crate) cost: u64,
    pub(crate) max_wait: Duration,
    pub(crate) keep: u64,
    pub(crate) id: Option<Uuid>,
    pub(crate) hold: Duration,
    /// Whether the first bucket is the limiter's own, and not one that others share with it.
    pub(crate) own: bool,
    pub(crate) refundable: bool,
    /// Whether what is denied passes all the same, and is told so.
    pub(crate) shadow: bool,
    pub(crate) if_locked: IfLocked,
}

/// What becomes of a call if another transaction holds one of the buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IfLocked {
    Retry,
    Fail,
}

impl Take {
    /// How many tokens to take; 1 if not said.
    #[must_use]
    pub fn cost(self, cost: u64) -> Self {
        Self { cost, ..self }
    }

    /// How long the caller would wait for them; not at all if not said. A year at most.
    #[must_use]
    pub fn max_wait(self, max_wait: Duration) -> Self {
        Self { max_wait, ..self }
    }

    /// How many tokens must remain for others; none if not said.
    #[must_use]
    pub fn keep(self, keep: u64) -> Self {
        Self { keep, ..self }
    }

    /// Under which terms; the bucket's own if not said. Of several buckets, the last one named.
    #[must_use]
    pub fn rule(mut self, rule: Rule) -> Self {
        if let Some((_, last)) = self.limits.last_mut() {
            *last = rule;
        }
        self
    }

    /// Another bucket that the same number of tokens is taken from: from all or from none, in one call.
    ///
    /// A bucket named twice is named once, under the rule given last.
    #[must_use]
    pub fn and(mut self, key: Key, rule: Rule) -> Self {
        self.own &= *self.key() != key;
        self.limits.retain(|(other, _)| *other != key);
        self.limits.push((key, rule));
        self
    }

    /// Gives the request an id, which is remembered for `hold`: repeated with it, because nobody knows what became of
    /// the first, it takes nothing more. It can also be settled until then.
    ///
    /// A grant writes one row more for each bucket; a denial is not remembered.
    #[must_use]
    pub fn id(self, id: Uuid, hold: Duration) -> Self {
        Self { id: Some(id), hold, ..self }
    }

    /// Its tokens may have to be given back, for instance if what they are for fails: then they are the store's, and none
    /// that a [`Lease`](crate::Lease) took ahead, of which nothing can be given back.
    #[must_use]
    pub fn refundable(self) -> Self {
        Self { refundable: true, ..self }
    }

    /// If another transaction holds one of the buckets, it is not tried again: a call of which each request says so is
    /// [`Contended`](crate::Error::Contended) then, with nothing taken, and the caller can ask for each by itself.
    ///
    /// A call for one request, for one bucket, or under a sliding window is tried again all the same.
    #[must_use]
    pub fn fail_if_locked(self) -> Self {
        Self { if_locked: IfLocked::Fail, ..self }
    }

    /// The buckets that it takes from, and under which terms: for a [`Store`](crate::Store) or a log of your own, as what
    /// follows is.
    pub fn limits(&self) -> impl Iterator<Item = (&Key, &Rule)> {
        self.limits.iter().map(|(key, rule)| (key, rule))
    }

    /// How many tokens it takes from each.
    #[must_use]
    pub fn tokens(&self) -> u64 {
        self.cost
    }

    /// How many must remain for others.
    #[must_use]
    pub fn kept(&self) -> u64 {
        self.keep
    }

    /// How long the caller would wait for them.
    #[must_use]
    pub fn longest_wait(&self) -> Duration {
        self.max_wait
    }

    /// Whether it [fails](Self::fail_if_locked) if another transaction holds one of the buckets.
    #[must_use]
    pub fn fails_if_locked(&self) -> bool {
        self.if_locked == IfLocked::Fail
    }

    /// Its id, if it has one.
    #[must_use]
    pub fn request_id(&self) -> Option<Uuid> {
        self.id
    }

    /// The buckets that it takes from.
    pub fn keys(&self) -> impl Iterator<Item = &Key> {
        self.limits.iter().map(|(key, _)| key)
    }

    /// The bucket; of several, the first.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.limits[0].0
    }

    /// The bucket and its rule, if it asks for the tokens of one bucket and no store has to remember it: what may be
    /// answered without asking the store.
    #[inline]
    pub(crate) fn plain(&self) -> Option<(&Key, &Rule)> {
        match &self.limits[..] {
            [(_, Rule::Window(_))] => None,
            [(key, rule)] if self.id.is_none() => Some((key, rule)),
            _ => None,
        }
    }

    /// The same, if it may also be answered with tokens that cannot be given back.
    #[inline]
    pub(crate) fn lendable(&self) -> Option<(&Key, &Rule)> {
        self.plain().filter(|_| !self.refundable)
    }

    /// Whether it is decided now and not remembered, so that it can be one of many in a call.
    pub(crate) fn is_momentary(&self) -> bool {
        self.max_wait.is_zero() && self.id.is_none()
    }

    /// Whether nothing limits it.
    pub(crate) fn is_unlimited(&self) -> bool {
        self.limits.iter().all(|(_, rule)| *rule == Rule::Quota(Quota::unlimited()))
    }

    /// The same without the buckets that have no limit, and the places of those that are left; `None` if all have one.
    pub(crate) fn limited(&self) -> Option<(Self, SmallVec<[usize; 4]>)> {
        let has_limit = |(_, rule): &(Key, Rule)| *rule != Rule::Quota(Quota::unlimited());
        if self.limits.iter().all(has_limit) {
            return None;
        }
        let mut limited = self.clone();
        limited.limits.retain(|limit| has_limit(limit));
        let places = self.limits.iter().enumerate().filter(|(_, limit)| has_limit(limit));
        Some((limited, places.map(|(place, _)| place).collect()))
    }

    /// In the arithmetic's units.
    #[inline]
    pub(crate) fn request(&self) -> Result<Request, TakeError> {
        if self.cost == 0 {
            return Err(TakeError::NoTokens);
        }
        if self.limits.len() > 1
            && let Some((key, _)) = self.limits.iter().find(|(_, rule)| matches!(rule, Rule::Window(_)))
        {
            return Err(TakeError::WindowWithOthers(key.clone()));
        }
        // Larger figures than any bucket holds stay so; half of the range keeps their sums within it.
        let tokens = |n: u64| i64::try_from(n).unwrap_or(i64::MAX).min(i64::MAX / 2);
        let max_wait = nanoseconds(self.max_wait).min(LONGEST_WAIT_NS);
        Ok(Request { cost: tokens(self.cost), max_wait, keep: tokens(self.keep) })
    }

    /// The sliding window that it is under, if it is.
    pub(crate) fn window(&self) -> Option<&Window> {
        match &self.limits[0].1 {
            Rule::Window(window) => Some(window),
            _ => None,
        }
    }

    /// For how many nanoseconds the id is remembered.
    pub(crate) fn hold_ns(&self) -> i64 {
        nanoseconds(self.hold).min(LONGEST_WAIT_NS)
    }
}

impl Take {
    /// All that a limiter says, in one move.
    #[inline]
    pub(crate) fn under(key: Key, rule: Rule, cost: u64, keep: u64) -> Self {
        Self {
            limits: SmallVec::from_buf([(key, rule)]),
            cost,
            max_wait: Duration::ZERO,
            keep,
            id: None,
            hold: Duration::ZERO,
            own: true,
            refundable: false,
            shadow: false,
            if_locked: IfLocked::Retry,
        }
    }
}

impl From<Key> for Take {
    fn from(key: Key) -> Self {
        Self::under(key, Rule::Provisioned, 1, 0)
    }
}

/// Whose terms hold for a request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Rule {
    /// The bucket's own, or its plan's. It must have been provisioned.
    Provisioned,
    /// Those of a plan, whose row can be changed at any time. The first request makes the bucket, full.
    Plan(Key),
    /// These. The first request makes the bucket, full; a bucket made under another quota changes to this one
    /// and keeps its tokens.
    Quota(Quota),
    /// At most so many in any interval. Windows and buckets of the same key are two. The first request makes the window;
    /// one made under other terms changes to these and keeps its counts.
    Window(Window),
}

impl Rule {
    /// The terms that it brings along.
    #[cfg(feature = "_sql")]
    pub(crate) fn quota(&self) -> Option<&Quota> {
        match self {
            Self::Quota(quota) => Some(quota),
            _ => None,
        }
    }

    /// The plan that it names.
    pub(crate) fn plan(&self) -> Option<&Key> {
        match self {
            Self::Plan(plan) => Some(plan),
            _ => None,
        }
    }
}

impl From<Window> for Rule {
    fn from(window: Window) -> Self {
        Self::Window(window)
    }
}

impl From<Quota> for Rule {
    fn from(quota: Quota) -> Self {
        Self::Quota(quota)
    }
}

impl TryFrom<QuotaBuilder> for Rule {
    type Error = QuotaError;

    fn try_from(builder: QuotaBuilder) -> Result<Self, QuotaError> {
        builder.build().map(Self::Quota)
    }
}
