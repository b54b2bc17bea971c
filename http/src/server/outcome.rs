use http::response::Parts;

/// Whether an answer is a success, by HTTP and by gRPC: for [`refund`](super::RateLimitLayer::refund) and its like.
///
/// A failed gRPC call is answered with 200 as well, and says so in `grpc-status`. One that fails only after its answer has
/// begun says so in trailers behind the messages, which nobody knows yet: it counts as a success.
///
/// Not for a form that is shown again, with 200, after a wrong password, and answers a right one with a redirection: there a
/// handler says it itself, by an extension of its answer that the closure looks for.
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
