//! Buckets as `src/model/bucket.rs` defines them, and random requests for them.

use std::time::Duration;

use proptest::prelude::*;
use tollgate::Quota;
use tollgate::model::bucket::{Bucket, BucketQuota, BucketRequest, MAX_WAIT_NS, Verdict};

/// The bucket that a database must hold for a key, with its answers.
#[derive(Clone, Debug)]
pub struct Model {
    pub quota: Quota,
    pub bucket: Bucket,
}

impl Model {
    /// Creates a bucket that is provisioned at `now`.
    pub fn provisioned(quota: Quota, now: i64) -> Self {
        Self { quota, bucket: Bucket::full(&BucketQuota::at(&quota, 0), now) }
    }

    /// Creates a bucket that its first request creates, aligned to the calendar.
    pub fn first_used(quota: Quota) -> Self {
        Self { quota, bucket: Bucket::default() }
    }

    pub fn limits(&self) -> BucketQuota {
        BucketQuota::at(&self.quota, 0)
    }

    /// Decides a request. Returns `None` if it can never be granted.
    pub fn take(&mut self, now: i64, request: BucketRequest) -> Option<Verdict> {
        let limits = self.limits();
        (request.cost <= limits.capacity - request.min_remaining).then(|| self.bucket.take(&limits, now, request))
    }

    /// Changes the quota of the bucket, if it differs.
    pub fn change(&mut self, quota: Quota, now: i64) {
        if self.quota != quota {
            self.bucket.convert_limits(&self.limits(), &BucketQuota::at(&quota, 0), now);
            self.quota = quota;
        }
    }
}

/// Random quotas and steps. Values are relative to the bucket, so that they hit its edges: exactly the tokens left, or
/// exactly the end of a period.
#[derive(Clone, Debug)]
pub struct Story {
    pub start: i64,
    pub quotas: Vec<Quota>,
    pub steps: Vec<Step>,
}

impl Story {
    /// Returns the steps of the provisioned bucket, without changes of its quota and steps back in time.
    pub fn without_changes(&self) -> Self {
        let mut story = self.clone();
        for step in &mut story.steps {
            if let Step::Take(requests) = step {
                requests.retain(|request| request.provisioned);
            }
        }
        story.steps.retain(|step| !matches!(step, Step::Back(_) | Step::Change(_)));
        story
    }
}

#[derive(Clone, Debug)]
pub enum Step {
    /// Requests in one call.
    Take(Vec<RelativeRequest>),
    Forward(Span),
    Back(Span),
    /// The provisioned bucket gets another quota.
    Change(usize),
}

#[derive(Clone, Copy, Debug)]
pub struct RelativeRequest {
    /// Whether the request is for the provisioned bucket or for the one that its first request creates.
    pub provisioned: bool,
    /// The index of the quota that a request for the latter states.
    pub quota: usize,
    cost: Part,
    min_remaining: Part,
    max_wait: Option<Span>,
}

impl RelativeRequest {
    pub fn request(&self, limits: &BucketQuota, anchor: i64, now: i64) -> BucketRequest {
        let cost = self.cost.of(limits.capacity).max(1);
        let min_remaining = self.min_remaining.of(limits.capacity - cost).max(0);
        let possible = cost <= limits.capacity;
        let wait = |span: Span| span.of(limits, anchor, now).min(MAX_WAIT_NS);
        BucketRequest { cost, min_remaining, max_wait: self.max_wait.filter(|_| possible).map_or(0, wait) }
    }
}

/// A part of a whole number.
#[derive(Clone, Copy, Debug)]
pub enum Part {
    Number(i64),
    Percent(i64),
    OneMoreThanAll,
}

impl Part {
    fn of(self, all: i64) -> i64 {
        match self {
            Self::Number(number) => number.min(all),
            Self::Percent(percent) => percent_of(percent, all),
            Self::OneMoreThanAll => all + 1,
        }
    }
}

/// A span of time.
#[derive(Clone, Copy, Debug)]
pub enum Span {
    Ns(i64),
    /// The time in which some tokens refill, plus an offset in nanoseconds.
    Tokens(i64, i64),
    /// The time to the end of the period, plus an offset in nanoseconds.
    PeriodsEnd(i64),
    /// A percentage of the time from empty to full.
    Refill(i64),
}

impl Span {
    pub fn of(self, limits: &BucketQuota, anchor: i64, now: i64) -> i64 {
        let refill = if limits.step_ns == 1 { limits.burst() } else { limits.step_ns };
        let ns = match self {
            Self::Ns(ns) => ns,
            Self::Tokens(tokens, off) => refill / limits.capacity * tokens.min(limits.capacity) + off,
            Self::PeriodsEnd(off) => refill - (now - anchor).rem_euclid(refill) + off,
            Self::Refill(percent) => percent_of(percent, refill),
        };
        ns.max(0)
    }
}

/// Generates any valid quota with a capacity of at most `largest`.
pub fn quota(largest: u64) -> impl Strategy<Value = Quota> {
    let capacity = prop_oneof![4 => 1..=12_u64, 4 => logarithmic(largest), 1 => Just(largest)];
    let refill = prop_oneof![
        6 => logarithmic(CENTURY_NS),
        2 => (1..=100_u64).prop_map(|seconds| seconds * 1_000_000_000),
        1 => Just(CENTURY_NS),
    ];
    (capacity, refill, any::<bool>()).prop_filter_map("no quota", |(capacity, refill, continuous)| {
        let refill = Duration::from_nanos(refill);
        if continuous { Quota::continuous(capacity, refill) } else { Quota::interval(capacity, refill) }.ok()
    })
}

/// Generates up to `steps` steps for two buckets, under quotas with a capacity of at most `largest`.
pub fn story(start: std::ops::Range<i64>, largest: u64, steps: usize) -> impl Strategy<Value = Story> {
    (start, prop::collection::vec(quota(largest), 3), prop::collection::vec(step(), 1..=steps))
        .prop_map(|(start, quotas, steps)| Story { start, quotas, steps })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => relative_request().prop_map(|relative_request| Step::Take(vec![relative_request])),
        2 => prop::collection::vec(relative_request(), 2..7).prop_map(Step::Take),
        5 => span().prop_map(Step::Forward),
        1 => prop_oneof![span(), (1..40_i64).prop_map(|n| Span::Ns(n * 300_000_000_000))].prop_map(Step::Back),
        1 => (0..3_usize).prop_map(Step::Change),
    ]
}

fn relative_request() -> impl Strategy<Value = RelativeRequest> {
    let cost = prop_oneof![
        6 => Just(Part::Number(1)),
        4 => (1..=100_i64).prop_map(Part::Percent),
        2 => (1..5_i64).prop_map(Part::Number),
        1 => Just(Part::OneMoreThanAll),
    ];
    let min_remaining = prop_oneof![6 => Just(Part::Number(0)), 2 => (1..=100_i64).prop_map(Part::Percent)];
    let quota = prop_oneof![5 => Just(1_usize), 1 => Just(2_usize)];
    (any::<bool>(), quota, cost, min_remaining, prop::option::weighted(0.3, span())).prop_map(
        |(provisioned, quota, cost, min_remaining, max_wait)| RelativeRequest {
            provisioned,
            quota,
            cost,
            min_remaining,
            max_wait,
        },
    )
}

fn span() -> impl Strategy<Value = Span> {
    prop_oneof![
        1 => (0..3_i64).prop_map(Span::Ns),
        4 => (1..5_i64, -1..=1_i64).prop_map(|(tokens, off)| Span::Tokens(tokens, off)),
        2 => (-1..=1_i64).prop_map(Span::PeriodsEnd),
        2 => (1..250_i64).prop_map(Span::Refill),
    ]
}

/// Generates numbers of each magnitude equally often: as many from 10 to 100 as from 10⁹ to 10¹⁰.
fn logarithmic(largest: u64) -> impl Strategy<Value = u64> {
    (0..=largest.ilog2()).prop_flat_map(move |bits| (1 << bits)..=(largest.min((2 << bits) - 1)))
}

fn percent_of(percent: i64, all: i64) -> i64 {
    i64::try_from(i128::from(all) * i128::from(percent) / 100).unwrap_or(i64::MAX)
}

pub const CENTURY_NS: u64 = 3_155_760_000_000_000_000;
