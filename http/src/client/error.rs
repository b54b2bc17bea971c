use std::time::Duration;

use tollgate::{Error, Key};

/// Why a request was not sent. No token was taken, unless the limiter's own error says otherwise, or somebody was refused when it
/// had its turn, and no other turn came in time.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientLimitError {
    /// Its turn would come later than the client waits.
    #[error("no tokens available for '{key}' in time{}", in_time(*retry_after))]
    Limited {
        /// What it is limited by.
        key: Key,
        /// When there could be some.
        retry_after: Duration,
    },
    /// There is nothing to limit it by: no host, one that is no [`Key`], or none that was said.
    #[error(
        "the request has no key to limit it by: it has no host, or one of more than 255 bytes, or key says none. Send it to an \
         absolute URI (a client that tonic generated: with_origin), or say what it is limited by: key"
    )]
    MissingKey,
    /// Two of its limits would take from one bucket.
    #[error("two limits of the request are of bucket '{0}': give each a key of its own")]
    SameBucket(Key),
    /// The limiter has no answer, and no fallback.
    #[error(transparent)]
    Limiter(#[from] Error),
}

fn in_time(retry_after: Duration) -> String {
    // Nobody knows when, or it is never.
    if retry_after == Duration::MAX { String::new() } else { format!("; there could be in {retry_after:?}") }
}
