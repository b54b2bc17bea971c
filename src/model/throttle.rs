//! The state of an upstream's limit, to which a bucket is lowered.

use std::time::Duration;

use crate::model::bucket::{MAX_WAIT_NS, ThrottleLevel};
use crate::model::quota::nanoseconds;
use crate::model::{Key, Quota, Rule};

/// The state of an upstream's own limit, such as the `Retry-After` of its answer.
/// [`Limiter::throttle`](crate::Limiter::throttle) lowers a bucket to it, for all callers that share the bucket, and never
/// raises the bucket.
///
/// When no token is left, requests are denied or wait, as in any empty bucket. A throttled bucket owes tokens: another limit
/// rescales the debt, and refunds reduce it, so the bucket can refill earlier.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Throttle, Limiter, MemoryStore, Quota};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tollgate::Error> {
/// let limiter = Limiter::new(MemoryStore::new(), Quota::per_second(10))?;
/// assert!(limiter.throttle("api.example.com", Throttle::remaining(3)).await?);
/// assert_eq!(limiter.allow("api.example.com").await?.remaining(), Some(2));
/// assert!(limiter.throttle("api.example.com", Throttle::retry_after(Duration::from_secs(60))).await?);
/// let denied = limiter.allow("api.example.com").await?;
/// assert!(denied.retry_after().is_some_and(|time| time > Duration::from_secs(59)));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "give it to a limiter"]
pub struct Throttle {
    remaining: Option<u64>,
    retry_after: Option<Duration>,
    max_wait: Option<Duration>,
}

impl Throttle {
    /// The longest wait that applies without [`max_wait`](Self::max_wait): an hour.
    pub const DEFAULT_MAX_WAIT: Duration = Duration::from_secs(3600);

    /// Lowers the bucket to at most `tokens` now.
    pub const fn remaining(tokens: u64) -> Self {
        Self { remaining: Some(tokens), retry_after: None, max_wait: None }
    }

    /// Empties the bucket for `span` from now. After that, tokens come at the bucket's own rate.
    ///
    /// With a quota by fixed windows, tokens come with the first period that begins after `span`, so the rest of the current
    /// period is lost. Use a continuous quota for an upstream with long periods.
    pub const fn retry_after(span: Duration) -> Self {
        Self { remaining: None, retry_after: Some(span), max_wait: None }
    }

    /// Combines both, with the stricter value of each.
    pub fn and(self, other: Self) -> Self {
        let least = |one: Option<Duration>, other: Option<Duration>| match (one, other) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
        Self {
            remaining: match (self.remaining, other.remaining) {
                (Some(one), Some(other)) => Some(one.min(other)),
                (one, other) => one.or(other),
            },
            retry_after: self.retry_after.max(other.retry_after),
            max_wait: least(self.max_wait, other.max_wait),
        }
    }

    /// Bounds the time of [`retry_after`](Self::retry_after), because the value comes from an upstream.
    ///
    /// At most 366 days. Default: [`DEFAULT_MAX_WAIT`](Self::DEFAULT_MAX_WAIT), an hour.
    pub const fn max_wait(self, max_wait: Duration) -> Self {
        Self { max_wait: Some(max_wait), ..self }
    }

    /// Returns the time for which the bucket is emptied, within the bound of [`max_wait`](Self::max_wait).
    #[must_use]
    pub fn wait(&self) -> Duration {
        let max_wait =
            self.max_wait.unwrap_or(Self::DEFAULT_MAX_WAIT).min(Duration::from_nanos(MAX_WAIT_NS.unsigned_abs()));
        self.retry_after.unwrap_or_default().min(max_wait)
    }

    /// Returns the tokens to which the bucket is lowered, if the upstream states them.
    #[must_use]
    pub fn get_remaining(&self) -> Option<u64> {
        self.remaining
    }

    /// The level in the arithmetic's units, if a limit of this rule can be throttled.
    pub(crate) fn of(&self, key: &Key, rule: &Rule) -> Result<ThrottleLevel, ThrottleError> {
        match rule {
            Rule::Window(_) => return Err(ThrottleError::Window(key.clone())),
            Rule::Quota(quota) if *quota == Quota::unlimited() => return Err(ThrottleError::Unlimited(key.clone())),
            _ => {}
        }
        let remaining = self.remaining.map(|tokens| i64::try_from(tokens).unwrap_or(i64::MAX));
        Ok(ThrottleLevel { remaining, wait: nanoseconds(self.wait()) })
    }
}

/// The reason why a limit cannot be throttled. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ThrottleError {
    /// The bucket never refills, so a throttle for a time would never end.
    #[error("bucket '{0}' never refills, so it cannot be throttled for a time: {hint}", hint = self.hint())]
    NeverRefills(Key),
    /// The quota is unlimited.
    #[error("'{0}' has no limit that could be throttled: {hint}", hint = self.hint())]
    Unlimited(Key),
    /// This [`TestStore`](crate::store::TestStore) does not throttle.
    #[error("this store does not throttle: {hint}", hint = self.hint())]
    Unsupported,
    /// The limit is a sliding window, which counts past requests and holds no tokens.
    #[error(
        "'{0}' is under a sliding window, which cannot be throttled: {hint}",
        hint = self.hint()
    )]
    Window(Key),
}

impl ThrottleError {
    /// Returns what to do about the error. The message ends with it, after a colon.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::NeverRefills(_) => "throttle it to a number of tokens",
            Self::Unlimited(_) => "give it a quota",
            Self::Unsupported => "implement TestStore::throttle for it",
            Self::Window(_) => "limit it by a quota",
        }
    }
}
