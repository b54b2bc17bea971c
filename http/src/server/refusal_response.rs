//! Refusals of handlers that call a limiter themselves, because only they know the key or the cost.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Response};
use tollgate::{Decision, Error};

use super::headers::set_refused;
use super::{MissingKey, Refusal, respond};

impl Refusal {
    /// Returns `Ok` if the decision of a handler's own limiter call granted the tokens.
    ///
    /// The handler returns the refusal as its answer. The answer is the default one of a
    /// [layer](super::RateLimitLayer): 429, problem details, `Retry-After` and `RateLimit`, and `RateLimit-Policy` if
    /// the store returned the effective limit. `limit` is the name of the limit in these headers.
    ///
    /// - With the feature `axum`, a refusal is an `IntoResponse`.
    /// - With the feature `tonic`, it converts into a `Status`.
    /// - Elsewhere it converts into a [`Response`]. Remove the body of an answer to HEAD.
    /// - An [`Error`] of the limiter converts into a refusal through `?`.
    ///
    /// Use it for decisions of `allow` and `wait`. The tokens of a reservation can be [due later](Decision::wait). With
    /// several limits, pass the name of [the limit that decided](Decision::limit_index).
    ///
    /// # Examples
    ///
    /// ```
    /// # #[cfg(feature = "axum")]
    /// # mod example {
    /// use axum::Json;
    /// use axum::extract::State;
    /// use tollgate::Limiter;
    /// use tollgate_http::Refusal;
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
    /// Returns [`Refusal::Denied`] if the tokens were not granted.
    pub fn unless_granted(decision: &Decision, limit: impl Into<Arc<str>>) -> Result<(), Self> {
        if decision.is_granted() {
            return Ok(());
        }
        Err(Self::Denied { decision: Box::new(decision.clone()), limit: limit.into(), key: None })
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        match error {
            // The client's text is not a valid key. A layer would hash the text.
            Error::Key(_) => {
                Self::MissingKey(MissingKey::client_error("The key of this request is not valid. Send another value."))
            }
            other => Self::Failed(other),
        }
    }
}

impl From<Refusal> for Response<Bytes> {
    fn from(refusal: Refusal) -> Self {
        let mut response = respond::details(&refusal);
        add_headers(response.headers_mut(), &refusal);
        if let Refusal::Denied { decision, .. } = &refusal {
            response.extensions_mut().insert(Decision::clone(decision));
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
        let mut headers = HeaderMap::new();
        add_headers(&mut headers, &refusal);
        let mut status = super::grpc::status(&refusal);
        *status.metadata_mut() = tonic::metadata::MetadataMap::from_headers(headers);
        status
    }
}

fn add_headers(headers: &mut HeaderMap, refusal: &Refusal) {
    set_refused(headers, refusal.retry_after());
    if let Refusal::Denied { decision, limit, .. } = refusal {
        respond::add_headers(headers, limit, decision);
    }
}
