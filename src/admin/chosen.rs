use chrono::{DateTime, Utc};

use super::{Override, Plan, Switch};
use crate::model::AdminError;
use crate::model::decide;
use crate::model::decide::{Rules, Setting};
use crate::model::quota::Refill;
use crate::model::{Mode, Quota};

/// What was chosen for a key, with the reasons.
#[derive(Clone, Debug, Default)]
pub(crate) struct Chosen {
    pub(crate) all: Switch,
    /// The plan that the request or the bucket names, if there is one.
    pub(crate) plan: Option<Plan>,
    pub(crate) over: Option<Override>,
}

impl From<&Chosen> for Rules {
    fn from(chosen: &Chosen) -> Self {
        Self {
            all: Setting::of_all(&chosen.all),
            plan: chosen.plan.as_ref().map(decide::Plan::from),
            over: chosen.over.as_ref().map(decide::Override::from),
        }
    }
}

impl From<&Plan> for decide::Plan {
    fn from(plan: &Plan) -> Self {
        let setting = plan.switch.as_ref().map(|switch| Setting::new(Some(switch.mode), switch.until));
        Self { quota: plan.quota, setting: setting.unwrap_or_default() }
    }
}

impl From<&Override> for decide::Override {
    fn from(over: &Override) -> Self {
        Self { quota: over.quota, setting: Setting::new(over.mode, over.expires_at) }
    }
}

impl Setting {
    pub(crate) fn new(mode: Option<Mode>, until: Option<DateTime<Utc>>) -> Self {
        Self { mode, until: until.map(nanoseconds).filter(|&until| until < i64::MAX) }
    }

    /// What is chosen for every key, unless that is the usual.
    pub(crate) fn of_all(switch: &Switch) -> Self {
        Self::new((switch.mode != Mode::Enforce).then_some(switch.mode), switch.until)
    }
}

/// A quota that has a limit.
pub(crate) fn limited(quota: Quota) -> Result<Quota, AdminError> {
    if quota.refill() == Refill::Unlimited { Err(AdminError::Unlimited) } else { Ok(quota) }
}

/// A reason that every database's columns hold.
pub(crate) fn reason(text: &str) -> Result<(), AdminError> {
    if text.len() > MOST_REASON || text.contains('\0') { Err(AdminError::Reason(text.len())) } else { Ok(()) }
}

/// An end after `now`. One beyond the year 2262, to which no clock here reaches, is none.
pub(crate) fn until(until: Option<DateTime<Utc>>, now: i64) -> Result<Option<DateTime<Utc>>, AdminError> {
    match until {
        Some(until) if nanoseconds(until) <= now => Err(AdminError::Past(until)),
        until => Ok(until.filter(|until| until.timestamp_nanos_opt().is_some())),
    }
}

/// Nanoseconds since 1970, as far as they can be counted.
pub(crate) fn nanoseconds(at: DateTime<Utc>) -> i64 {
    at.timestamp_nanos_opt().unwrap_or(if at < DateTime::UNIX_EPOCH { i64::MIN } else { i64::MAX })
}

/// In bytes: as many as MySQL's `text` has.
const MOST_REASON: usize = 65_535;
