use std::time::Duration;

use crate::model::answer::OutcomeCode;
use crate::model::bucket::{MAX_WAIT_NS, ThrottleLevel};
use crate::model::quota::nanoseconds;
use crate::model::{Error, Key, Quota, Rule, TakeError};

/// What somebody else says of a limit that it keeps, such as the `Retry-After` of a third party's answer: a bucket is
/// lowered to it, for everybody who shares the bucket, and never raised.
///
/// When no token is left, requests are denied, or wait, as ever. A hold is tokens that are owed: other terms rescale it, and
/// what others give back opens it earlier. See [`Limiter::throttle`](crate::Limiter::throttle).
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Throttle, Limiter, MemoryStore, Quota};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tollgate::Error> {
/// let limiter = Limiter::new(MemoryStore::new(), Quota::per_second(10))?;
/// assert!(limiter.throttle("api.example.com", Throttle::remaining(3)).await?);
/// assert_eq!(limiter.allow("api.example.com").await?.remaining(), 2);
/// assert!(limiter.throttle("api.example.com", Throttle::retry_after(Duration::from_secs(60))).await?);
/// assert!(limiter.allow("api.example.com").await?.retry_after() > Duration::from_secs(59));
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
    /// The longest wait that counts, unless [`max_wait`](Self::max_wait) says otherwise: an hour. Of a quota by interval or by
    /// the calendar, tokens come with the first period after it.
    pub const DEFAULT_MAX_WAIT: Duration = Duration::from_secs(3600);

    /// So many tokens are left now, at most.
    pub const fn remaining(tokens: u64) -> Self {
        Self { remaining: Some(tokens), retry_after: None, max_wait: None }
    }

    /// No token comes before so much time from now has passed; then they come at the bucket's own rate.
    ///
    /// Of a quota by interval or by the calendar they come when the first period begins after that, so what is left of the
    /// present one is lost: use a continuous quota where a third party's periods are long.
    pub const fn retry_after(span: Duration) -> Self {
        Self { remaining: None, retry_after: Some(span), max_wait: None }
    }

    /// Both, the stricter of each.
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

    /// The longest wait that counts, whatever was said: [`DEFAULT_MAX_WAIT`](Self::DEFAULT_MAX_WAIT) if not set, a year at most. Of a quota by
    /// interval or by the calendar, tokens come with the first period after it.
    pub const fn max_wait(self, max_wait: Duration) -> Self {
        Self { max_wait: Some(max_wait), ..self }
    }

    /// The wait that counts: no token comes before.
    #[must_use]
    pub fn wait(&self) -> Duration {
        let max_wait =
            self.max_wait.unwrap_or(Self::DEFAULT_MAX_WAIT).min(Duration::from_nanos(MAX_WAIT_NS.unsigned_abs()));
        self.retry_after.unwrap_or_default().min(max_wait)
    }

    /// How many tokens are left, if that is said.
    #[must_use]
    pub fn remaining_tokens(&self) -> Option<u64> {
        self.remaining
    }

    /// In the arithmetic's units, for a bucket that can be throttled.
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

/// Why a limit cannot be throttled. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ThrottleError {
    /// A bucket that never refills: throttled for a time, it would be for ever.
    #[error("bucket '{0}' never refills, so it can be throttled to a number of tokens, and not for a time")]
    NeverRefills(Key),
    /// No limit.
    #[error("'{0}' has no limit that could be throttled: give it a quota")]
    Unlimited(Key),
    /// A store that does not know how.
    #[error("this store does not throttle: implement Store::throttle for it")]
    Unsupported,
    /// A sliding window, which counts what has passed.
    #[error("'{0}' is under a sliding window, which cannot be throttled: limit it by a quota")]
    Window(Key),
}

/// What a store in this process, or a routine, says.
pub(crate) fn held(lowered: Result<Option<bool>, OutcomeCode>, key: &Key, rule: &Rule) -> Result<bool, Error> {
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
