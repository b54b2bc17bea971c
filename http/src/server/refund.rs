//! Refunds of what a request paid, once its response is known.

use http::response::Parts;
use tollgate::{Adjusted, Error, Key, Limiter, Receipt, Store};

use super::future::BoxFuture;

/// Tokens that a request has taken.
pub(super) trait Charge: Send + Sync {
    /// Gives the unused tokens of each bucket back. Returns `None` if there are none.
    fn refund(self: Box<Self>, unused: &dyn Fn(&Receipt) -> u64) -> Option<BoxFuture<'static, Result<Refunds, Error>>>;
}

/// How many tokens buckets got back.
pub(super) type Refunds = Vec<(Key, u64)>;

pub(super) struct LimiterCharge<S: Store> {
    pub(super) limiter: Limiter<S>,
    pub(super) receipts: Vec<Receipt>,
}

impl<S: Store> Charge for LimiterCharge<S> {
    fn refund(self: Box<Self>, unused: &dyn Fn(&Receipt) -> u64) -> Option<BoxFuture<'static, Result<Refunds, Error>>> {
        let Self { limiter, receipts } = *self;
        let unused = receipts.into_iter().map(|receipt| (unused(&receipt), receipt)).filter(|(unused, _)| *unused > 0);
        let (keys, refunds): (Vec<_>, Vec<_>) =
            unused.map(|(unused, receipt)| (receipt.key().clone(), receipt.refund(unused))).unzip();
        if refunds.is_empty() {
            return None;
        }
        Some(Box::pin(async move {
            let adjusted = limiter.adjust(refunds).await?;
            let given_back = keys.into_iter().zip(adjusted).map(|(key, adjusted)| match adjusted? {
                Adjusted::Done(tokens) => Ok((key, tokens.unsigned_abs())),
                _ => Ok((key, 0)),
            });
            given_back.collect()
        }))
    }
}

/// Returns whether an answer is not a failure, in HTTP and in gRPC.
///
/// | status | |
/// |---|---|
/// | 1xx, such as 101 for a websocket | success |
/// | 2xx | success, unless `grpc-status` reports a failure |
/// | 3xx, such as 303 after a login, and 304 | success |
/// | 4xx, 5xx | failure |
///
/// If a gRPC call fails after its answer has begun, `grpc-status` is in the trailers, which are not known yet. Such a
/// call counts as a success.
///
/// # Examples
///
/// Failed logins of a service that answers 303 to a login, and 401 to a wrong password:
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
///
/// If the service shows its form again with 200 after a wrong password, only the redirect is a success:
///
/// ```
/// # use tollgate_http::RateLimitLayer;
/// # use tollgate::{Limiter, MemoryStore, Quota};
/// # let limiter = Limiter::new(MemoryStore::new(), Quota::per_minute(5))?;
/// let failures = RateLimitLayer::new(limiter).refund(|answer, cost| if answer.status.is_redirection() { cost } else { 0 });
/// # let _ = failures;
/// # Ok::<(), tollgate::Error>(())
/// ```
#[must_use]
pub fn is_success(answer: &Parts) -> bool {
    let failed = answer.status.is_client_error() || answer.status.is_server_error();
    !failed && answer.headers.get("grpc-status").is_none_or(|status| status == "0")
}
