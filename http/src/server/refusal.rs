use std::sync::Arc;

use http::StatusCode;
use tollgate::{Decision, Error, Key, TakeError};

use super::MissingKey;
use super::headers::whole_seconds;

/// Why a layer refused a request. Outer layers find it in the extensions of the answer.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Refusal {
    /// Too few tokens were available. Status: 429.
    #[non_exhaustive]
    Denied {
        /// The limiter's decision.
        decision: Box<Decision>,
        /// The name of the limit that denied.
        limit: Arc<str>,
        /// The bucket that denied, for logs and for `tollgate explain`. `None` if a handler called the limiter. Clients
        /// do not see the key.
        key: Option<Key>,
    },
    /// The request has no key. Status: that of the [`MissingKey`], usually 400 or 500.
    MissingKey(MissingKey),
    /// The limiter returned an error. Status:
    ///
    /// - 400 if the request can never be granted,
    /// - 500 if the service's limit is not configured, such as an unknown plan,
    /// - 503 if the limiter or its store is full, or if the database failed and the limiter has no
    ///   [`Fallback`](tollgate::Fallback).
    Failed(Error),
}

impl Refusal {
    /// Returns the status of the answer.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Denied { .. } => StatusCode::TOO_MANY_REQUESTS,
            Self::MissingKey(missing) => missing.status(),
            Self::Failed(Error::Take(TakeError::ExceedsCapacity { .. } | TakeError::ZeroCost)) => {
                StatusCode::BAD_REQUEST
            }
            Self::Failed(Error::Take(TakeError::TooManyKeys(_) | TakeError::TooManyIds(_))) => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            Self::Failed(error) if error.is_failure() => StatusCode::SERVICE_UNAVAILABLE,
            Self::Failed(_) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// Returns when to retry: in whole seconds, rounded up, at least 1.
    ///
    /// Returns `None` if a retry can never succeed, or if the time is unknown.
    #[must_use]
    pub fn retry_after(&self) -> Option<u64> {
        match self {
            Self::Denied { decision, .. } => decision.retry_after().map(whole_seconds),
            Self::Failed(Error::CircuitOpen { retry_after, .. }) => Some(whole_seconds(*retry_after)),
            _ => None,
        }
    }

    /// Returns the message for the client: two sentences, without details of the database or its errors.
    #[must_use]
    pub fn message(&self) -> String {
        match self {
            Self::Denied { .. } => match self.retry_after() {
                Some(seconds) => format!("Too many requests. Try again in {seconds} s."),
                None => "Too many requests. No retry time is known.".to_owned(),
            },
            Self::MissingKey(missing) => missing.to_string(),
            Self::Failed(Error::Take(TakeError::ExceedsCapacity { cost, capacity, .. })) => {
                format!("This request costs {cost} tokens. The limit allows at most {capacity} at once.")
            }
            Self::Failed(_) if self.status() == StatusCode::SERVICE_UNAVAILABLE => {
                "The rate limit cannot be checked now. Try again later.".to_owned()
            }
            Self::Failed(Error::Take(TakeError::ZeroCost)) => {
                "This request costs 0 tokens. It must cost at least 1.".to_owned()
            }
            Self::Failed(_) => {
                "The rate limit is not configured correctly. Contact the operator of the service.".to_owned()
            }
        }
    }
}

/// The refusal that a layer in [shadow](super::RateLimitLayer::shadow) mode, or a limiter in mode `off` or `shadow`,
/// did not enforce.
///
/// Outer layers find it in the extensions of the answer. With several layers, it is that of the innermost.
#[derive(Clone, Debug)]
pub struct ShadowRefusal(pub Refusal);

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn open_circuit_refusal_says_when_to_retry() {
        let source = Arc::new(std::fmt::Error);
        let circuit_open = Refusal::Failed(Error::CircuitOpen { retry_after: Duration::from_millis(4200), source });
        assert_eq!((circuit_open.status(), circuit_open.retry_after()), (StatusCode::SERVICE_UNAVAILABLE, Some(5)));
        let in_vain = Refusal::Failed(Error::DeadlineExceeded(Duration::from_secs(5)));
        assert_eq!((in_vain.status(), in_vain.retry_after()), (StatusCode::SERVICE_UNAVAILABLE, None));
    }
}
