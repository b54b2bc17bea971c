use chrono::{DateTime, Utc};

use crate::model::Key;

/// Why what an operator asked for can never be, decided before the store is asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AdminError {
    /// An override without a quota and without a mode.
    #[error("the override changes nothing: give it a quota, or a mode")]
    ChangesNothing,
    /// An end that has passed.
    #[error("it would end at {0}, which is past: give a later time, or none")]
    Past(DateTime<Utc>),
    /// A reason that not every database can hold; its bytes.
    #[error("a reason of {0} bytes, or with a NUL in it, cannot be stored: give 65535 bytes or less, without NUL")]
    Reason(usize),
    /// A quota without a limit, which no store keeps.
    #[error("a quota without a limit cannot be stored: switch the mode to off instead")]
    Unlimited,
    /// A store of a kind that does not say what it holds.
    #[error("this kind of store does not say what it holds: it has no Maintenance::level and window_level")]
    Unsupported,
    /// A sliding window, which counts what has passed.
    #[error("'{0}' is under a sliding window, which has no bucket to look at: peek_window says what it has counted")]
    Window(Key),
    /// A bucket, which counts nothing in a sliding window.
    #[error("'{0}' is under no sliding window: peek says what its bucket has")]
    NoWindow(Key),
}
