//! What handlers answer that ask a limiter themselves, because only they know whose a request is or what it costs.

use std::sync::Arc;

use bytes::Bytes;
use http::Response;

use super::headers::{add_policy, add_rate_limit, set_retry_after};
use super::{Refusal, respond};
use crate::{Decision, Error, Rule};

impl Refusal {
    /// Whether a handler that asked for tokens itself goes on; if there were none, what it answers, by the name that the
    /// limit has in the headers.
    ///
    /// As an answer a refusal is what the [layer](super::RateLimitLayer) says: 429, problem details, `Retry-After` and
    /// `RateLimit` with `RateLimit-Policy`. With the feature `axum` it is an `IntoResponse`, with `tonic` it becomes a
    /// `Status`, and elsewhere a [`Response`]; an [`Error`] of the limiter becomes a refusal by `?`.
    ///
    /// ```
    /// # #[cfg(feature = "axum")]
    /// # mod example {
    /// use axum::Json;
    /// use axum::extract::State;
    /// use tollgate::Limiter;
    /// use tollgate::tower::Refusal;
    ///
    /// /// Tokens are words, and only the body says how many.
    /// async fn translate(State(limiter): State<Limiter>, Json(text): Json<String>) -> Result<String, Refusal> {
    ///     let words = text.split(' ').count() as u64;
    ///     Refusal::unless_granted(&limiter.allow_n("user:42", words).await?, "words")?;
    ///     Ok(text.to_uppercase())
    /// }
    /// # pub fn router(limiter: Limiter) -> axum::Router {
    /// #     axum::Router::new().route("/", axum::routing::post(translate)).with_state(limiter)
    /// # }
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// If the tokens were not granted.
    pub fn unless_granted(decision: &Decision, limit: impl Into<Arc<str>>) -> Result<(), Self> {
        if decision.is_granted() {
            return Ok(());
        }
        Err(Self::Denied { decision: Box::new(decision.clone()), limit: limit.into() })
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl From<Refusal> for Response<Bytes> {
    fn from(refusal: Refusal) -> Self {
        let mut response = respond::details(&refusal);
        let headers = response.headers_mut();
        set_retry_after(headers, refusal.retry_after());
        if let Refusal::Denied { decision, limit } = &refusal {
            add_rate_limit(headers, limit, decision);
            // What the store says of its terms: the request's own are not known here.
            add_policy(headers, limit, &Rule::Provisioned, decision);
            let decision = Decision::clone(decision);
            response.extensions_mut().insert(decision);
        }
        response.extensions_mut().insert(refusal);
        response
    }
}

#[cfg(feature = "axum")]
impl axum::response::IntoResponse for Refusal {
    fn into_response(self) -> axum::response::Response {
        Response::<Bytes>::from(self).map(axum::body::Body::from)
    }
}

#[cfg(feature = "tonic")]
impl From<Refusal> for tonic::Status {
    fn from(refusal: Refusal) -> Self {
        super::grpc::status(&refusal)
    }
}
