//! A store's answer for one bucket, and its conversion to a decision or an error.

use crate::model::bucket::{Bucket, BucketQuota, BucketRequest, GrantRecord, NEVER_NS};
use crate::model::{Decision, Error, Key, Limit, Mode, Rule, Take, TakeError, ThrottleError};

/// The answer to one request.
pub type Outcome = Result<Decision, TakeError>;

/// The result of a request for one of its buckets.
#[allow(unreachable_pub, reason = "the signatures of a sealed trait name it")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutcomeCode {
    Granted,
    Denied,
    /// The bucket has the tokens, but another bucket of the request denied.
    Spared,
    /// The sum of the cost and the minimum remaining exceeds the capacity.
    Never,
    /// The bucket does not exist.
    Unknown,
    /// The plan does not exist.
    Unplanned,
    /// The bucket was provisioned with another limit than the request's.
    Conflict,
    /// The id belongs to another request.
    Reused,
}

/// A store's answer to a request, for one of its buckets.
#[allow(unreachable_pub, reason = "the signatures of a sealed trait name it")]
#[derive(Clone, Copy, Debug)]
pub struct BucketAnswer {
    pub(crate) code: OutcomeCode,
    /// The mode that decided. Under `Enforce` the tokens decided.
    pub(crate) mode: Mode,
    pub(crate) now: i64,
    /// When the tokens can be used. Under `Block`: when the mode ends.
    pub(crate) scheduled_at: Option<i64>,
    /// The capacity that a bucket that does not exist yet would have.
    pub(crate) capacity: Option<i64>,
    pub(crate) state: Option<(BucketQuota, Bucket)>,
}

impl BucketAnswer {
    /// An answer without a state, for a request that is not decided.
    pub(crate) fn refused(code: OutcomeCode, now: i64) -> Self {
        Self { code, mode: Mode::Enforce, now, scheduled_at: None, capacity: None, state: None }
    }

    /// A grant of tokens.
    #[cfg(feature = "sqlite")]
    pub(crate) fn granted(now: i64, scheduled_at: i64, limits: BucketQuota, bucket: Bucket) -> Self {
        Self {
            scheduled_at: Some(scheduled_at),
            state: Some((limits, bucket)),
            ..Self::refused(OutcomeCode::Granted, now)
        }
    }

    /// The answer to an earlier one of equal requests: takes the tokens of the `later` requests out of the state.
    #[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
    pub(crate) fn earlier_answer(mut self, later: i64, request: BucketRequest) -> Self {
        if let (true, Some((limits, bucket))) = (self.took_tokens(), &mut self.state) {
            let tokens = later * request.cost;
            bucket.granted -= tokens;
            bucket.full_at -= tokens * limits.token_ticks;
        }
        self
    }

    /// Takes more tokens from the state. A negative number puts tokens back.
    #[cfg(any(feature = "mysql", feature = "postgres"))]
    pub(crate) fn debit(&mut self, tokens: i64) {
        if let (true, Some((limits, bucket))) = (tokens != 0, &mut self.state) {
            bucket.granted += tokens;
            bucket.full_at = bucket.full_at.max(limits.clock(bucket.anchor, self.now)) + tokens * limits.token_ticks;
        }
    }

    /// Whether the bucket has enough tokens for a request now.
    #[cfg(any(feature = "mysql", feature = "postgres"))]
    pub(crate) fn has(&self, BucketRequest { cost, min_remaining, .. }: BucketRequest) -> bool {
        self.state.is_none_or(|(limits, bucket)| {
            let missing_from_full = cost + min_remaining - limits.capacity;
            // The product of more than the capacity can overflow.
            missing_from_full <= 0
                && bucket.full_at + missing_from_full * limits.token_ticks <= limits.clock(bucket.anchor, self.now)
        })
    }

    /// Changes the grant to `Spared`, with the state before the grant, because another bucket denied.
    pub(crate) fn spare(&mut self, before: Option<Bucket>) {
        self.code = OutcomeCode::Spared;
        if let (Some(before), Some((_, bucket))) = (before, &mut self.state) {
            *bucket = before;
        }
    }

    /// The record of the tokens taken, if the request took any.
    pub(crate) fn grant(&self, request: BucketRequest) -> Option<GrantRecord> {
        let (_, bucket) = self.state?;
        let scheduled_at = self.scheduled_at.unwrap_or(self.now);
        self.took_tokens().then_some(GrantRecord { cost: request.cost, granted: bucket.granted, scheduled_at })
    }

    pub(crate) fn took_tokens(&self) -> bool {
        self.code == OutcomeCode::Granted && self.mode == Mode::Enforce
    }

    /// Converts the answer to the decision or error for the store's caller.
    pub(crate) fn outcome(self, take: &Take, place: usize) -> Outcome {
        let Limit { key, rule, cost, min_remaining, .. } = &take.limits[place];
        let key = || key.clone();
        match (self.code, &self.state) {
            (OutcomeCode::Granted | OutcomeCode::Denied | OutcomeCode::Spared, Some((limits, bucket))) => {
                Ok(self.decision(take.request_at(place), limits, bucket))
            }
            (OutcomeCode::Denied, None) => Ok(Decision::denial(None).with_mode(self.mode)),
            (OutcomeCode::Granted | OutcomeCode::Spared, None) => {
                Ok(Decision::grant(self.capacity.unwrap_or(0).unsigned_abs()).with_mode(self.mode))
            }
            (OutcomeCode::Never, state) => Err(TakeError::ExceedsCapacity {
                key: key(),
                cost: *cost,
                min_remaining: *min_remaining,
                capacity: state.map_or(0, |(limits, _)| limits.capacity).unsigned_abs(),
                window: false,
            }),
            (OutcomeCode::Unknown, _) => Err(TakeError::UnknownBucket(key())),
            (OutcomeCode::Unplanned, _) => Err(TakeError::UnknownPlan { key: key(), plan: rule.plan().cloned() }),
            (OutcomeCode::Conflict, _) => Err(TakeError::Conflict(key())),
            (OutcomeCode::Reused, _) => Err(TakeError::IdReused(take.id.unwrap_or_default())),
        }
    }

    fn decision(&self, request: BucketRequest, limits: &BucketQuota, bucket: &Bucket) -> Decision {
        let mut verdict = bucket.verdict(limits, self.now, request, self.code != OutcomeCode::Denied);
        verdict.wait = 0;
        if self.mode == Mode::Block {
            verdict.retry_after = self.scheduled_at.map_or(NEVER_NS, |until| until - self.now);
        }
        let Some(grant) = self.grant(request) else {
            return Decision::new(verdict).with_mode(self.mode).with_limits(limits);
        };
        verdict.wait = grant.scheduled_at - self.now;
        Decision::of(verdict, Some(grant)).with_limits(limits)
    }
}

/// Converts the answer of a store in this process, or of a routine, to a throttle.
pub(crate) fn throttled(lowered: Result<Option<bool>, OutcomeCode>, key: &Key, rule: &Rule) -> Result<bool, Error> {
    match lowered {
        Ok(Some(lowered)) => Ok(lowered),
        Ok(None) => Err(ThrottleError::NeverRefills(key.clone()).into()),
        Err(OutcomeCode::Unplanned) => {
            Err(TakeError::UnknownPlan { key: key.clone(), plan: rule.plan().cloned() }.into())
        }
        Err(OutcomeCode::Conflict) => Err(TakeError::Conflict(key.clone()).into()),
        Err(_) => Err(TakeError::UnknownBucket(key.clone()).into()),
    }
}
