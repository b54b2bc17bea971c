use chrono::{DateTime, Utc};

use super::until;
use crate::model::AdminError;
use crate::model::Mode;

/// A mode that somebody chose, why, and until when.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Switch {
    /// What rules beside the tokens.
    pub mode: Mode,
    /// Why it was chosen.
    pub reason: Option<String>,
    /// When it ends; `None`: when another is chosen.
    pub until: Option<DateTime<Utc>>,
}

impl Default for Switch {
    /// The tokens decide.
    fn default() -> Self {
        Self { mode: Mode::Enforce, reason: None, until: None }
    }
}

impl Switch {
    /// One that can rule, at some time after `now`.
    pub(crate) fn checked(
        mode: Mode,
        reason: Option<&str>,
        end: Option<DateTime<Utc>>,
        now: i64,
    ) -> Result<Self, AdminError> {
        reason.map_or(Ok(()), super::reason)?;
        Ok(Self { mode, reason: reason.map(str::to_owned), until: until(end, now)? })
    }
}
