use std::time::Duration;

use crate::model::bucket::{BucketQuota, GrantRecord, NEVER_NS, Verdict};
use crate::model::quota::nanoseconds;
use crate::model::{Mode, Take, Window};

/// What a request came to. A denial is an answer like a grant, not an error.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a decision that nobody looks at limits nothing"]
pub struct Decision {
    granted: bool,
    mode: Mode,
    source: Source,
    attempts: u32,
    remaining: u64,
    wait: Span,
    retry_after: Span,
    reset_after: Span,
    /// The terms that it was decided under, if they are known: the capacity, and in which time an empty bucket is full.
    terms: Option<(u64, Span)>,
    limit: usize,
    /// Of several buckets, what each said.
    each: Box<[Self]>,
    /// What the bucket granted; of several, what it is to each of them.
    taken: Option<GrantRecord>,
}

/// In nanoseconds, as the arithmetic has them: they are moved about more often than read. What is past is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Span(i64);

impl Span {
    const ZERO: Self = Self(0);
    const NEVER: Self = Self(NEVER_NS);

    fn less(self, by: Duration) -> Self {
        if self == Self::NEVER { self } else { Self(self.0.saturating_sub(nanoseconds(by)).max(0)) }
    }
}

impl From<Duration> for Span {
    #[inline]
    fn from(duration: Duration) -> Self {
        Self(nanoseconds(duration))
    }
}

impl From<Span> for Duration {
    #[inline]
    fn from(span: Span) -> Self {
        if span == Span::NEVER { Self::MAX } else { Self::from_nanos(span.0.max(0).unsigned_abs()) }
    }
}

impl Decision {
    pub(crate) fn new(verdict: Verdict) -> Self {
        Self::of(verdict, None)
    }

    /// Of the only bucket, with what it granted.
    #[inline]
    pub(crate) fn of(verdict: Verdict, receipt: Option<GrantRecord>) -> Self {
        Self {
            granted: verdict.granted,
            wait: Span(verdict.wait),
            retry_after: Span(verdict.retry_after),
            reset_after: Span(verdict.reset_after),
            taken: receipt,
            ..Self::grant(verdict.remaining.max(0).unsigned_abs())
        }
    }

    /// A grant without a bucket behind it, for doubles of [`TokenRequester`](crate::TokenRequester) in tests.
    #[inline]
    pub fn grant(remaining: u64) -> Self {
        Self {
            granted: true,
            mode: Mode::Enforce,
            source: Source::Store,
            attempts: 1,
            remaining,
            wait: Span::ZERO,
            retry_after: Span::ZERO,
            reset_after: Span::ZERO,
            terms: None,
            limit: 0,
            each: Box::default(),
            taken: None,
        }
    }

    /// A denial without a bucket behind it, for doubles of [`TokenRequester`](crate::TokenRequester) in tests.
    pub fn denial(retry_after: Duration) -> Self {
        let retry_after = Span::from(retry_after);
        Self { granted: false, retry_after, reset_after: retry_after, ..Self::grant(0) }
    }

    #[cfg(feature = "_sql")]
    pub(crate) fn after(self, attempts: u32) -> Self {
        Self { attempts, ..self }
    }

    /// Says under which terms it was decided.
    #[inline]
    pub(crate) fn of_terms(self, terms: &BucketQuota) -> Self {
        let of_terms = (terms.token_ticks > 0).then(|| (terms.capacity.unsigned_abs(), Span(terms.refill_ns())));
        Self { terms: of_terms, ..self }
    }

    /// The same for those of a sliding window.
    pub(crate) fn of_window(self, window: &Window) -> Self {
        Self { terms: Some((window.max_requests(), window.interval().into())), ..self }
    }

    /// Says what decided instead of the tokens.
    pub(crate) fn under(self, mode: Mode) -> Self {
        Self { mode, ..self }
    }

    /// Takes away what could be given back: the store knows nothing of it.
    pub(crate) fn untaken(mut self) -> Self {
        self.taken = None;
        for one in &mut self.each {
            one.taken = None;
        }
        self
    }

    /// Lets a request pass that was denied.
    pub(crate) fn pass(mut self, mode: Mode) -> Self {
        self.granted = true;
        self.under(mode)
    }

    /// In one word.
    pub(crate) fn outcome(&self) -> &'static str {
        if self.granted { "granted" } else { "denied" }
    }

    /// Says where it was decided.
    pub(crate) fn by(self, source: Source) -> Self {
        Self { source, ..self }
    }

    /// A grant from tokens that were taken before: nothing of it can be given back.
    #[inline]
    pub(crate) fn lent(remaining: u64, reset_after: Duration, terms: Option<(u64, Duration)>) -> Self {
        let terms = terms.map(|(capacity, refill)| (capacity, refill.into()));
        Self { reset_after: reset_after.into(), terms, attempts: 0, source: Source::Lease, ..Self::grant(remaining) }
    }

    /// The same so much later, without having asked the store again.
    pub(crate) fn aged(self, by: Duration) -> Self {
        let (retry_after, reset_after) = (self.retry_after.less(by), self.reset_after.less(by));
        Self { retry_after, reset_after, attempts: 0, ..self }
    }

    /// What was taken from the buckets of the request, and at which places among them they are.
    pub(crate) fn taken(&self) -> impl Iterator<Item = (usize, GrantRecord)> {
        self.each().iter().filter_map(|one| one.taken.map(|receipt| (one.limit, receipt)))
    }

    /// When it was decided, by the store's clock, if it took something.
    pub(crate) fn decided_at(&self) -> Option<i64> {
        let decided_at = |one: &Self| Some(one.taken?.scheduled_at.saturating_sub(one.wait.0));
        self.each().iter().find_map(decided_at)
    }

    /// Says how long to wait from an instant of the store's clock, after it was decided.
    pub(crate) fn waiting_from(mut self, now: i64) -> Self {
        if let Some(scheduled_at) = self.taken().map(|(_, receipt)| receipt.scheduled_at).max() {
            self.wait = Span(scheduled_at.saturating_sub(now).max(0));
        }
        self
    }

    /// The places of the buckets that denied it, or that would have, but for the mode: of a denial it is the one that decided.
    pub(crate) fn short(&self) -> impl Iterator<Item = usize> {
        // What the limiter or a layer let pass instead of the store is a denial still in what each bucket said.
        let denies = self.each().iter().any(|one| !one.granted);
        let each = self.each().iter().filter(move |one| !denies && one.granted && one.mode == Mode::Shadow);
        denies.then_some(self.limit).into_iter().chain(each.map(|one| one.limit))
    }

    /// Says at which places of the request its buckets are, when others were left out.
    pub(crate) fn among(mut self, places: &[usize]) -> Self {
        self.limit = places[self.limit];
        for one in &mut self.each {
            one.limit = places[one.limit];
        }
        self
    }

    /// One answer for all the buckets of a request: what holds for each of them holds for it. The one that decided is
    /// the one that denies for longest, or else has tokens left for the fewest requests like this one.
    pub(crate) fn of_all(decisions: impl IntoIterator<Item = (usize, Self)>, take: &Take) -> Option<Self> {
        // For as many requests as tokens ÷ cost.
        let suffices = |one: &Self, other: &Self| one.remaining.saturating_mul(take.limits[other.limit].cost);
        let mut decisions: Vec<Self> =
            decisions.into_iter().map(|(limit, decision)| Self { limit, ..decision }).collect();
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

    /// How many tokens the bucket holds at most, or how many requests pass in the window, by the terms that ruled it: those
    /// of its override or its plan, if they did. `None`: it has no limit, or nobody asked for it.
    #[must_use]
    pub fn capacity(&self) -> Option<u64> {
        self.terms.map(|(capacity, _)| capacity)
    }

    /// In which time an empty bucket is full, or the window's interval; [`Duration::MAX`]: never. `None` as for
    /// [`capacity`](Self::capacity).
    #[must_use]
    pub fn refill_time(&self) -> Option<Duration> {
        self.terms.map(|(_, refill)| refill.into())
    }

    /// The answers of the request's buckets, in the order in which it named them: [`limit`](Self::limit) says whose each is,
    /// as those without a limit say nothing. What is said of a request as a whole is what holds for all of them.
    pub fn each(&self) -> &[Self] {
        if self.each.is_empty() { std::slice::from_ref(self) } else { &self.each }
    }

    /// Whether the request may go on. If not, nothing was taken.
    #[must_use]
    pub fn is_granted(&self) -> bool {
        self.granted
    }

    /// The whole tokens left; of several buckets, in [the one that decided](Self::limit): if their requests cost different
    /// things, [`each`](Self::each) tells of its own. [`u64::MAX`] if no bucket was asked: a quota without a limit,
    /// [`Limiter::set_mode`](crate::Limiter::set_mode) and [`Fallback::Open`](crate::Fallback::Open) have no number to tell. Where
    /// a [mode](Self::mode) decided instead of the tokens, it says nothing of whether the next request passes.
    #[must_use]
    pub fn remaining(&self) -> u64 {
        self.remaining
    }

    /// How long to wait before using the tokens: nothing, unless the request allowed for a wait.
    #[must_use]
    pub fn wait(&self) -> Duration {
        self.wait.into()
    }

    /// When the tokens of the next request like this one are there, if nobody else takes tokens before: one that states
    /// a longest wait is granted so much earlier. [`Duration::MAX`]: never, or nobody knows.
    #[must_use]
    pub fn retry_after(&self) -> Duration {
        self.retry_after.into()
    }

    /// When the bucket is full again, if nobody takes tokens before; [`Duration::MAX`]: never.
    #[must_use]
    pub fn reset_after(&self) -> Duration {
        self.reset_after.into()
    }

    /// Which of the request's buckets decided, in the order in which it named them: the one that denies for longest, or
    /// else has tokens left for the fewest requests like this one.
    #[must_use]
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// What decided: the tokens, unless it is a grant that was not one ([`Shadow`](Mode::Shadow), [`Off`](Mode::Off)) or
    /// a denial whatever the tokens ([`Block`](Mode::Block)).
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Where it was decided.
    #[must_use]
    pub fn source(&self) -> Source {
        self.source
    }

    /// How often the database was asked: more than once after serialization failures and deadlocks, and not at all by
    /// [`DenyCache`](crate::layers::DenyCache), [`Lease`](crate::layers::Lease) and what [`LocalReads`](crate::layers::LocalReads) denies from memory.
    #[must_use]
    pub fn attempts(&self) -> u32 {
        self.attempts
    }
}

/// Where a decision was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Source {
    /// Where the buckets are.
    Store,
    /// In this process, from what it has seen of a sliding window: see [`LocalReads`](crate::layers::LocalReads).
    LocalReads,
    /// In this process, because the store denied as much a moment before: see [`DenyCache`](crate::layers::DenyCache).
    DenyCache,
    /// In this process, from tokens taken before: see [`Lease`](crate::layers::Lease).
    Lease,
    /// In this process, because the store did not answer in time: see [`Fallback`](crate::Fallback).
    Fallback,
    /// By the limiter, without the store, because it is switched off or blocks: see
    /// [`Limiter::set_mode`](crate::Limiter::set_mode).
    Limiter,
}

impl Source {
    /// In one word, as metrics have it.
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
