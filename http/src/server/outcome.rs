use http::response::Parts;

/// Returns whether an answer is a success, in HTTP and in gRPC.
///
/// A failed gRPC call also has status 200, and reports the failure in `grpc-status`. If the call fails after its answer
/// has begun, `grpc-status` is in the trailers, which are not known yet. Such a call counts as a success.
///
/// Do not use it for a login form that is shown again with 200 after a wrong password. Let the handler insert an
/// extension into its answer instead, and check for the extension in [`refund`](super::RateLimitLayer::refund).
///
/// # Examples
///
/// ```
/// use tollgate_http::{RateLimitLayer, is_success};
/// use tollgate::{Limiter, MemoryStore, Quota};
///
/// let limiter = Limiter::new(MemoryStore::new(), Quota::per_minute(5))?;
/// let failures = RateLimitLayer::new(limiter).refund(|answer, cost| if is_success(answer) { cost } else { 0 });
/// # let _ = failures;
/// # Ok::<(), tollgate::Error>(())
/// ```
#[must_use]
pub fn is_success(answer: &Parts) -> bool {
    answer.status.is_success() && answer.headers.get("grpc-status").is_none_or(|status| status == "0")
}
