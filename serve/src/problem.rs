//! Errors of the JSON endpoints, as problem details (RFC 9457).

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Limited};
use serde::de::DeserializeOwned;
use serde_json::json;
use tollgate::admin::AdminError;
use tollgate::{Error, TakeError};

use crate::gate::Unanswered;

/// Why a request has no answer: a status, and what to do.
#[derive(Debug)]
pub(crate) struct Problem {
    status: StatusCode,
    detail: String,
}

impl Problem {
    pub(crate) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self { status, detail: detail.into() }
    }

    pub(crate) fn invalid(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail)
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let title = self.status.canonical_reason().unwrap_or_default();
        let body = json!({ "status": self.status.as_u16(), "title": title, "detail": self.detail });
        let headers = [
            (CONTENT_TYPE, HeaderValue::from_static("application/problem+json")),
            (CACHE_CONTROL, HeaderValue::from_static("no-store")),
        ];
        (self.status, headers, body.to_string()).into_response()
    }
}

impl From<Unanswered> for Problem {
    fn from(unanswered: Unanswered) -> Self {
        match unanswered {
            Unanswered::Invalid(message) => Self::invalid(message),
            Unanswered::Failed(error) => error.into(),
        }
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        let status = match &error {
            Error::Take(TakeError::UnknownBucket(_) | TakeError::UnknownPlan { .. }) => StatusCode::NOT_FOUND,
            Error::Take(TakeError::Conflict(_) | TakeError::IdReused(_)) => StatusCode::CONFLICT,
            Error::Take(TakeError::TooManyKeys(_) | TakeError::TooManyIds(_)) => StatusCode::SERVICE_UNAVAILABLE,
            Error::Take(_) | Error::Throttle(_) | Error::Quota(_) => StatusCode::UNPROCESSABLE_ENTITY,
            Error::Key(_) => StatusCode::BAD_REQUEST,
            _ => StatusCode::SERVICE_UNAVAILABLE,
        };
        Self::new(status, error.to_string())
    }
}

impl From<AdminError> for Problem {
    fn from(error: AdminError) -> Self {
        match error {
            AdminError::Store(error) => error.into(),
            error @ (AdminError::Window(_) | AdminError::NoWindow(_)) => {
                Self::new(StatusCode::UNPROCESSABLE_ENTITY, error.to_string())
            }
            error => Self::new(StatusCode::NOT_IMPLEMENTED, error.to_string()),
        }
    }
}

/// Reads a JSON body.
pub(crate) async fn read_json<T: DeserializeOwned>(request: Request<Body>) -> Result<T, Problem> {
    // A page of a browser can send other types to this host without asking.
    let is_json = request.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).is_some_and(|value| {
        value.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json"))
    });
    if !is_json {
        let detail = "the body has another type: send `content-type: application/json`";
        return Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail));
    }
    let body = Limited::new(request.into_body(), MAX_BODY).collect().await;
    let bytes = body
        .map_err(|_| {
            let detail = format!("the body is incomplete, or has more than {MAX_BODY} bytes: shorten it");
            Problem::new(StatusCode::PAYLOAD_TOO_LARGE, detail)
        })?
        .to_bytes();
    serde_json::from_slice(&bytes).map_err(|error| Problem::invalid(format!("the body is not valid: {error}")))
}

/// The longest body, in bytes.
pub(crate) const MAX_BODY: usize = 64 << 10;
