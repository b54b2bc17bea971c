use std::time::Duration;

use tollgate::{Error, Key};

/// Why a request was not sent.
///
/// The request took no tokens, with two exceptions:
///
/// - The [`Limiter`](Self::Limiter) error states otherwise.
/// - A throttle revoked the reservation of the request, and the next scheduled time was too late. The tokens of the
///   revoked reservation stay taken.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientLimitError {
    /// The wait would exceed [`max_wait`](crate::ClientLimit::max_wait).
    #[error("no tokens available for '{key}' in time{}", in_time(*retry_after))]
    Limited {
        /// The bucket without enough tokens.
        key: Key,
        /// The time until a retry can succeed. `None`: never, or unknown.
        retry_after: Option<Duration>,
    },
    /// The request has no key: no host, a host that is not a valid [`Key`], or a closure that returned `None`.
    #[error(
        "the request has no key to limit it by: it has no host, or one of more than 255 bytes, or key says none. Send it to an \
         absolute URI (a client that tonic generated: with_origin), or say what it is limited by: key"
    )]
    MissingKey,
    /// Two limits of the request have the same key.
    #[error("two limits of the request are of bucket '{0}': give each a key of its own")]
    SameBucket(Key),
    /// The limiter failed, and has no fallback.
    #[error(transparent)]
    Limiter(#[from] Error),
}

fn in_time(retry_after: Option<Duration>) -> String {
    retry_after.map_or_else(String::new, |retry_after| format!("; there could be in {retry_after:?}"))
}
