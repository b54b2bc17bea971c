//! One bucket: `TokenRequester`, and what calls an action only if a token is granted.

use std::time::Duration;

use crate::model::{Decision, Error};

mod local;
#[cfg(feature = "_sql")]
mod sql;
#[cfg(feature = "stream")]
mod stream;

pub use local::LocalBucket;
#[cfg(feature = "_sql")]
pub use sql::SqlTokenRequester;
#[cfg(feature = "stream")]
pub use stream::{LimitedStream, limit_stream};

/// Something that hands out tokens: a bucket in a database, in this process, or a double in a test.
///
/// When there is no token, it says so at once; it never waits.
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
    /// Takes one token, or says that there is none.
    ///
    /// # Errors
    ///
    /// If there is no answer. See [`Error::is_outcome_unknown`] for whether a token may have been taken.
    fn request_token(&self) -> impl Future<Output = Result<Decision, Error>> + Send;

    /// Waits until there is a token, and takes it; denied only if there will never be one.
    ///
    /// It sleeps until there could be one and asks again, unless the requester can stand in line.
    ///
    /// # Errors
    ///
    /// As for [`request_token`](Self::request_token).
    fn wait_for_token(&self) -> impl Future<Output = Result<Decision, Error>> + Send {
        async {
            loop {
                let decision = self.request_token().await?;
                if decision.is_granted() || decision.retry_after() == Duration::MAX {
                    return Ok(decision);
                }
                tokio::time::sleep(decision.retry_after().clamp(SHORTEST_PAUSE, LONGEST_PAUSE)).await;
            }
        }
    }
}

/// Whoever says that there could be a token at once, and has none, is not asked without a pause.
pub(crate) const SHORTEST_PAUSE: Duration = Duration::from_millis(1);

/// A reset, a larger plan or the end of a switch makes tokens come earlier than was said: whoever waits learns of it by then.
pub(crate) const LONGEST_PAUSE: Duration = Duration::from_secs(30);

impl<R: TokenRequester + ?Sized> TokenRequester for &R {
    async fn request_token(&self) -> Result<Decision, Error> {
        (**self).request_token().await
    }

    async fn wait_for_token(&self) -> Result<Decision, Error> {
        (**self).wait_for_token().await
    }
}

impl<R: TokenRequester + ?Sized> TokenRequester for std::sync::Arc<R> {
    async fn request_token(&self) -> Result<Decision, Error> {
        (**self).request_token().await
    }

    async fn wait_for_token(&self) -> Result<Decision, Error> {
        (**self).wait_for_token().await
    }
}

/// Puts a limit before an action: each call takes a token first.
///
/// A call without a token fails at once, and the action does not run; nothing ever queues.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{limit, requester::LocalBucket, LimitError};
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
    /// Takes a token, and runs the action if there was one.
    ///
    /// # Errors
    ///
    /// [`LimitError::NoTokens`] if there was none, and [`LimitError::Request`] if there was no answer. The
    /// action has not run then.
    ///
    /// # Cancel safety
    ///
    /// A call that is dropped may have taken its token.
    pub async fn call(&self) -> Result<F::Output, LimitError> {
        let decision = self.requester.request_token().await?;
        if !decision.is_granted() {
            return Err(LimitError::NoTokens { retry_after: decision.retry_after() });
        }
        Ok((self.action)().await)
    }
}

/// Why a limited action did not run.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LimitError {
    /// The tokens are used up.
    #[error("no tokens available")]
    NoTokens {
        /// When there could be one.
        retry_after: Duration,
    },
    /// There was no answer.
    #[error(transparent)]
    Request(#[from] Error),
}
