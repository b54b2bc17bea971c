use tollgate::Key;

use super::{ABSENT, DATABASE, UNREADABLE, UNWRITABLE, WRONG_ARGUMENTS};
use crate::output::plain;

/// An error of the CLI itself, with its exit code and its hint.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(crate) struct CliError {
    pub(crate) code: u8,
    pub(crate) message: String,
    pub(crate) hint: String,
}

impl CliError {
    /// Arguments that conflict or are incomplete.
    pub(crate) fn arguments(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { code: WRONG_ARGUMENTS, message: message.into(), hint: hint.into() }
    }

    /// A file that cannot be read or parsed.
    pub(crate) fn unreadable(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { code: UNREADABLE, message: message.into(), hint: hint.into() }
    }

    /// A file or an output that cannot be written.
    pub(crate) fn unwritable(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { code: UNWRITABLE, message: message.into(), hint: hint.into() }
    }

    /// A bucket, a plan or an override that does not exist.
    pub(crate) fn absent(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { code: ABSENT, message: message.into(), hint: hint.into() }
    }

    /// Buckets that do not exist.
    pub(crate) fn no_buckets(absent: &[Key], hint: impl Into<String>) -> Self {
        let names: Vec<_> = absent.iter().map(|key| format!("'{}'", plain(key.as_str()))).collect();
        Self::absent(format!("there is no bucket {}", names.join(", ")), hint)
    }

    /// A database that cannot be used.
    pub(crate) fn database(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { code: DATABASE, message: message.into(), hint: hint.into() }
    }
}
