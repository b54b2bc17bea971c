//! The names of limits, and of the costs that they count.

use std::fmt;

use smol_str::SmolStr;

use crate::model::QuotaError;

/// The name of a limit, or of the cost that it counts: a letter, then up to 31 letters, digits, `-` and `_`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LimitName(SmolStr);

impl LimitName {
    /// Returns the name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<&str> for LimitName {
    type Error = QuotaError;

    fn try_from(name: &str) -> Result<Self, QuotaError> {
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        let is_name = name.starts_with(|c: char| c.is_ascii_alphabetic()) && name.chars().all(is_word);
        if is_name && name.len() <= MAX_NAME_BYTES {
            Ok(Self(name.into()))
        } else {
            Err(QuotaError::InvalidName(name.chars().take(60).collect()))
        }
    }
}

impl fmt::Display for LimitName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

const MAX_NAME_BYTES: usize = 32;
