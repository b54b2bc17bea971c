//! Refusals as gRPC statuses with details.

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::request::Parts;
use http::{Method, Response, StatusCode};
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

use super::Refusal;
use super::headers::is_blocked;

/// Whether the client speaks gRPC, and therefore needs a gRPC status.
pub(super) fn is_grpc(request: &Parts) -> bool {
    let content_type = request.headers.get(CONTENT_TYPE).map_or(&b""[..], |value| value.as_bytes());
    // gRPC uses POST only. A gRPC answer to a GET would have status 200, and caches would store it.
    let rest = content_type.strip_prefix(b"application/grpc").filter(|_| request.method == Method::POST);
    rest.is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';' | b' ')))
}

/// Returns an answer without a body, with the status in its headers.
pub(super) fn respond(refusal: &Refusal) -> Response<Bytes> {
    status(refusal).into_http()
}

pub(super) fn status(refusal: &Refusal) -> Status {
    let code = match refusal.status() {
        StatusCode::TOO_MANY_REQUESTS => Code::ResourceExhausted,
        StatusCode::SERVICE_UNAVAILABLE => Code::Unavailable,
        StatusCode::UNAUTHORIZED => Code::Unauthenticated,
        StatusCode::FORBIDDEN => Code::PermissionDenied,
        status if status.is_client_error() => Code::InvalidArgument,
        _ => Code::Internal,
    };
    let Refusal::Denied { decision, limit, .. } = refusal else {
        return Status::new(code, refusal.message());
    };
    let description =
        if is_blocked(decision) { "this limit is blocked" } else { "no tokens are left under this limit" };
    let mut details = ErrorDetails::with_quota_failure_violation(&**limit, description);
    if let Some(retry_after) = decision.retry_after() {
        // `RetryInfo` has nanoseconds, unlike `Retry-After`, which has whole seconds.
        details.set_retry_info(Some(retry_after));
    }
    Status::with_error_details(code, refusal.message(), details)
}
