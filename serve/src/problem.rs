//! Errors of the JSON endpoints, as problem details (RFC 9457).

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{Request, StatusCode};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::de::DeserializeOwned;
use serde_json::json;
use tollgate::admin::AdminError;
use tollgate::{Error, Key, TakeError};

use crate::gate::Unanswered;

/// Why a request has no answer: a status, and what to do.
#[derive(Debug)]
pub(crate) struct Problem {
    status: StatusCode,
    detail: String,
    retry_after: Option<u64>,
}

impl Problem {
    pub(crate) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self { status, detail: detail.into(), retry_after: None }
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
        let mut answer = (self.status, headers, body.to_string()).into_response();
        if let Some(seconds) = self.retry_after {
            answer.headers_mut().insert(RETRY_AFTER, seconds.into());
        }
        answer
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
            Error::Take(_) | Error::Throttle(_) => StatusCode::UNPROCESSABLE_ENTITY,
            Error::Key(_) | Error::Quota(_) => StatusCode::BAD_REQUEST,
            _ => StatusCode::SERVICE_UNAVAILABLE,
        };
        let retry_after = match &error {
            Error::CircuitOpen { retry_after, .. } => Some(retry_after.as_secs() + 1),
            _ => None,
        };
        Self { retry_after, ..Self::new(status, explained(&error)) }
    }
}

/// The message of an error, with a hint for clients of this server. The library's own hints name its methods.
pub(crate) fn explained(error: &Error) -> String {
    match error {
        Error::Take(TakeError::UnknownBucket(key)) => {
            format!("there is no bucket '{}': state a limit or a plan, or `tollgate create` it", shown(key))
        }
        Error::Take(TakeError::UnknownPlan { plan: Some(plan), .. }) => {
            format!("there is no plan '{}': `tollgate plan set` makes it", shown(plan))
        }
        Error::Take(TakeError::MissingCost { key, cost }) => {
            format!("a limit of '{}' counts '{cost}', which the request does not state: add it to `costs`", shown(key))
        }
        Error::Take(TakeError::ExceedsCapacity { key, cost, capacity, .. }) => {
            format!("a cost of {cost} exceeds the {capacity} tokens that '{}' ever holds: lower the cost", shown(key))
        }
        Error::Take(TakeError::NothingToCharge(key)) => {
            format!("'{}' has no bucket to charge: it is unlimited, or under a sliding window", shown(key))
        }
        Error::CircuitOpen { .. } => "the database does not answer, and is tested meanwhile: ask again".to_owned(),
        // The cause can have details of the database.
        error => error.to_string(),
    }
}

/// A key as a client knows it.
fn shown(key: &Key) -> String {
    match key.limit_name() {
        Some(limit) => format!("{} limit={limit}", key.without_limit()),
        None => key.to_string(),
    }
}

impl From<AdminError> for Problem {
    fn from(error: AdminError) -> Self {
        match error {
            AdminError::Store(error) => error.into(),
            AdminError::Window(key) => {
                let detail =
                    format!("'{}' is under a sliding window, which has no bucket: give a quota or a plan", shown(&key));
                Self::new(StatusCode::UNPROCESSABLE_ENTITY, detail)
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
    let bytes = body.map_err(|error| {
        if error.is::<LengthLimitError>() {
            let detail = format!("the body has more than {MAX_BODY} bytes: shorten it");
            return Problem::new(StatusCode::PAYLOAD_TOO_LARGE, detail);
        }
        Problem::invalid("the body is incomplete or malformed: send it again")
    })?;
    let bytes = bytes.to_bytes();
    // Lists could also stand for objects, with the members in an order that no one states.
    if bytes.iter().find(|byte| !byte.is_ascii_whitespace()) != Some(&b'{') {
        return Err(Problem::invalid("the body is not valid: send a JSON object"));
    }
    serde_json::from_slice(&bytes).map_err(|error| Problem::invalid(format!("the body is not valid: {error}")))
}

/// The longest body, in bytes.
const MAX_BODY: usize = 64 << 10;
