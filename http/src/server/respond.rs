//! Answers to requests that are refused, for [`RateLimitLayer::respond`](super::RateLimitLayer::respond). The layer adds
//! `Retry-After`, `Cache-Control: no-store` and the `RateLimit` headers to each of them.
//!
//! And these headers, for handlers that ask a limiter themselves.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::request::Parts;
use http::{HeaderMap, Response, StatusCode};
use serde_json::{Value, json};
use tollgate::{Decision, Rule, model::Source};

use super::Refusal;
use super::headers::{add_policy, add_rate_limit, is_limited};

/// Problem details (RFC 9457), `application/problem+json`; a denial is of the type `quota-exceeded` of the `RateLimit`
/// headers' draft, or if a [`Fallback`](tollgate::Fallback) denied, `temporary-reduced-capacity`, and names the limit. That is 429
/// as well, where the draft recommends 503: it is this client who is to slow down, and whoever balances the load takes no replica
/// out for it.
pub fn problem(refusal: &Refusal, _request: &Parts) -> Response<Bytes> {
    details(refusal)
}

/// Whatever the request was.
pub(super) fn details(refusal: &Refusal) -> Response<Bytes> {
    let mut problem = json!({ "status": refusal.status().as_u16(), "detail": refusal.message() });
    match refusal {
        Refusal::Denied { limit, decision, .. } => {
            // What the client was promised may be more than a fallback can give.
            let (name, title) = if decision.source() == Source::Fallback { REDUCED_CAPACITY } else { QUOTA_EXCEEDED };
            problem["type"] = format!("https://iana.org/assignments/http-problem-types#{name}").into();
            problem["title"] = title.into();
            problem["violated-policies"] = json!([**limit]);
        }
        _ => problem["title"] = refusal.status().canonical_reason().into(),
    }
    json_response(refusal.status(), "application/problem+json", &problem)
}

/// `{"message": "Too many requests: try again in 3 s.", "retry_after_seconds": 3}`, as `application/json`.
pub fn message(refusal: &Refusal, _request: &Parts) -> Response<Bytes> {
    let body = json!({ "message": refusal.message(), "retry_after_seconds": refusal.retry_after() });
    json_response(refusal.status(), "application/json", &body)
}

/// Adds `RateLimit` and, if the store has said its terms, `RateLimit-Policy`, by a name for the limit: to tell those who are
/// served, too, what is left. Where nothing limited the request, there is nothing to say.
///
/// What a limiter [keeps](tollgate::LimiterBuilder::min_remaining) for others is not known here, and so it is among what is left: of such
/// a limiter a [layer](super::RateLimitLayer) says only what the client can have.
pub fn add_headers(headers: &mut HeaderMap, limit: &str, decision: &Decision) {
    if decision.is_granted() && !is_limited(decision) {
        return;
    }
    // What the request kept for others, and its own terms, are not known here.
    add_rate_limit(headers, limit, 0, decision, !decision.is_granted());
    add_policy(headers, limit, None, &Rule::Provisioned, 0, decision);
}

fn json_response(status: StatusCode, content_type: &'static str, body: &Value) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from(body.to_string()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// Types of problems, and their titles.
const QUOTA_EXCEEDED: (&str, &str) =
    ("quota-exceeded", "Request cannot be satisfied as assigned quota has been exceeded");
const REDUCED_CAPACITY: (&str, &str) =
    ("temporary-reduced-capacity", "Request cannot be satisfied due to temporary server capacity constraints");
