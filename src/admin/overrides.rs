use chrono::{DateTime, Utc};

use super::{limited, reason, until};
use crate::model::AdminError;
use crate::model::{Mode, Quota};

/// What holds for one key instead of its own terms and mode, and why.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Override {
    /// Its terms; `None`: they stay, only the mode is another.
    pub quota: Option<Quota>,
    /// Its mode; `None`: the plan's, or that of all.
    pub mode: Option<Mode>,
    /// Why it was made, for whoever meets it later: 65,535 bytes at most, without NUL.
    pub reason: String,
    /// When it ends; `None`: when it is taken away.
    pub expires_at: Option<DateTime<Utc>>,
}

impl Override {
    /// One that can rule, at some time after `now`.
    pub(crate) fn checked(self, now: i64) -> Result<Self, AdminError> {
        if self.quota.is_none() && self.mode.is_none() {
            return Err(AdminError::ChangesNothing);
        }
        reason(&self.reason)?;
        let quota = self.quota.map(limited).transpose()?;
        Ok(Self { quota, expires_at: until(self.expires_at, now)?, ..self })
    }
}
