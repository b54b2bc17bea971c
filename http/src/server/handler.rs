//! What handlers answer that ask a limiter themselves, because only they know whose a request is or what it costs.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Response};
use tollgate::{Decision, Error};

use super::headers::set_refused;
use super::{MissingKey, Refusal, respond};

impl Refusal {
    /// Whether a handler that asked for tokens itself goes on; if there were none, what it answers, by the name that the
    /// limit has in the headers.
    ///
    /// As an answer a refusal is what a [layer](super::RateLimitLayer) with its defaults says: 429, problem details,
    /// `Retry-After` and `RateLimit`, and `RateLimit-Policy` if the store has said its terms. With the feature `axum` it is an
    /// `IntoResponse`, with `tonic` it becomes a `Status`, and elsewhere a [`Response`], whose body an answer to HEAD has to
    /// leave out; an [`Error`] of the limiter becomes a refusal by `?`.
    ///
    /// It is for a decision of `allow` or `wait`; a reservation's may be [due later](Decision::wait). What several limits have
    /// decided has the name of [the one that did](Decision::limit).
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
    /// If the tokens were not granted.
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
            // Of what the client said: a layer would hash it.
            Error::Key(error) => Self::MissingKey(MissingKey::client_error(error.to_string())),
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
