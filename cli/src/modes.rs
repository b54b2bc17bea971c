//! Modes as arguments, as text and as JSON.

use chrono::{DateTime, Utc};
use clap::ValueEnum;
use schemars::JsonSchema;
use serde::Serialize;
use tollgate::{Mode, admin::ModeSetting};

use crate::text::plain;
use crate::times;

#[derive(Clone, Copy, ValueEnum, JsonSchema)]
#[schemars(rename_all = "lowercase")]
pub(crate) enum ModeArg {
    /// The tokens decide
    Enforce,
    /// Tokens are taken, and requests that find none pass all the same
    Shadow,
    /// Every request passes, and no bucket is touched
    Off,
    /// Every request is denied
    Block,
}

impl From<ModeArg> for Mode {
    fn from(choice: ModeArg) -> Self {
        match choice {
            ModeArg::Enforce => Self::Enforce,
            ModeArg::Shadow => Self::Shadow,
            ModeArg::Off => Self::Off,
            ModeArg::Block => Self::Block,
        }
    }
}

/// The mode of an object that can have one.
#[derive(Serialize, JsonSchema)]
pub(crate) struct SettingJson {
    /// The mode that is set. Null: none, so that the next mode in order is effective: of the plan, or of all.
    #[schemars(with = "Option<ModeArg>")]
    mode: Option<&'static str>,
    /// Why the mode is set.
    mode_reason: Option<String>,
    /// When the mode ends. Null: never.
    #[schemars(extend("format" = "date-time"))]
    mode_until: Option<String>,
    /// Whether the mode has expired, so that the next mode in order is effective.
    mode_ended: bool,
}

impl SettingJson {
    pub(crate) fn new(setting: Option<&ModeSetting>, now: DateTime<Utc>) -> Self {
        let reason = setting.and_then(|setting| setting.reason.clone());
        Self {
            mode: setting.map(|setting| setting.mode.as_str()),
            mode_reason: reason.filter(|reason| !reason.is_empty()),
            mode_until: times::timestamp(setting.and_then(|setting| setting.until)),
            mode_ended: setting.is_some_and(|setting| has_ended(setting, now)),
        }
    }
}

/// Whether it holds no more.
pub(crate) fn has_ended(setting: &ModeSetting, now: DateTime<Utc>) -> bool {
    setting.until.is_some_and(|until| until <= now)
}

/// A mode, how long it holds, and why; once it is over, what holds otherwise.
pub(crate) fn describe(setting: &ModeSetting, otherwise: &str, now: DateTime<Utc>) -> String {
    if has_ended(setting, now) {
        return format!("{otherwise} ({} is over)", setting.mode);
    }
    let reason = setting.reason.as_deref().filter(|reason| !reason.is_empty());
    let reason = reason.map_or_else(String::new, |reason| format!(": {}", plain(reason)));
    format!("{}{}{reason}", setting.mode, times::ending(setting.until, now))
}

#[cfg(test)]
mod tests {
    use chrono::TimeDelta;

    use super::*;

    #[test]
    fn mode_has_ended_once_its_end_is_reached() {
        let now = DateTime::UNIX_EPOCH;
        let end = now + TimeDelta::minutes(5);
        let mut set = ModeSetting::default();
        assert!(!has_ended(&set, end), "it has no end");
        set.until = Some(end);
        for (then, ended) in [(now, false), (end - TimeDelta::nanoseconds(1), false), (end, true)] {
            assert_eq!(has_ended(&set, then), ended, "at {then}");
        }
    }
}
