//! The answer to a request: a grant or a denial, the remaining tokens and the times.

use std::time::Duration;

use crate::model::bucket::{BucketQuota, GrantRecord, NEVER_NS, Verdict};
use crate::model::quota::nanoseconds;
use crate::model::{Key, LimitName, Mode, Take, Window};

/// The answer to a request: a grant or a denial. A denial is not an error.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a decision limits nothing unless you check it"]
pub struct Decision {
    granted: bool,
    mode: Mode,
    source: Source,
    attempts: u32,
    /// `u64::MAX` if no bucket was read.
    remaining: u64,
    wait: Nanoseconds,
    retry_after: Nanoseconds,
    reset_after: Nanoseconds,
    /// The limit that was in effect, if it is known: the capacity, and the time from empty to full.
    limits: Option<(u64, Nanoseconds)>,
    refilling: Refilling,
    /// The place of the limit in the request for each bucket.
    limit: usize,
    /// The place of the limit in the caller's request.
    index: usize,
    /// The bucket and the name of the limit, if the request has several.
    bucket: Option<Box<(Key, Option<LimitName>)>>,
    /// The answer of each bucket, if the request has several.
    each: Box<[Self]>,
    /// The bucket's record of the grant. With several buckets, `each` has the records.
    grant: Option<GrantRecord>,
}

/// How a bucket gets its tokens, as far as the decision knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refilling {
    Continuous { token: Nanoseconds },
    FixedWindow,
    Unknown,
}

/// A length of time in the unit of the arithmetic, because decisions are moved more often than read. A negative one counts as zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Nanoseconds(i64);

impl Nanoseconds {
    const ZERO: Self = Self(0);
    const NEVER: Self = Self(NEVER_NS);

    fn less(self, by: Duration) -> Self {
        if self == Self::NEVER { self } else { Self(self.0.saturating_sub(nanoseconds(by)).max(0)) }
    }
}

impl From<Duration> for Nanoseconds {
    #[inline]
    fn from(duration: Duration) -> Self {
        Self(nanoseconds(duration))
    }
}

impl From<Option<Duration>> for Nanoseconds {
    #[inline]
    fn from(duration: Option<Duration>) -> Self {
        duration.map_or(Self::NEVER, Self::from)
    }
}

impl From<Nanoseconds> for Option<Duration> {
    #[inline]
    fn from(span: Nanoseconds) -> Self {
        (span != Nanoseconds::NEVER).then(|| Duration::from_nanos(span.0.max(0).unsigned_abs()))
    }
}

impl Decision {
    pub(crate) fn new(verdict: Verdict) -> Self {
        Self::of(verdict, None)
    }

    /// The decision of a single bucket, with its record of the grant.
    #[inline]
    pub(crate) fn of(verdict: Verdict, grant: Option<GrantRecord>) -> Self {
        Self {
            granted: verdict.granted,
            wait: Nanoseconds(verdict.wait),
            retry_after: Nanoseconds(verdict.retry_after),
            reset_after: Nanoseconds(verdict.reset_after),
            grant,
            ..Self::grant(verdict.remaining.max(0).unsigned_abs())
        }
    }

    /// Creates a grant without a bucket, for test doubles of [`TokenRequester`](crate::TokenRequester).
    #[inline]
    pub fn grant(remaining: u64) -> Self {
        Self {
            granted: true,
            mode: Mode::Enforce,
            source: Source::Store,
            attempts: 1,
            remaining,
            wait: Nanoseconds::ZERO,
            retry_after: Nanoseconds::ZERO,
            reset_after: Nanoseconds::ZERO,
            limits: None,
            refilling: Refilling::Unknown,
            limit: 0,
            index: 0,
            bucket: None,
            each: Box::default(),
            grant: None,
        }
    }

    /// A grant without a read of a bucket.
    pub(crate) fn without_limit() -> Self {
        Self::grant(u64::MAX)
    }

    /// Creates a denial without a bucket, for test doubles of [`TokenRequester`](crate::TokenRequester). `None`: the request will
    /// never pass, or no one knows when.
    pub fn denial(retry_after: impl Into<Option<Duration>>) -> Self {
        let retry_after = Nanoseconds::from(retry_after.into());
        Self { granted: false, retry_after, reset_after: retry_after, ..Self::grant(0) }
    }

    #[cfg(feature = "_sql")]
    pub(crate) fn with_attempts(self, attempts: u32) -> Self {
        Self { attempts, ..self }
    }

    /// Sets the quota that was in effect.
    #[inline]
    pub(crate) fn with_limits(self, limits: &BucketQuota) -> Self {
        let of_limits =
            (limits.token_ticks > 0).then(|| (limits.capacity.unsigned_abs(), Nanoseconds(limits.refill_ns())));
        let refilling = match limits.step_ns {
            _ if limits.is_continuous() => Refilling::Continuous { token: Nanoseconds(limits.token_ticks) },
            NEVER_NS => Refilling::Unknown,
            _ => Refilling::FixedWindow,
        };
        Self { limits: of_limits, refilling, ..self }
    }

    /// Sets the sliding window that was in effect.
    pub(crate) fn with_window(self, window: &Window) -> Self {
        Self { limits: Some((window.max_requests(), window.interval().into())), ..self }
    }

    /// Sets the mode that decided instead of the tokens.
    pub(crate) fn with_mode(self, mode: Mode) -> Self {
        Self { mode, ..self }
    }

    /// Removes the records of the grant, because the store does not know the grant.
    pub(crate) fn without_grants(mut self) -> Self {
        self.grant = None;
        for one in &mut self.each {
            one.grant = None;
        }
        self
    }

    /// Turns the denial into a grant by a mode.
    pub(crate) fn granted_by(mut self, mode: Mode) -> Self {
        self.granted = true;
        self.with_mode(mode)
    }

    /// The outcome in one word.
    pub(crate) fn outcome(&self) -> &'static str {
        if self.granted { "granted" } else { "denied" }
    }

    /// Sets where the decision was made.
    pub(crate) fn with_source(self, source: Source) -> Self {
        Self { source, ..self }
    }

    /// A grant from prefetched tokens, which cannot be given back.
    #[inline]
    pub(crate) fn lent(remaining: u64, reset_after: Option<Duration>, limits: Option<(u64, Option<Duration>)>) -> Self {
        let limits = limits.map(|(capacity, refill)| (capacity, refill.into()));
        Self { reset_after: reset_after.into(), limits, attempts: 0, source: Source::Lease, ..Self::grant(remaining) }
    }

    /// The decision from a cache, after some time has passed. Counts no call of the store.
    pub(crate) fn aged_by(self, by: Duration) -> Self {
        let (retry_after, reset_after) = (self.retry_after.less(by), self.reset_after.less(by));
        Self { retry_after, reset_after, attempts: 0, ..self }
    }

    /// The records of the grants, each with the place of its bucket in the request.
    pub(crate) fn grants(&self) -> impl Iterator<Item = (usize, GrantRecord)> {
        self.each().iter().filter_map(|one| one.grant.map(|grant| (one.limit, grant)))
    }

    /// When the request was decided, by the store's clock, if it took tokens.
    pub(crate) fn decided_at(&self) -> Option<i64> {
        let decided_at = |one: &Self| Some(one.grant?.scheduled_at.saturating_sub(one.wait.0));
        self.each().iter().find_map(decided_at)
    }

    /// Sets the wait as seen from a later instant of the store's clock.
    pub(crate) fn waiting_from(mut self, now: i64) -> Self {
        if let Some(scheduled_at) = self.grants().map(|(_, grant)| grant.scheduled_at).max() {
            self.wait = Nanoseconds(scheduled_at.saturating_sub(now).max(0));
        }
        self
    }

    /// The places of the buckets that denied the request, or would have denied it without shadow mode. For a denial, the
    /// bucket that decided.
    pub(crate) fn denying_limits(&self) -> impl Iterator<Item = usize> {
        // A denial that the limiter or a layer lets pass is still a denial in the buckets' own answers.
        let denies = self.each().iter().any(|one| !one.granted);
        let each = self.each().iter().filter(move |one| !denies && one.granted && one.mode == Mode::Shadow);
        denies.then_some(self.limit).into_iter().chain(each.map(|one| one.limit))
    }

    /// Converts the places of the buckets to those in a request from which some buckets were left out.
    pub(crate) fn at_places(mut self, places: &[usize]) -> Self {
        self.limit = places[self.limit];
        for one in &mut self.each {
            one.limit = places[one.limit];
        }
        self
    }

    /// Merges the buckets' answers into one, with the longest times of all. [`limit_index`](Self::limit_index) is the bucket that
    /// denies for longest. For a grant, it is the bucket that has tokens left for the fewest equal requests.
    pub(crate) fn combine(decisions: impl IntoIterator<Item = (usize, Self)>, take: &Take) -> Option<Self> {
        // Compares remaining ÷ cost without a division.
        let suffices = |one: &Self, other: &Self| one.remaining.saturating_mul(take.limits[other.limit].cost);
        let mut decisions: Vec<Self> =
            decisions.into_iter().map(|(limit, decision)| decision.of_limit(limit, take)).collect();
        decisions.sort_unstable_by_key(|decision| decision.limit);
        let each = if decisions.len() > 1 { decisions.clone().into_boxed_slice() } else { Box::default() };
        let merged = decisions.into_iter().reduce(|one, other| {
            let stricter = match (one.granted, other.granted) {
                (true, true) => suffices(&one, &other) <= suffices(&other, &one),
                (false, false) => one.retry_after >= other.retry_after,
                (one_granted, _) => !one_granted,
            };
            let (mut decides, also) = if stricter { (one, other) } else { (other, one) };
            decides.wait = decides.wait.max(also.wait);
            decides.retry_after = decides.retry_after.max(also.retry_after);
            decides.reset_after = decides.reset_after.max(also.reset_after);
            decides
        })?;
        Some(Self { each, ..merged })
    }

    /// Sets the limit that the decision is about.
    fn of_limit(self, limit: usize, take: &Take) -> Self {
        let of = &take.limits[limit];
        let bucket = (take.limits.len() > 1).then(|| Box::new((of.key.clone(), of.name().cloned())));
        Self { limit, index: take.index_of(limit), bucket, ..self }
    }

    /// Returns the values of this grant after `tokens` of it were given back to the bucket.
    ///
    /// Reads no bucket, so the values do not include later requests. With several buckets, call it for
    /// [`each`](Self::each).
    ///
    /// ```
    /// use tollgate::{Limiter, MemoryStore, Quota};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tollgate::Error> {
    /// let limiter = Limiter::new(MemoryStore::new(), Quota::once(10)?)?;
    /// let reservation = limiter.reserve_request(&limiter.request("user:42")?.cost(5).refundable()).await?;
    /// let decision = reservation.decision().clone();
    /// let given_back = reservation.refund(3).await?;
    /// assert_eq!(decision.after_refund(given_back).remaining(), Some(8));
    /// # Ok(())
    /// # }
    /// ```
    pub fn after_refund(&self, tokens: u64) -> Self {
        let (mut after, capacity) = (self.clone(), self.capacity().unwrap_or(u64::MAX));
        // Before a request's scheduled time, the bucket owes tokens, so none are left.
        if self.wait == Nanoseconds::ZERO {
            after.remaining = self.remaining.saturating_add(tokens).min(capacity);
        }
        let sooner = match self.refilling {
            Refilling::Continuous { token } => token.0.saturating_mul(i64::try_from(tokens).unwrap_or(i64::MAX)),
            Refilling::FixedWindow | Refilling::Unknown => 0,
        };
        let sooner = Duration::from_nanos(sooner.unsigned_abs());
        after.retry_after = self.retry_after.less(sooner);
        after.reset_after = if after.remaining == capacity { Nanoseconds::ZERO } else { self.reset_after.less(sooner) };
        after
    }

    /// Returns the capacity of the bucket, or the maximum of the sliding window, under the effective limit.
    ///
    /// `None`: the bucket is unlimited, or the decision was made without it.
    #[must_use]
    pub fn capacity(&self) -> Option<u64> {
        self.limits.map(|(capacity, _)| capacity)
    }

    /// Returns the time from empty to full, or the sliding window's interval.
    ///
    /// `None`: the bucket never refills, or as for [`capacity`](Self::capacity).
    #[must_use]
    pub fn refill_time(&self) -> Option<Duration> {
        self.limits.and_then(|(_, refill)| refill.into())
    }

    /// Returns the period of the fixed window, aligned to creation or to the calendar, under the effective limit.
    ///
    /// `None`: the limit is of another kind, or the decision was made without the bucket.
    #[must_use]
    pub fn fixed_window(&self) -> Option<Duration> {
        self.refill_time().filter(|_| self.refilling == Refilling::FixedWindow)
    }

    /// Returns the answers of the request's buckets, in the order of the request. Unlimited buckets have no answer, so
    /// [`limit_index`](Self::limit_index) states the place of each.
    pub fn each(&self) -> &[Self] {
        if self.each.is_empty() { std::slice::from_ref(self) } else { &self.each }
    }

    /// Returns whether the request is granted. A denied request took nothing.
    #[must_use]
    pub fn is_granted(&self) -> bool {
        self.granted
    }

    /// Returns the whole tokens left. With several buckets, those of [the bucket that decided](Self::limit_index);
    /// [`each`](Self::each) has those of the others.
    ///
    /// `None` if no bucket was read: the quota is unlimited, the limiter's own [mode](crate::Limiter::set_mode)
    /// [`Off`](Mode::Off) decided, or [`Fallback::Open`](crate::Fallback::Open) did. The limiter's own mode
    /// [`Block`](Mode::Block) returns 0. If a [mode](Self::mode) decided instead of the tokens, the number does not tell
    /// whether the next request passes.
    #[must_use]
    pub fn remaining(&self) -> Option<u64> {
        (self.remaining != u64::MAX).then_some(self.remaining)
    }

    /// Returns the time to wait before the tokens can be used. Zero, unless the request has a longest wait.
    #[must_use]
    pub fn wait(&self) -> Duration {
        Option::from(self.wait).unwrap_or(Duration::MAX)
    }

    /// Returns the time until the bucket has the tokens of an equal request, provided that no other request takes them first.
    ///
    /// A request with a longest wait is granted earlier by that wait. `None`: never, or unknown.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after.into()
    }

    /// Returns the time until the bucket is full again, provided that no other request takes tokens. `None`: never.
    #[must_use]
    pub fn reset_after(&self) -> Option<Duration> {
        self.reset_after.into()
    }

    /// Returns the place, from 0, of the bucket that decided, in the order of the request.
    ///
    /// For a denial, the bucket that denies for longest. For a grant, the bucket that has tokens left for the fewest equal
    /// requests.
    ///
    /// A plan or a [rule with several limits](crate::Rule::Limits) is one limit of the request: see [`limit_name`](Self::limit_name).
    #[must_use]
    pub fn limit_index(&self) -> usize {
        self.index
    }

    /// Returns the name of the limit that decided, if the request has several and this one has a name.
    ///
    /// Limits of a [plan](crate::Rule::Plan) or of the [code](crate::Rule::Limits) have names. [`each`](Self::each) has the names of
    /// the others.
    #[must_use]
    pub fn limit_name(&self) -> Option<&str> {
        self.bucket.as_ref()?.1.as_ref().map(LimitName::as_str)
    }

    /// The place of the limit that decided, in the request for each bucket.
    pub(crate) fn place(&self) -> usize {
        self.limit
    }

    /// Returns the id of the bucket that decided, if the request has several.
    #[must_use]
    pub fn bucket(&self) -> Option<&Key> {
        self.bucket.as_ref().map(|bucket| &bucket.0)
    }

    /// Returns the mode that decided.
    ///
    /// [`Enforce`](Mode::Enforce): the tokens decided. [`Shadow`](Mode::Shadow): the request was let pass without tokens.
    /// [`Off`](Mode::Off) granted, and [`Block`](Mode::Block) denied, regardless of the tokens.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Returns where the decision was made.
    #[must_use]
    pub fn source(&self) -> Source {
        self.source
    }

    /// Returns the number of calls of the database.
    ///
    /// More than 1 after serialization failures and deadlocks. 0 for answers of [`DenyCache`](crate::layers::DenyCache) and
    /// [`Lease`](crate::layers::Lease), and for denials from the memory of [`LocalReads`](crate::layers::LocalReads).
    #[must_use]
    pub fn attempts(&self) -> u32 {
        self.attempts
    }
}

/// Where a decision was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Source {
    /// In the store.
    Store,
    /// In this process, from counts of a sliding window that it has read: see [`LocalReads`](crate::layers::LocalReads).
    LocalReads,
    /// In this process, because the store denied such a request shortly before: see
    /// [`DenyCache`](crate::layers::DenyCache).
    DenyCache,
    /// In this process, from prefetched tokens: see [`Lease`](crate::layers::Lease).
    Lease,
    /// In this process, because the store did not answer in time: see [`Fallback`](crate::Fallback).
    Fallback,
    /// In the limiter, whose mode is off or block: see [`Limiter::set_mode`](crate::Limiter::set_mode).
    Limiter,
}

impl Source {
    /// Returns the word for the source in metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Store => "store",
            Self::LocalReads => "local_reads",
            Self::DenyCache => "deny_cache",
            Self::Lease => "lease",
            Self::Fallback => "fallback",
            Self::Limiter => "limiter",
        }
    }
}
