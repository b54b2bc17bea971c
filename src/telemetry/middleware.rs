use crate::model::Error;

/// What a middleware did with a request without a decision of its limiter: see [`Limiter::record`](crate::Limiter::record).
///
/// ```
/// use tollgate::telemetry::MiddlewareEvent;
/// use tollgate::{Limiter, MemoryStore};
///
/// # fn main() -> Result<(), tollgate::Error> {
/// let limiter = Limiter::new(MemoryStore::new(), "10/s")?;
/// // The client sent no API key.
/// limiter.record(MiddlewareEvent::RefusedWithoutKey { status: 401, reason: None });
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum MiddlewareEvent<'a> {
    /// It refused a request that has no key.
    RefusedWithoutKey {
        /// The HTTP status of the answer.
        status: u16,
        /// What is wrong with the service, which is logged as a warning; `None` if the client left the key out.
        reason: Option<&'a str>,
    },
    /// It admitted a request that has no key.
    AdmittedWithoutKey,
    /// It could not determine the rule of a request.
    RuleFailed(&'a Error),
    /// It could not give unused tokens back.
    RefundFailed(&'a Error),
}
