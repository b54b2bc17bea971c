use std::time::Duration;

use crate::bucket::Verdict;

/// What a request came to. A denial is an answer like a grant, not an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a decision that nobody looks at limits nothing"]
pub struct Decision {
    granted: bool,
    remaining: u64,
    wait: Duration,
    retry_after: Duration,
    reset_after: Duration,
    attempts: u32,
}

impl Decision {
    pub(crate) fn new(verdict: Verdict) -> Self {
        let duration = |ns: i64| Duration::from_nanos(ns.max(0).unsigned_abs());
        Self {
            granted: verdict.granted,
            remaining: verdict.remaining.max(0).unsigned_abs(),
            wait: duration(verdict.wait),
            retry_after: duration(verdict.retry_after),
            reset_after: duration(verdict.reset_after),
            attempts: 1,
        }
    }

    /// A grant without a bucket behind it, for doubles of [`TokenRequester`](crate::TokenRequester) in tests.
    pub fn grant(remaining: u64) -> Self {
        let zero = Duration::ZERO;
        Self { granted: true, remaining, wait: zero, retry_after: zero, reset_after: zero, attempts: 1 }
    }

    /// A denial without a bucket behind it, for doubles of [`TokenRequester`](crate::TokenRequester) in tests.
    pub fn denial(retry_after: Duration) -> Self {
        Self { granted: false, retry_after, reset_after: retry_after, ..Self::grant(0) }
    }

    #[cfg(feature = "_sql")]
    pub(crate) fn after(self, attempts: u32) -> Self {
        Self { attempts, ..self }
    }

    /// Whether the tokens were taken. If not, nothing was.
    #[must_use]
    pub fn is_granted(&self) -> bool {
        self.granted
    }

    /// The whole tokens left.
    #[must_use]
    pub fn remaining(&self) -> u64 {
        self.remaining
    }

    /// How long to wait before using the tokens: nothing, unless the request allowed for a wait.
    #[must_use]
    pub fn wait(&self) -> Duration {
        self.wait
    }

    /// When the tokens of the next request like this one are there, if nobody else takes tokens before: one that states
    /// a longest wait is granted so much earlier.
    #[must_use]
    pub fn retry_after(&self) -> Duration {
        self.retry_after
    }

    /// When the bucket is full again, if nobody takes tokens before.
    #[must_use]
    pub fn reset_after(&self) -> Duration {
        self.reset_after
    }

    /// How often the database was asked: more than once after serialization failures and deadlocks.
    #[must_use]
    pub fn attempts(&self) -> u32 {
        self.attempts
    }
}
