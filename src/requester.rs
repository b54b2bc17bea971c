//! Tokens of one bucket: the `TokenRequester` trait, a bucket in this process, and actions that run only with a token.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::clock::{Clock, ProcessClock};
use crate::model::bucket::BucketRequest;
use crate::model::decide::BucketRow;
use crate::model::{Decision, Error, Quota, QuotaError};

#[cfg(feature = "_sql")]
mod sql;

#[cfg(feature = "_sql")]
#[cfg_attr(docsrs, doc(cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))))]
pub use sql::SqlTokenRequester;

/// A source of tokens: a bucket in a database or in this process, or a test double.
///
/// When no token is available, a requester denies at once and does not wait.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Decision, Error, TokenRequester};
///
/// /// Denies everything.
/// struct Empty;
///
/// impl TokenRequester for Empty {
///     async fn request_token(&self) -> Result<Decision, Error> {
///         Ok(Decision::denial(Duration::from_secs(1)))
///     }
/// }
/// ```
pub trait TokenRequester: Send + Sync {
    /// Takes one token, or denies at once if none is available.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no answer. See [`Error::is_outcome_unknown`] for whether a token may have been taken.
    fn request_token(&self) -> impl Future<Output = Result<Decision, Error>> + Send;

    /// Waits until a token is available, and takes it. Denies only if there will never be a token.
    ///
    /// The default implementation sleeps until a token can be available, 30 s at most, and requests it again. A
    /// [`Bound`](crate::Bound) limiter waits in the bucket's queue instead.
    ///
    /// # Errors
    ///
    /// As for [`request_token`](Self::request_token).
    fn wait_for_token(&self) -> impl Future<Output = Result<Decision, Error>> + Send {
        async {
            loop {
                let decision = self.request_token().await?;
                let Some(retry_after) = decision.retry_after().filter(|_| !decision.is_granted()) else {
                    return Ok(decision);
                };
                tokio::time::sleep(retry_after.clamp(MIN_PAUSE, MAX_PAUSE)).await;
            }
        }
    }
}

/// Bounds the pause from below, because a requester can say "at once" and still have no token.
pub(crate) const MIN_PAUSE: Duration = Duration::from_millis(1);

/// Bounds the pause from above, because a reset, a larger plan or the end of a mode can make tokens come earlier.
pub(crate) const MAX_PAUSE: Duration = Duration::from_secs(30);

impl<R: TokenRequester + ?Sized> TokenRequester for &R {
    async fn request_token(&self) -> Result<Decision, Error> {
        (**self).request_token().await
    }

    async fn wait_for_token(&self) -> Result<Decision, Error> {
        (**self).wait_for_token().await
    }
}

impl<R: TokenRequester + ?Sized> TokenRequester for Arc<R> {
    async fn request_token(&self) -> Result<Decision, Error> {
        (**self).request_token().await
    }

    async fn wait_for_token(&self) -> Result<Decision, Error> {
        (**self).wait_for_token().await
    }
}

/// Limits an action: each call first takes a token.
///
/// If no token is available, the call fails at once, and the action does not run. No call waits.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{limit, LimitError, LocalBucket};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let twice_an_hour = LocalBucket::new(2, Duration::from_secs(3600))?;
/// let greet = limit(twice_an_hour, || async { "hello" });
///
/// assert_eq!(greet.call().await?, "hello");
/// assert_eq!(greet.call().await?, "hello");
/// assert_eq!(greet.call().await.unwrap_err().to_string(), "no tokens available");
/// # Ok(())
/// # }
/// ```
pub fn limit<R, A>(requester: R, action: A) -> Limited<R, A>
where
    R: TokenRequester,
{
    Limited { requester, action }
}

/// An action behind a limit, made by [`limit`].
#[derive(Clone, Debug)]
pub struct Limited<R, A> {
    requester: R,
    action: A,
}

impl<R, A, F> Limited<R, A>
where
    R: TokenRequester,
    A: Fn() -> F,
    F: Future,
{
    /// Takes a token, and runs the action if the token was granted.
    ///
    /// # Errors
    ///
    /// Returns [`LimitError::Denied`] if no token was available, and [`LimitError::Request`] if there was no answer. The action
    /// did not run then.
    ///
    /// # Cancel safety
    ///
    /// If dropped, the call may have taken its token.
    pub async fn call(&self) -> Result<F::Output, LimitError> {
        let decision = self.requester.request_token().await?;
        if !decision.is_granted() {
            return Err(LimitError::Denied { retry_after: decision.retry_after() });
        }
        Ok((self.action)().await)
    }
}

/// The reason why a limited action did not run.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LimitError {
    /// No token was available.
    #[error("no tokens available")]
    Denied {
        /// The time until a token can be available. `None`: never, or unknown.
        retry_after: Option<Duration>,
    },
    /// There was no answer.
    #[error(transparent)]
    Request(#[from] Error),
}

/// A bucket in this process, with the same arithmetic as the buckets in a database.
///
/// The bucket starts full, and is full again when its period ends. When it is empty, requests are denied until then. Unused
/// tokens do not carry over to the next period.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{LocalBucket, TokenRequester};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tollgate::Error> {
/// let bucket = LocalBucket::new(2, Duration::from_secs(3600))?;
/// assert!(bucket.request_token().await?.is_granted());
/// assert_eq!(bucket.request_token().await?.remaining(), Some(0));
/// assert!(!bucket.request_token().await?.is_granted());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct LocalBucket<C = ProcessClock> {
    bucket: Mutex<BucketRow>,
    clock: C,
}

impl LocalBucket {
    /// Creates a bucket that grants at most `max_calls` in each period. The first period begins now.
    ///
    /// # Errors
    ///
    /// As for [`Quota::interval`].
    pub fn new(max_calls: u64, period: Duration) -> Result<Self, QuotaError> {
        Quota::interval(max_calls, period).map(|quota| Self::with_clock(quota, ProcessClock::default()))
    }
}

impl<C: Clock> LocalBucket<C> {
    /// Creates a full bucket of any quota, on another clock.
    pub fn with_clock(quota: Quota, clock: C) -> Self {
        Self { bucket: Mutex::new(BucketRow::provisioned(quota, clock.now())), clock }
    }
}

impl<C: Clock> TokenRequester for LocalBucket<C> {
    async fn request_token(&self) -> Result<Decision, Error> {
        let mut bucket = self.bucket.lock();
        // Reads the clock under the lock, so that the time is not as old as the wait for the lock.
        let now = self.clock.now();
        let (_, verdict) = bucket.take(ONE_TOKEN, now).expect("a capacity is 1 or more");
        Ok(Decision::new(verdict))
    }
}

const ONE_TOKEN: BucketRequest = BucketRequest { cost: 1, max_wait: 0, min_remaining: 0 };
