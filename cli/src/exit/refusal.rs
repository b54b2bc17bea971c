use tollgate::Key;

use super::{ABSENT, DATABASE, UNREADABLE, UNWRITABLE, WRONG_ARGUMENTS};
use crate::output::plain;

/// What the program itself refuses, and what to do about it.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(crate) struct CliError {
    pub(crate) code: u8,
    pub(crate) message: String,
    pub(crate) hint: String,
}

impl CliError {
    /// Arguments that do not go together, or say nothing.
    pub(crate) fn arguments(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { code: WRONG_ARGUMENTS, message: message.into(), hint: hint.into() }
    }

    /// A file that was to be read.
    pub(crate) fn unreadable(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { code: UNREADABLE, message: message.into(), hint: hint.into() }
    }

    /// A file that was to be written, or the output.
    pub(crate) fn unwritable(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { code: UNWRITABLE, message: message.into(), hint: hint.into() }
    }

    /// Something that is not there.
    pub(crate) fn absent(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { code: ABSENT, message: message.into(), hint: hint.into() }
    }

    /// Buckets that are not there.
    pub(crate) fn no_buckets(absent: &[Key], hint: impl Into<String>) -> Self {
        let names: Vec<_> = absent.iter().map(|key| format!("'{}'", plain(key.as_str()))).collect();
        Self::absent(format!("there is no bucket {}", names.join(", ")), hint)
    }

    /// A database that cannot be used.
    pub(crate) fn database(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { code: DATABASE, message: message.into(), hint: hint.into() }
    }
}
