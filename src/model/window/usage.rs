//! A store's answer under a sliding window, and its conversion to a decision or an error.

use super::{Counts, Ring, Window};
use crate::model::answer::OutcomeCode;
use crate::model::bucket::{BucketRequest, GrantRecord, NEVER_NS, Verdict};
use crate::model::{Decision, Mode, Outcome, Take, TakeError};

/// A store's answer to a request under a sliding window.
#[derive(Clone, Debug)]
pub struct WindowUsage {
    pub(crate) code: OutcomeCode,
    pub(crate) mode: Mode,
    pub(crate) now: i64,
    /// When the request acts. Under `Block`: when the mode ends.
    pub(crate) scheduled_at: Option<i64>,
    pub(crate) counts: Counts,
    /// The resolution that the newest sub-interval was counted in.
    pub(crate) resolution_ns: i64,
}

impl WindowUsage {
    /// Returns the requests of all sub-intervals that the store still keeps.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.counts.iter().map(|(_, count)| count.unsigned_abs()).fold(0, u64::saturating_add)
    }

    /// Returns how many requests the window had left at the instant of the answer. A negative number is promised to requests
    /// that wait.
    #[must_use]
    pub fn available(&self, window: &Window) -> i64 {
        let ring = Ring { counts: self.counts.clone(), ..Ring::default() };
        window.signed_max_requests() - ring.counted(window, self.now)
    }

    pub(crate) fn new(code: OutcomeCode, now: i64, scheduled_at: i64, ring: &Ring) -> Self {
        let counts = ring.counts.clone();
        Self {
            code,
            mode: Mode::Enforce,
            now,
            scheduled_at: Some(scheduled_at),
            counts,
            resolution_ns: ring.resolution_ns,
        }
    }

    pub(crate) fn outcome(self, take: &Take, window: &Window, request: BucketRequest) -> Outcome {
        let key = || take.key().clone();
        match self.code {
            OutcomeCode::Granted | OutcomeCode::Denied | OutcomeCode::Spared => {}
            OutcomeCode::Never => {
                return Err(TakeError::ExceedsCapacity {
                    key: key(),
                    cost: take.cost,
                    min_remaining: take.min_remaining,
                    capacity: window.max_requests(),
                    window: true,
                });
            }
            OutcomeCode::Reused => return Err(TakeError::IdReused(take.id.unwrap_or_default())),
            OutcomeCode::Unknown | OutcomeCode::Unplanned | OutcomeCode::Conflict => {
                return Err(TakeError::UnknownBucket(key()));
            }
        }
        let Self { mode, now, scheduled_at, counts, .. } = self;
        let ring = Ring { counts, resolution_ns: self.resolution_ns, ..Ring::default() };
        let took = self.code == OutcomeCode::Granted && mode == Mode::Enforce;
        let blocked = mode == Mode::Block;
        let next =
            ring.earliest(window, window.signed_max_requests() - request.cost - request.min_remaining, now) - now;
        let verdict = Verdict {
            granted: self.code == OutcomeCode::Granted,
            remaining: (window.signed_max_requests() - ring.counted(window, now)).max(0),
            wait: if took { scheduled_at.map_or(0, |at| at - now) } else { 0 },
            retry_after: if blocked { scheduled_at.map_or(NEVER_NS, |until| until - now) } else { next },
            reset_after: (ring.empty_at(window) - now).max(0),
        };
        let receipt = GrantRecord { cost: request.cost, granted: 0, scheduled_at: scheduled_at.unwrap_or(now) };
        let decision = if took { Decision::of(verdict, Some(receipt)) } else { Decision::new(verdict).with_mode(mode) };
        Ok(decision.with_window(window))
    }
}
