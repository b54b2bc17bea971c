//! Refusals as gRPC says them, in `grpc-status` and its details.

use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::request::Parts;
use http::{Method, Response, StatusCode};
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

use super::Refusal;
use super::headers::is_blocked;

/// Whether the client speaks gRPC, and understands no other answer.
pub(super) fn is_grpc(request: &Parts) -> bool {
    let content_type = request.headers.get(CONTENT_TYPE).map_or(&b""[..], |value| value.as_bytes());
    // Another method is not gRPC's, and a GET that is answered so would be a success that caches keep.
    let rest = content_type.strip_prefix(b"application/grpc").filter(|_| request.method == Method::POST);
    rest.is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';' | b' ')))
}

/// An answer without a body: the status is in its headers.
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
    let why = if is_blocked(decision) { "this limit is blocked" } else { "no tokens are left under this limit" };
    let mut details = ErrorDetails::with_quota_failure_violation(&**limit, why);
    if decision.retry_after() != Duration::MAX {
        // To the nanosecond: this is no header of whole seconds.
        details.set_retry_info(Some(decision.retry_after()));
    }
    Status::with_error_details(code, refusal.message(), details)
}
