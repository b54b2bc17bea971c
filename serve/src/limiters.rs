//! The limiters of the server: one store, one set of calls, and an answer for each way to handle failures.

use std::time::Duration;

use tollgate::{Fallback, Limiter, Quota};

use crate::config::FailureMode;

/// Limiters that differ in their fallback.
#[derive(Clone, Debug)]
pub(crate) struct Limiters {
    error: Limiter,
    open: Limiter,
    closed: Limiter,
    local: Limiter,
}

impl Limiters {
    pub(crate) fn new(limiter: &Limiter) -> Self {
        Self {
            error: limiter.with_fallback(None),
            open: limiter.with_fallback(Fallback::Open),
            closed: limiter.with_fallback(Fallback::Closed(RETRY_AFTER)),
            // Each limit states its own quota.
            local: limiter.with_fallback(Fallback::Local(Quota::unlimited())),
        }
    }

    /// The limiter for a way to handle failures.
    pub(crate) fn get(&self, mode: FailureMode) -> &Limiter {
        match mode {
            FailureMode::Error => &self.error,
            FailureMode::Open => &self.open,
            FailureMode::Closed => &self.closed,
            FailureMode::Local(_) => &self.local,
        }
    }

    /// How many requests a fallback answered.
    pub(crate) fn fallbacks(&self) -> u64 {
        [&self.open, &self.closed, &self.local].map(Limiter::fallback_count).iter().sum()
    }
}

/// When to ask again while the store does not answer.
const RETRY_AFTER: Duration = Duration::from_secs(1);
