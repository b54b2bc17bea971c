use std::time::Duration;

use crate::model::answer::Word;
use crate::model::bucket::{Hold, LONGEST_WAIT_NS};
use crate::model::quota::nanoseconds;
use crate::model::{Error, Key, Quota, Rule, TakeError};

/// What somebody else says of a limit that it keeps, such as the `Retry-After` of a third party's answer: a bucket is
/// lowered to it, for everybody who shares the bucket, and never raised.
///
/// When no token is left, requests are denied, or wait, as ever. A hold is tokens that are owed: other terms rescale it, and
/// what others give back opens it earlier. See [`Limiter::hold_back`](crate::Limiter::hold_back).
///
/// ```
/// use std::time::Duration;
/// use tollgate::{HoldBack, Limiter, MemoryStore, Quota};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tollgate::Error> {
/// let limiter = Limiter::new(MemoryStore::new(), Quota::per_second(10))?;
/// assert!(limiter.hold_back("api.example.com", HoldBack::remaining(3)).await?);
/// assert_eq!(limiter.allow("api.example.com").await?.remaining(), 2);
/// assert!(limiter.hold_back("api.example.com", HoldBack::retry_after(Duration::from_secs(60))).await?);
/// assert!(limiter.allow("api.example.com").await?.retry_after() > Duration::from_secs(59));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "give it to a limiter"]
pub struct HoldBack {
    remaining: Option<u64>,
    retry_after: Option<Duration>,
    longest: Option<Duration>,
}

impl HoldBack {
    /// The longest wait that counts, unless [`longest`](Self::longest) says otherwise: an hour. Of a quota by interval or by
    /// the calendar, tokens come with the first period after it.
    pub const LONGEST: Duration = Duration::from_secs(3600);

    /// So many tokens are left now, at most.
    pub const fn remaining(tokens: u64) -> Self {
        Self { remaining: Some(tokens), retry_after: None, longest: None }
    }

    /// No token comes before so much time from now has passed; then they come at the bucket's own rate.
    ///
    /// Of a quota by interval or by the calendar they come when the first period begins after that, so what is left of the
    /// present one is lost: use a continuous quota where a third party's periods are long.
    pub const fn retry_after(span: Duration) -> Self {
        Self { remaining: None, retry_after: Some(span), longest: None }
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
            longest: least(self.longest, other.longest),
        }
    }

    /// The longest wait that counts, whatever was said: [`LONGEST`](Self::LONGEST) if not set, a year at most. Of a quota by
    /// interval or by the calendar, tokens come with the first period after it.
    pub const fn longest(self, longest: Duration) -> Self {
        Self { longest: Some(longest), ..self }
    }

    /// The wait that counts: no token comes before.
    #[must_use]
    pub fn wait(&self) -> Duration {
        let longest = self.longest.unwrap_or(Self::LONGEST).min(Duration::from_nanos(LONGEST_WAIT_NS.unsigned_abs()));
        self.retry_after.unwrap_or_default().min(longest)
    }

    /// How many tokens are left, if that is said.
    #[must_use]
    pub fn left(&self) -> Option<u64> {
        self.remaining
    }

    /// In the arithmetic's units, for a bucket that can be held back.
    pub(crate) fn of(&self, key: &Key, rule: &Rule) -> Result<Hold, HoldBackError> {
        match rule {
            Rule::Window(_) => return Err(HoldBackError::Window(key.clone())),
            Rule::Quota(quota) if *quota == Quota::unlimited() => return Err(HoldBackError::Unlimited(key.clone())),
            _ => {}
        }
        let remaining = self.remaining.map(|tokens| i64::try_from(tokens).unwrap_or(i64::MAX));
        Ok(Hold { remaining, wait: nanoseconds(self.wait()) })
    }
}

/// Why a limit cannot be held back. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HoldBackError {
    /// A bucket that never refills: held back for a time, it would be for ever.
    #[error("bucket '{0}' never refills, so it can be held back to a number of tokens, and not for a time")]
    NeverRefills(Key),
    /// No limit.
    #[error("'{0}' has no limit that could be held back: give it a quota")]
    Unlimited(Key),
    /// A store that does not know how.
    #[error("this store holds nothing back: implement Store::hold_back for it")]
    Unsupported,
    /// A sliding window, which counts what has passed.
    #[error("'{0}' is under a sliding window, which cannot be held back: limit it by a quota")]
    Window(Key),
}

/// What a store in this process, or a routine, says.
pub(crate) fn held(lowered: Result<Option<bool>, Word>, key: &Key, rule: &Rule) -> Result<bool, Error> {
    match lowered {
        Ok(Some(lowered)) => Ok(lowered),
        Ok(None) => Err(HoldBackError::NeverRefills(key.clone()).into()),
        Err(Word::Unplanned) => Err(TakeError::UnknownPlan { key: key.clone(), plan: rule.plan().cloned() }.into()),
        Err(Word::Conflict) => Err(TakeError::Conflict(key.clone()).into()),
        Err(_) => Err(TakeError::UnknownBucket(key.clone()).into()),
    }
}
