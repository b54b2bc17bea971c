//! The report of an upstream's response about the limits of a request.

use std::time::Duration;

use tollgate::{Adjustment, Key, Limit, Receipt, Throttle};

/// The contents of an answer that concern the request's limits.
#[derive(Debug, Default)]
pub(super) struct UpstreamReport {
    /// Settlements of estimates.
    pub(super) settlements: Vec<Adjustment>,
    /// Tokens left under each limit.
    pub(super) limits: Vec<ReportedLimit>,
    /// Estimates that the caller settles after reading the body. `None` if there are none, or if the request was
    /// refused.
    pub(super) open_estimates: Option<Vec<OpenEstimate>>,
}

/// The throttle that an answer states for one limit.
#[derive(Clone, Debug)]
pub(super) struct ReportedLimit {
    pub(super) key: Key,
    /// `None` for the limiter's own limit.
    pub(super) limit: Option<Limit>,
    pub(super) throttle: Throttle,
    /// Whether this limit probably caused the refusal.
    pub(super) refused: bool,
    /// Whether the limit throttles a retry.
    pub(super) enforced: bool,
    /// The period of the limit's fixed window, if it has one.
    pub(super) window: Option<Duration>,
}

/// An unsettled estimate, and the report of the answer's head for its limit.
#[derive(Debug)]
pub(super) struct OpenEstimate {
    pub(super) receipt: Receipt,
    pub(super) head: Option<HeaderReport>,
}

/// The tokens left under a limit, as the head of an answer reported.
#[derive(Clone, Debug)]
pub(super) struct HeaderReport {
    pub(super) limit: ReportedLimit,
    /// How many tokens the bucket had left when the request was sent.
    pub(super) remaining: u64,
}

impl HeaderReport {
    /// Returns the part of the report that still applies, after `elapsed` and after `given_back` tokens were given back.
    ///
    /// The tokens left describe the moment of the report. They apply only if tokens were given back, and only until the
    /// bucket refills, or while the wait lasts.
    pub(super) fn remaining_after_settlement(
        self,
        given_back: u64,
        elapsed: Duration,
        max_throttle: Duration,
    ) -> Option<ReportedLimit> {
        let wait = bounded(self.limit.throttle, max_throttle).wait().saturating_sub(elapsed);
        let left =
            self.limit.throttle.get_remaining().filter(|_| given_back > 0 && (elapsed < MAX_AGE || !wait.is_zero()));
        let is_lower = left.is_some_and(|left| left < self.remaining.saturating_add(given_back));
        let throttle = match left {
            Some(left) if is_lower || !wait.is_zero() => Throttle::remaining(left).and(Throttle::retry_after(wait)),
            None if !wait.is_zero() => Throttle::retry_after(wait),
            _ => return None,
        };
        Some(ReportedLimit { throttle, ..self.limit })
    }
}

/// Bounds a throttle by a second longest wait. The shorter one counts.
pub(super) fn bounded(throttle: Throttle, max_throttle: Duration) -> Throttle {
    throttle.and(Throttle::retry_after(Duration::ZERO).max_wait(max_throttle))
}

/// How long the tokens left in a report apply.
const MAX_AGE: Duration = Duration::from_secs(1);
