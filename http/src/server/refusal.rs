use std::sync::Arc;

use http::StatusCode;
use tollgate::{Decision, Error, Key, TakeError};

use super::MissingKey;
use super::headers::whole_seconds;

/// Why a request was not served. It is among the extensions of the answer, where layers outside find it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Refusal {
    /// There were no tokens: 429.
    #[non_exhaustive]
    Denied {
        /// The answer to the request for tokens.
        decision: Box<Decision>,
        /// The name of the limit that denied.
        limit: Arc<str>,
        /// The bucket that denied, for the service's own logs and for `tollgate explain`, if a layer asked; the client is not told.
        key: Option<Key>,
    },
    /// The request does not say whose it is: what its [`MissingKey`] says, 400 or 500 unless that says another.
    MissingKey(MissingKey),
    /// There was no answer. If the request can never be granted: 400. If the service asks for what does not exist, such as an
    /// unknown plan: 500. If the database failed, and the limiter has no [`Fallback`](tollgate::Fallback): 503.
    Failed(Error),
}

impl Refusal {
    /// The status of the answer.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Denied { .. } => StatusCode::TOO_MANY_REQUESTS,
            Self::MissingKey(none) => none.status(),
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

    /// When to try again: in whole seconds, rounded up, and 1 at least. `None`: never, or nobody knows.
    #[must_use]
    pub fn retry_after(&self) -> Option<u64> {
        match self {
            Self::Denied { decision, .. } => whole_seconds(decision.retry_after()),
            Self::Failed(Error::CircuitOpen { retry_after, .. }) => whole_seconds(*retry_after),
            _ => None,
        }
    }

    /// What the client is told. Nothing of the database, whose errors are for the service's own logs.
    #[must_use]
    pub fn message(&self) -> String {
        match self {
            Self::Denied { .. } => match self.retry_after() {
                Some(seconds) => format!("Too many requests: try again in {seconds} s."),
                None => "Too many requests.".to_owned(),
            },
            Self::MissingKey(none) => none.to_string(),
            Self::Failed(Error::Take(TakeError::ExceedsCapacity { cost, capacity, .. })) => {
                format!("This request costs {cost}, and at most {capacity} can ever be had at once.")
            }
            Self::Failed(_) if self.status() == StatusCode::SERVICE_UNAVAILABLE => {
                "Whether this request is within its limit cannot be said now: try again later.".to_owned()
            }
            Self::Failed(Error::Take(TakeError::ZeroCost)) => "This request costs nothing.".to_owned(),
            Self::Failed(_) => "The limit of this request is not set up.".to_owned(),
        }
    }
}

/// Beside a request that [shadow](super::RateLimitLayer::shadow) let pass: what it would have been refused for. It is
/// among the extensions of the answer; of several layers that would have, it is the innermost's.
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
