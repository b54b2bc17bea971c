use std::time::Duration;

use crate::model::bucket::{Bucket, BucketQuota, BucketRequest, GrantRecord, NEVER_NS};
use crate::model::{Decision, Limit, Mode, Take, TakeError};

/// The answer to one request.
pub type Outcome = Result<Decision, TakeError>;

/// What became of a request, for one of its buckets.
#[allow(unreachable_pub, reason = "the signatures of a sealed trait name it")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutcomeCode {
    Granted,
    Denied,
    /// It could have been granted, but another of the request's buckets denied.
    Spared,
    /// Cost and keep exceed the capacity.
    Never,
    /// No such bucket.
    Unknown,
    /// No such plan.
    Unplanned,
    /// Provisioned with other terms than those given.
    Conflict,
    /// The id is another request's.
    Reused,
}

/// A store's answer to a request, for one of its buckets.
#[allow(unreachable_pub, reason = "the signatures of a sealed trait name it")]
#[derive(Clone, Copy, Debug)]
pub struct BucketAnswer {
    pub(crate) word: OutcomeCode,
    /// What decided: if it is not to enforce, instead of the tokens.
    pub(crate) mode: Mode,
    pub(crate) now: i64,
    /// When the tokens may be used; if blocked, until when.
    pub(crate) scheduled_at: Option<i64>,
    /// The tokens that it would hold, of a bucket that does not exist yet.
    pub(crate) capacity: Option<i64>,
    pub(crate) state: Option<(BucketQuota, Bucket)>,
}

impl BucketAnswer {
    /// Why there is no decision.
    pub(crate) fn refused(word: OutcomeCode, now: i64) -> Self {
        Self { word, mode: Mode::Enforce, now, scheduled_at: None, capacity: None, state: None }
    }

    /// A grant of tokens.
    #[cfg(feature = "sqlite")]
    pub(crate) fn granted(now: i64, scheduled_at: i64, terms: BucketQuota, bucket: Bucket) -> Self {
        Self {
            scheduled_at: Some(scheduled_at),
            state: Some((terms, bucket)),
            ..Self::refused(OutcomeCode::Granted, now)
        }
    }

    /// What it was to an earlier one of equal requests, before so many later ones.
    #[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
    pub(crate) fn before(mut self, later: i64, request: BucketRequest) -> Self {
        if let (true, Some((terms, bucket))) = (self.took(), &mut self.state) {
            let tokens = later * request.cost;
            bucket.granted -= tokens;
            bucket.full_at -= tokens * terms.token_ticks;
        }
        self
    }

    /// What it is once so many more tokens of the bucket were taken; or so many fewer, if they are below 0.
    #[cfg(any(feature = "mysql", feature = "postgres"))]
    pub(crate) fn debit(&mut self, tokens: i64) {
        if let (true, Some((terms, bucket))) = (tokens != 0, &mut self.state) {
            bucket.granted += tokens;
            bucket.full_at = bucket.full_at.max(terms.clock(bucket.anchor, self.now)) + tokens * terms.token_ticks;
        }
    }

    /// Whether the bucket as it is has enough for a request.
    #[cfg(any(feature = "mysql", feature = "postgres"))]
    pub(crate) fn has(&self, BucketRequest { cost, min_remaining, .. }: BucketRequest) -> bool {
        self.state.is_none_or(|(terms, bucket)| {
            bucket.full_at + (cost + min_remaining - terms.capacity) * terms.token_ticks
                <= terms.clock(bucket.anchor, self.now)
        })
    }

    /// Takes nothing after all, because another bucket denied.
    pub(crate) fn spare(&mut self, before: Option<Bucket>) {
        self.word = OutcomeCode::Spared;
        if let (Some(before), Some((_, bucket))) = (before, &mut self.state) {
            *bucket = before;
        }
    }

    /// What the grant took, if it took anything.
    pub(crate) fn receipt(&self, request: BucketRequest) -> Option<GrantRecord> {
        let (_, bucket) = self.state?;
        let scheduled_at = self.scheduled_at.unwrap_or(self.now);
        self.took().then_some(GrantRecord { cost: request.cost, granted: bucket.granted, scheduled_at })
    }

    pub(crate) fn took(&self) -> bool {
        self.word == OutcomeCode::Granted && self.mode == Mode::Enforce
    }

    /// The decision, in terms that the caller of the store understands.
    pub(crate) fn outcome(self, take: &Take, place: usize) -> Outcome {
        let Limit { key, rule, cost, min_remaining, .. } = &take.limits[place];
        let key = || key.clone();
        match (self.word, &self.state) {
            (OutcomeCode::Granted | OutcomeCode::Denied | OutcomeCode::Spared, Some((terms, bucket))) => {
                Ok(self.decision(take.request_at(place), terms, bucket))
            }
            (OutcomeCode::Denied, None) => Ok(Decision::denial(Duration::MAX).under(self.mode)),
            (OutcomeCode::Granted | OutcomeCode::Spared, None) => {
                Ok(Decision::grant(self.capacity.unwrap_or(0).unsigned_abs()).under(self.mode))
            }
            (OutcomeCode::Never, state) => Err(TakeError::ExceedsCapacity {
                key: key(),
                cost: *cost,
                min_remaining: *min_remaining,
                capacity: state.map_or(0, |(terms, _)| terms.capacity).unsigned_abs(),
            }),
            (OutcomeCode::Unknown, _) => Err(TakeError::UnknownBucket(key())),
            (OutcomeCode::Unplanned, _) => Err(TakeError::UnknownPlan { key: key(), plan: rule.plan().cloned() }),
            (OutcomeCode::Conflict, _) => Err(TakeError::Conflict(key())),
            (OutcomeCode::Reused, _) => Err(TakeError::IdReused(take.id.unwrap_or_default())),
        }
    }

    fn decision(&self, request: BucketRequest, terms: &BucketQuota, bucket: &Bucket) -> Decision {
        let mut verdict = bucket.verdict(terms, self.now, request, self.word != OutcomeCode::Denied);
        verdict.wait = 0;
        if self.mode == Mode::Block {
            verdict.retry_after = self.scheduled_at.map_or(NEVER_NS, |until| until - self.now);
        }
        let Some(receipt) = self.receipt(request) else {
            return Decision::new(verdict).under(self.mode).of_terms(terms);
        };
        verdict.wait = receipt.scheduled_at - self.now;
        Decision::of(verdict, Some(receipt)).of_terms(terms)
    }
}
