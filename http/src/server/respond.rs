//! Answers to refused requests, for [`RateLimitLayer::respond`](super::RateLimitLayer::respond).
//!
//! The layer adds `Retry-After`, `Cache-Control: no-store` and the `RateLimit` headers to each answer. Handlers that
//! call a limiter themselves add the `RateLimit` headers with [`add_headers`].

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::request::Parts;
use http::{HeaderMap, Response, StatusCode};
use serde::Serialize;
use tollgate::{Decision, Rule, model::Source};

use super::Refusal;
use super::headers::{add_policy, add_rate_limit, is_limited};

/// Returns problem details (RFC 9457), as `application/problem+json`.
///
/// A denial has the type `quota-exceeded` of the `RateLimit` draft, and names the limit. If a
/// [`Fallback`](tollgate::Fallback) denied, the type is `temporary-reduced-capacity`. The status is 429 then too,
/// although the draft recommends 503: load balancers take 503 for a broken replica.
pub fn problem(refusal: &Refusal, _request: &Parts) -> Response<Bytes> {
    details(refusal)
}

/// Problem details.
#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct Details<'a> {
    detail: String,
    status: u16,
    title: Option<&'static str>,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    violated_policies: Option<[&'a str; 1]>,
}

/// Returns the problem details of a refusal. They do not depend on the request.
pub(super) fn details(refusal: &Refusal) -> Response<Bytes> {
    let status = refusal.status();
    let (kind, title, violated_policies) = match refusal {
        Refusal::Denied { limit, decision, .. } => {
            // A fallback can grant less than the client's quota.
            let (kind, title) = if decision.source() == Source::Fallback { REDUCED_CAPACITY } else { QUOTA_EXCEEDED };
            (Some(kind), Some(title), Some([&**limit]))
        }
        _ => (None, status.canonical_reason(), None),
    };
    let details = Details { detail: refusal.message(), status: status.as_u16(), title, kind, violated_policies };
    json_response(status, "application/problem+json", &details)
}

#[derive(Serialize)]
struct Message {
    message: String,
    retry_after_seconds: Option<u64>,
}

/// Returns `{"message": "Too many requests. Try again in 3 s.", "retry_after_seconds": 3}`, as `application/json`.
///
/// `retry_after_seconds` is null if a retry can never succeed, or if the time is unknown.
pub fn message(refusal: &Refusal, _request: &Parts) -> Response<Bytes> {
    let body = Message { message: refusal.message(), retry_after_seconds: refusal.retry_after() };
    json_response(refusal.status(), "application/json", &body)
}

/// Adds `RateLimit` to an answer, and `RateLimit-Policy` if the store returned the effective limit.
///
/// Handlers that call a limiter themselves add these headers to granted requests. Adds nothing if a mode, a fallback or
/// an unlimited quota granted the request.
///
/// The [minimum remaining](tollgate::LimiterBuilder::min_remaining) is unknown here, so its tokens count as left. A
/// [layer](super::RateLimitLayer) subtracts them.
pub fn add_headers(headers: &mut HeaderMap, limit: &str, decision: &Decision) {
    if decision.is_granted() && !is_limited(decision) {
        return;
    }
    // A decision contains neither the minimum remaining nor the request's own rule.
    add_rate_limit(headers, limit, 0, decision, !decision.is_granted());
    add_policy(headers, limit, None, &Rule::Provisioned, 0, decision);
}

fn json_response(status: StatusCode, content_type: &'static str, body: &impl Serialize) -> Response<Bytes> {
    let body = serde_json::to_vec(body).expect("texts and numbers have a JSON form");
    let mut response = Response::new(Bytes::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// Problem types and their titles.
const QUOTA_EXCEEDED: (&str, &str) = (
    "https://iana.org/assignments/http-problem-types#quota-exceeded",
    "Request cannot be satisfied as assigned quota has been exceeded",
);
const REDUCED_CAPACITY: (&str, &str) = (
    "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
    "Request cannot be satisfied due to temporary server capacity constraints",
);
