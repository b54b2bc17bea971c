//! The errors of operators' calls, with hints.

use std::sync::Arc;

use chrono::{DateTime, Utc};

use crate::model::{Error, Key};

/// The reason why an operator's call failed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdminError {
    /// The override has neither a quota nor a mode. Nothing was changed.
    #[error("the override changes nothing: {hint}", hint = self.hint().unwrap_or_default())]
    ChangesNothing,
    /// The end is in the past. Nothing was changed.
    #[error("it would end at {0}, which is past: {hint}", hint = self.hint().unwrap_or_default())]
    EndInPast(DateTime<Utc>),
    /// The reason has more than 65,535 bytes, or a NUL. Holds the number of bytes. Nothing was changed.
    #[error(
        "a reason of {0} bytes, or with a NUL in it, cannot be stored: {hint}",
        hint = self.hint().unwrap_or_default()
    )]
    InvalidReason(usize),
    /// The quota is unlimited, which no store can keep. Nothing was changed.
    #[error("a quota without a limit cannot be stored: {hint}", hint = self.hint().unwrap_or_default())]
    UnlimitedQuota,
    /// A further limit of a plan has no name. Nothing was changed.
    #[error("each limit of a plan but the first has a name: {hint}", hint = self.hint().unwrap_or_default())]
    UnnamedLimit,
    /// Usage cannot be kept for this many days. Nothing was changed.
    #[error("usage cannot be kept for {0} days: {hint}", hint = self.hint().unwrap_or_default())]
    InvalidKeepDays(u32),
    /// The store is in memory, which records no usage.
    #[error("a store in memory records no usage: {hint}", hint = self.hint().unwrap_or_default())]
    NoUsage,
    /// The store cannot report levels.
    #[error("this kind of store reports no levels: {hint}", hint = self.hint().unwrap_or_default())]
    Unsupported,
    /// The key is under a sliding window, which has no bucket.
    #[error("'{0}' is under a sliding window, which has no bucket: {hint}", hint = self.hint().unwrap_or_default())]
    Window(Key),
    /// The key is not under a sliding window.
    #[error("'{0}' is under no sliding window: {hint}", hint = self.hint().unwrap_or_default())]
    NoWindow(Key),
    /// The store failed, or refused the call.
    #[error(transparent)]
    Store(#[from] Error),
}

impl AdminError {
    /// Returns what to do about the error. The message ends with it, after a colon. `None`: the message says all.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        Some(match self {
            Self::ChangesNothing => "give it a quota, or a mode",
            Self::EndInPast(_) => "give a later time, or none",
            Self::InvalidReason(_) => "give 65535 bytes or less, without NUL",
            Self::UnlimitedQuota => "switch the mode to off instead",
            Self::UnnamedLimit => "write 'day: 1000/day'",
            Self::InvalidKeepDays(_) => "give 1 to 36525 days",
            Self::NoUsage => "use a database, such as a SQLite file",
            Self::Unsupported => "implement TestStore::maintenance for it",
            Self::Window(_) => "peek_window reads what it has counted",
            Self::NoWindow(_) => "peek reads its bucket",
            Self::Store(error) => return error.hint(),
        })
    }
}

/// For a function that both decides and provisions.
impl From<AdminError> for Error {
    fn from(error: AdminError) -> Self {
        match error {
            AdminError::Store(error) => error,
            invalid => Self::Invalid(Arc::new(invalid)),
        }
    }
}
