//! A request for tokens of one or more buckets.

use std::time::Duration;

use smallvec::SmallVec;
use uuid::Uuid;

use crate::model::bucket::{BucketRequest, MAX_WAIT_NS};
use crate::model::id::{IdOf, random_id};
use crate::model::quota::nanoseconds;
use crate::model::{Key, Limit, LimitName, Limits, Mode, Rule, TakeError, Window};

/// A request for tokens of one or more buckets. It takes tokens from all of them, or from none.
///
/// Build it by [`Limiter::request`](crate::Limiter::request), or from a [`Key`] or a [`Limit`]: `Take::from(key).rule(rule)`.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Key, Quota, Rule, Take};
///
/// let user = Take::from(Key::try_from("user:42")?).cost(3).min_remaining(20).max_wait(Duration::from_millis(50));
/// let both = user.and(Key::try_from("tenant:7")?, Rule::try_from(Quota::per_day(1000))?);
/// assert_eq!((both.keys().count(), both.get_cost(), both.get_min_remaining()), (2, 3, 20));
/// # Ok::<(), tollgate::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Take {
    pub(crate) limits: SmallVec<[Limit; 1]>,
    /// The place of each limit in the caller's request, once it is expanded.
    pub(crate) indices: SmallVec<[usize; 2]>,
    /// The costs with a name.
    pub(crate) costs: Vec<(LimitName, u64)>,
    /// The cost of the limits that have no cost of their own.
    pub(crate) cost: u64,
    pub(crate) max_wait: Duration,
    /// The minimum remaining of the limits that have none of their own.
    pub(crate) min_remaining: u64,
    pub(crate) id: Option<Uuid>,
    pub(crate) remember_for: Duration,
    pub(crate) id_of: IdOf,
    /// Whether the first bucket is under the limiter's own rule, and not under a limit that the request adds.
    pub(crate) is_limiters_rule: bool,
    pub(crate) refundable: bool,
    /// Whether the caller lets the request pass even if it is denied.
    pub(crate) shadow: bool,
}

impl Take {
    /// Sets how many tokens to take from each bucket that has no [cost of its own](Limit::cost). Default: 1.
    #[must_use]
    pub fn cost(mut self, cost: u64) -> Self {
        self.cost = cost;
        self.limits.iter_mut().for_each(|limit| limit.follow(cost, self.min_remaining));
        self.with_limit_values()
    }

    /// Sets the longest wait for the tokens, at most 366 days. Default: 0, so that the request is denied if the tokens are not
    /// available now.
    #[must_use]
    pub fn max_wait(self, max_wait: Duration) -> Self {
        Self { max_wait, ..self }
    }

    /// Sets how many tokens must remain for other requests. Default: 0.
    ///
    /// Applies to each bucket that has no [minimum](Limit::min_remaining) and no cost of its own.
    #[must_use]
    pub fn min_remaining(mut self, min_remaining: u64) -> Self {
        self.min_remaining = min_remaining;
        self.limits.iter_mut().for_each(|limit| limit.follow(self.cost, min_remaining));
        self.with_limit_values()
    }

    /// Sets a cost with a name, for the limits that [count it](crate::model::NamedLimit::cost): a call of a language model takes
    /// one request and some thousand tokens.
    ///
    /// A limit that counts a cost which the request does not state is [`TakeError::MissingCost`], and a cost that no limit counts
    /// [`TakeError::UnknownCost`]. Nothing is taken then.
    ///
    /// ```
    /// use tollgate::{Limiter, MemoryStore, model::LimitName};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tollgate::Error> {
    /// let limiter = Limiter::new(MemoryStore::new(), ["60/min", "tokens: 40000/min cost tokens"])?;
    /// let call = limiter.request("account:7")?.cost_of(LimitName::try_from("tokens")?, 1200);
    /// let decision = limiter.decide(&call).await?;
    /// assert_eq!(decision.each().iter().map(|one| one.remaining()).collect::<Vec<_>>(), [Some(59), Some(38_800)]);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn cost_of(mut self, name: LimitName, cost: u64) -> Self {
        self.costs.retain(|(other, _)| *other != name);
        self.costs.push((name, cost));
        self
    }

    /// Sets the rule of the bucket named last. Default: [`Rule::Provisioned`], the bucket's own limit.
    #[must_use]
    pub fn rule(mut self, rule: Rule) -> Self {
        if let Some(last) = self.limits.last_mut() {
            last.rule = rule;
        }
        self
    }

    /// Adds a bucket from which the same number of tokens is taken. The request takes from all buckets or from none, in one
    /// call of the store.
    ///
    /// Two limits of one key are separate buckets: the second has the id `2` after the key, as [`Limits`] without names have.
    #[must_use]
    pub fn and(self, key: Key, rule: Rule) -> Self {
        self.and_limit(Limit::new(key, rule))
    }

    /// Adds a bucket, as [`and`](Self::and) does, with a cost of its own. A call of a language model, for instance, takes one
    /// token of a limit on requests and many of a limit on model tokens.
    ///
    /// ```
    /// use tollgate::{Key, Limit, Rule, Take};
    ///
    /// let requests = Limit::new(Key::try_from("account:requests")?, Rule::try_from("50/min")?);
    /// let tokens = Limit::new(Key::try_from("account:tokens")?, Rule::try_from("40000/min")?);
    /// let call = Take::from(requests).and_limit(tokens.cost(1200));
    /// assert_eq!(call.limits().map(Limit::get_cost).collect::<Vec<_>>(), [1, 1200]);
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    #[must_use]
    pub fn and_limit(mut self, mut limit: Limit) -> Self {
        limit.follow(self.cost, self.min_remaining);
        self.limits.push(limit);
        self.with_limit_values()
    }

    /// The plans that the request names.
    #[inline]
    pub(crate) fn plans(&self) -> impl Iterator<Item = &Key> {
        self.limits.iter().filter_map(|limit| limit.rule.plan())
    }

    /// The request with one limit for each bucket: those of its plans and [rules](Rule::Limits). `None`: it has no others already.
    #[inline]
    pub(crate) fn expanded(&self, limits_of: impl Fn(&Key) -> Option<Limits>) -> Option<Self> {
        match &self.limits[..] {
            [Limit { rule: Rule::Provisioned | Rule::Quota(_) | Rule::Window(_), .. }] if self.costs.is_empty() => None,
            // A store that forwards requests expands them once more.
            _ if !self.indices.is_empty() => None,
            _ => self.expand(limits_of),
        }
    }

    fn expand(&self, limits_of: impl Fn(&Key) -> Option<Limits>) -> Option<Self> {
        let several = |limit: &Limit| match &limit.rule {
            Rule::Limits(limits) => Some(limits.clone()),
            rule => limits_of(rule.plan()?).filter(Limits::are_named),
        };
        let each: SmallVec<[Option<Limits>; 4]> = self.limits.iter().map(several).collect();
        let is_repeated = |place: usize, key: &Key| self.limits[..place].iter().any(|other| other.key == *key);
        let has_repeated = self.keys().enumerate().any(|(place, key)| is_repeated(place, key));
        if !has_repeated && self.costs.is_empty() && each.iter().all(Option::is_none) {
            return None;
        }
        let mut take = Self { limits: SmallVec::new(), indices: SmallVec::new(), ..self.clone() };
        for (index, (limit, limits)) in self.limits.iter().zip(&each).enumerate() {
            match (limits, limit.rule.plan()) {
                (None, _) => take.push(index, limit.clone()),
                (Some(limits), None) => {
                    for (key, named) in limits.buckets(&limit.key) {
                        take.push(index, limit.part(key, Rule::Quota(named.quota), named));
                    }
                }
                (Some(limits), Some(plan)) => {
                    for ((key, named), (plan, _)) in limits.buckets(&limit.key).zip(limits.buckets(plan)) {
                        take.push(index, limit.part(key, Rule::Plan(plan), named));
                    }
                }
            }
        }
        Some(take.with_limit_values())
    }

    /// Adds a limit in a bucket of its own, at its named cost.
    fn push(&mut self, index: usize, mut limit: Limit) {
        let is_used = |key: &Key| self.limits.iter().any(|other| other.key == *key);
        if is_used(&limit.key) {
            let others = (2..).map(|nth: usize| limit.key.with_suffix(&nth.to_string()));
            limit.key = others.into_iter().find(|key| !is_used(key)).expect("a request has fewer limits");
        }
        limit.follow_named(&self.costs);
        self.limits.push(limit);
        self.indices.push(index);
    }

    /// The request with the limits that a charge is about: those that count its named costs, or else its cost.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no such limit.
    pub(crate) fn chargeable(&self) -> Result<Self, TakeError> {
        let mut take = self.clone();
        take.limits.retain(|limit| if limit.cost_name().is_some() { limit.own_cost } else { self.costs.is_empty() });
        let missing = || self.limits.iter().find_map(|limit| Some((limit, limit.cost_name()?)));
        match missing().filter(|_| take.limits.is_empty()) {
            Some((limit, cost)) => Err(TakeError::MissingCost { key: limit.key.without_limit(), cost: cost.clone() }),
            None => Ok(take),
        }
    }

    /// The request without its named costs, for an answer that does not depend on its plans.
    pub(crate) fn without_named_costs(&self) -> Self {
        let plain = Self { costs: Vec::new(), ..self.clone() };
        plain.expanded(|_| None).unwrap_or(plain)
    }

    /// The place of a limit in the caller's request.
    pub(crate) fn index_of(&self, place: usize) -> usize {
        self.indices.get(place).copied().unwrap_or(place)
    }

    /// The request at another cost, regardless of its limit's own cost.
    pub(crate) fn costing(mut self, cost: u64) -> Self {
        self.cost = cost;
        self.limits.iter_mut().for_each(|limit| limit.cost = cost);
        self
    }

    /// Copies the cost and the minimum of a single limit to the request.
    pub(crate) fn with_limit_values(self) -> Self {
        match self.limits[..] {
            [Limit { cost, min_remaining, .. }] => Self { cost, min_remaining, ..self },
            _ => self,
        }
    }

    /// Gives the request an id, which the store remembers for `remember_for`: at most 366 days. Until then, a repeated
    /// request takes nothing more, and the request can be settled. Repeat a request if its outcome is unknown.
    ///
    /// A grant writes one more row for each bucket. A denial is not remembered.
    ///
    /// # Cancel safety
    ///
    /// If a wait with an id ends by a deadline, or if its future is dropped, the tokens are not given back. A repeated request
    /// keeps the scheduled time.
    #[must_use]
    pub fn id(self, id: Uuid, remember_for: Duration) -> Self {
        Self { id: Some(id), remember_for, id_of: IdOf::Caller, ..self }
    }

    /// Whether the id was made for this request alone, so that no caller repeats it.
    pub(crate) fn has_fresh_id(&self) -> bool {
        self.id_of == IdOf::Crate
    }

    /// Gives the request a random [id](Self::id), so that it can be settled until `remember_for` has passed.
    ///
    /// Use it for requests that you do not repeat: a repeated request, also a clone, takes nothing. A
    /// [`MemoryStore`](crate::MemoryStore) forgets the id after the settlement. A [local fallback](crate::Fallback::Local)
    /// does not remember it.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Limiter, MemoryStore};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tollgate::Error> {
    /// let limiter = Limiter::new(MemoryStore::new(), "40000/min")?;
    /// let estimate = limiter.request("account:tokens")?.cost(1200).fresh_id(Duration::from_secs(600));
    /// let call = limiter.reserve_request(&estimate).await?;
    /// call.settle(1087).await?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn fresh_id(self, remember_for: Duration) -> Self {
        Self { id: Some(random_id()), remember_for, id_of: IdOf::Crate, ..self }
    }

    /// Makes the tokens refundable, for instance for work that can fail.
    ///
    /// The tokens then come from the store, because the prefetched tokens of a [`Lease`](crate::layers::Lease) cannot be given
    /// back.
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

    /// Returns the limits of the request.
    pub fn limits(&self) -> impl Iterator<Item = &Limit> {
        self.limits.iter()
    }

    /// Returns how many tokens the request takes from each bucket that has no cost of its own.
    #[must_use]
    pub fn get_cost(&self) -> u64 {
        self.cost
    }

    /// Returns how many tokens must remain in each bucket that has no minimum of its own.
    #[must_use]
    pub fn get_min_remaining(&self) -> u64 {
        self.min_remaining
    }

    /// Returns the longest wait for the tokens.
    #[must_use]
    pub fn get_max_wait(&self) -> Duration {
        self.max_wait
    }

    /// Returns the id, if the request has one.
    #[must_use]
    pub fn get_id(&self) -> Option<Uuid> {
        self.id
    }

    /// Returns the keys of all buckets.
    pub fn keys(&self) -> impl Iterator<Item = &Key> {
        self.limits.iter().map(Limit::key)
    }

    /// Returns the key of the first bucket.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.limits[0].key
    }

    /// The single limit, if a layer can answer the request without the store: it has one bucket and no id.
    #[inline]
    pub(crate) fn plain(&self) -> Option<&Limit> {
        match &self.limits[..] {
            [Limit { rule: Rule::Window(_), .. }] => None,
            [limit] if self.id.is_none() => Some(limit),
            _ => None,
        }
    }

    /// The single limit, if a layer can also answer with tokens that cannot be given back.
    #[inline]
    pub(crate) fn lendable(&self) -> Option<&Limit> {
        self.plain().filter(|_| !self.refundable)
    }

    /// Whether the request neither waits nor is remembered, so that it can be one of many in a call.
    pub(crate) fn is_momentary(&self) -> bool {
        self.max_wait.is_zero() && self.id.is_none()
    }

    /// Whether all limits are unlimited.
    pub(crate) fn is_unlimited(&self) -> bool {
        self.limits.iter().all(Limit::is_unlimited)
    }

    /// The request without its unlimited buckets, and the places of the others. `None` if no bucket is unlimited.
    pub(crate) fn limited(&self) -> Option<(Self, SmallVec<[usize; 4]>)> {
        if !self.limits.iter().any(Limit::is_unlimited) {
            return None;
        }
        let places: SmallVec<[usize; 4]> =
            (0..self.limits.len()).filter(|&place| !self.limits[place].is_unlimited()).collect();
        Some((self.part(&places), places))
    }

    /// The request for the limits at some places, all of them enforced.
    pub(crate) fn part(&self, places: &[usize]) -> Self {
        let limit = |&place: &usize| self.limits[place].clone().mode(Mode::Enforce);
        let part = Self {
            limits: places.iter().map(limit).collect(),
            indices: places.iter().map(|&place| self.index_of(place)).collect(),
            costs: self.costs.clone(),
            is_limiters_rule: self.is_limiters_rule && places.first() == Some(&0),
            ..*self
        };
        part.with_limit_values()
    }

    /// Whether a limit has a [mode](Limit::mode) of its own.
    #[inline]
    pub(crate) fn has_modes(&self) -> bool {
        self.limits.iter().any(|limit| limit.mode != Mode::Enforce)
    }

    /// Checks that the request can be decided: see [`Checked`](crate::model::Checked).
    #[inline]
    pub(crate) fn check(&self) -> Result<(), TakeError> {
        if self.limits.iter().any(|limit| limit.cost == 0) {
            return Err(TakeError::ZeroCost);
        }
        let is_plain = self.limits.len() == 1 && self.costs.is_empty() && self.limits[0].cost_name().is_none();
        if is_plain { Ok(()) } else { self.check_several() }
    }

    /// Checks that several limits can be decided together.
    fn check_several(&self) -> Result<(), TakeError> {
        if let Some(window) = self.limits.iter().find(|limit| matches!(limit.rule, Rule::Window(_))) {
            return Err(TakeError::WindowNotAlone(window.key.clone()));
        }
        if let Some(limit) = self.limits.iter().find(|limit| limit.key.is_too_long()) {
            return Err(TakeError::LimitKeyTooLong(limit.key.without_limit()));
        }
        let is_counted = |name: &LimitName| self.limits.iter().any(|limit| limit.cost_name() == Some(name));
        if let Some((name, _)) = self.costs.iter().find(|(name, _)| !is_counted(name)) {
            return Err(TakeError::UnknownCost(name.clone()));
        }
        let missing = |limit: &Limit| {
            let cost = limit.cost_name().filter(|_| !limit.own_cost)?.clone();
            Some(TakeError::MissingCost { key: limit.key.without_limit(), cost })
        };
        self.limits.iter().find_map(missing).map_or(Ok(()), Err)
    }

    /// The request for the bucket at a place, in the arithmetic's units.
    #[inline]
    pub(crate) fn request_at(&self, place: usize) -> BucketRequest {
        // Bounded to half of the range, so that sums cannot overflow. Still more than any bucket holds.
        let tokens = |n: u64| i64::try_from(n).unwrap_or(i64::MAX).min(i64::MAX / 2);
        let Limit { cost, min_remaining, .. } = self.limits[place];
        BucketRequest {
            cost: tokens(cost),
            max_wait: nanoseconds(self.max_wait).min(MAX_WAIT_NS),
            min_remaining: tokens(min_remaining),
        }
    }

    /// The sliding window, if the request is under one.
    pub(crate) fn window(&self) -> Option<&Window> {
        match &self.limits[0].rule {
            Rule::Window(window) => Some(window),
            _ => None,
        }
    }

    /// How long the id is remembered, in nanoseconds.
    pub(crate) fn remember_for_ns(&self) -> i64 {
        nanoseconds(self.remember_for).min(MAX_WAIT_NS)
    }
}

impl Take {
    /// Creates a limiter's request, without a move for each setting.
    #[inline]
    pub(crate) fn under(key: Key, rule: Rule, cost: u64, min_remaining: u64) -> Self {
        Self::of(Limit::of(key, rule, cost, min_remaining))
    }

    #[inline]
    pub(crate) fn of(limit: Limit) -> Self {
        Self {
            indices: SmallVec::new(),
            costs: Vec::new(),
            cost: limit.cost,
            max_wait: Duration::ZERO,
            min_remaining: limit.min_remaining,
            limits: SmallVec::from_buf([limit]),
            id: None,
            remember_for: Duration::ZERO,
            id_of: IdOf::Caller,
            is_limiters_rule: true,
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
    /// Creates a request with the limit's cost and minimum remaining. Buckets that are added take both, unless they have their
    /// own.
    fn from(limit: Limit) -> Self {
        Self::of(limit)
    }
}
