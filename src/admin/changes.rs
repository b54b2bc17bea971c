//! Changes of operators: plans, overrides and modes, and their form for the arithmetic.

use chrono::{DateTime, Utc};

use crate::admin::AdminError;
use crate::model::decide::{KeySettings, TimedMode};
use crate::model::quota::Refill;
use crate::model::{Error, Key, LimitName, Limits, Mode, Quota, TakeError, decide};

/// A quota and a mode that many buckets share: a plan, or a further limit of one.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Plan {
    /// The name that requests give. A further limit has the id [`Key::limit`] of the plan's name.
    pub name: Key,
    /// The name of the limit, if it has one.
    pub limit: Option<LimitName>,
    /// The name of the cost that the limit counts. `None`: the request's cost.
    pub cost: Option<LimitName>,
    /// The quota of each of its buckets.
    pub quota: Quota,
    /// The plan's own mode, if it has one.
    pub mode: Option<ModeSetting>,
}

/// The limits of a plan to create, which have names, and quotas that are not unlimited.
pub(crate) fn plan_limits(plan: &Key, limits: Limits) -> Result<Limits, AdminError> {
    limits.iter().try_for_each(|limit| limited(limit.quota).map(drop))?;
    if limits[1..].iter().any(|limit| limit.name.is_none()) {
        return Err(AdminError::UnnamedLimit);
    }
    if limits.buckets(plan).any(|(name, _)| name.is_too_long()) {
        return Err(Error::from(TakeError::LimitKeyTooLong(plan.clone())).into());
    }
    Ok(limits)
}

/// A mode that an operator set, the reason, and its end.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ModeSetting {
    /// The mode.
    pub mode: Mode,
    /// Why the operator set it.
    pub reason: Option<String>,
    /// When it ends. `None`: when another mode is set.
    pub until: Option<DateTime<Utc>>,
}

impl Default for ModeSetting {
    /// [`Mode::Enforce`], without an end.
    fn default() -> Self {
        Self { mode: Mode::Enforce, reason: None, until: None }
    }
}

impl ModeSetting {
    /// The setting, if its reason is valid and it ends after `now`.
    pub(crate) fn checked(
        mode: Mode,
        reason: Option<&str>,
        end: Option<DateTime<Utc>>,
        now: i64,
    ) -> Result<Self, AdminError> {
        reason.map_or(Ok(()), check_reason)?;
        Ok(Self { mode, reason: reason.map(str::to_owned), until: check_until(end, now)? })
    }
}

/// A quota, a mode or both that replace one key's own, and the reason. The default changes nothing, and is not valid.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Override {
    /// The quota. `None`: the key keeps its own, and only the mode changes.
    pub quota: Option<Quota>,
    /// The mode. `None`: the plan's, or the mode of every key.
    pub mode: Option<Mode>,
    /// Why the operator set it, for later readers: 65,535 bytes at most, without NUL.
    pub reason: String,
    /// When it ends. `None`: when it is removed.
    pub expires_at: Option<DateTime<Utc>>,
}

impl Override {
    /// The override, if it is valid and ends after `now`.
    pub(crate) fn checked(self, now: i64) -> Result<Self, AdminError> {
        if self.quota.is_none() && self.mode.is_none() {
            return Err(AdminError::ChangesNothing);
        }
        check_reason(&self.reason)?;
        let quota = self.quota.map(limited).transpose()?;
        Ok(Self { quota, expires_at: check_until(self.expires_at, now)?, ..self })
    }
}

/// The settings that apply to a key, with their reasons.
#[derive(Clone, Debug, Default)]
pub(crate) struct AdminSettings {
    pub(crate) all: ModeSetting,
    /// The plan that the request or the bucket names, if it exists.
    pub(crate) plan: Option<Plan>,
    pub(crate) over: Option<Override>,
}

impl From<&AdminSettings> for KeySettings {
    fn from(chosen: &AdminSettings) -> Self {
        Self {
            all: TimedMode::from_setting(&chosen.all),
            plan: chosen.plan.as_ref().map(decide::PlanSettings::from),
            over: chosen.over.as_ref().map(decide::OverrideSettings::from),
        }
    }
}

impl From<&Plan> for decide::PlanSettings {
    fn from(plan: &Plan) -> Self {
        let setting = plan.mode.as_ref().map(|setting| TimedMode::new(Some(setting.mode), setting.until));
        Self { quota: plan.quota, setting: setting.unwrap_or_default() }
    }
}

impl From<&Override> for decide::OverrideSettings {
    fn from(over: &Override) -> Self {
        Self { quota: over.quota, setting: TimedMode::new(over.mode, over.expires_at) }
    }
}

impl TimedMode {
    pub(crate) fn new(mode: Option<Mode>, until: Option<DateTime<Utc>>) -> Self {
        Self { mode, until: until.map(nanoseconds).filter(|&until| until < i64::MAX) }
    }

    /// The mode of every key, unless it is the default.
    pub(crate) fn from_setting(setting: &ModeSetting) -> Self {
        Self::new((setting.mode != Mode::Enforce).then_some(setting.mode), setting.until)
    }
}

/// The quota, unless it is unlimited.
pub(crate) fn limited(quota: Quota) -> Result<Quota, AdminError> {
    if quota.refill() == Refill::Unlimited { Err(AdminError::UnlimitedQuota) } else { Ok(quota) }
}

/// Checks that every database's column can hold a reason.
fn check_reason(text: &str) -> Result<(), AdminError> {
    if text.len() > MAX_REASON || text.contains('\0') { Err(AdminError::InvalidReason(text.len())) } else { Ok(()) }
}

/// The end, if it is after `now`. An end after the year 2262, which no clock here reaches, becomes `None`.
fn check_until(until: Option<DateTime<Utc>>, now: i64) -> Result<Option<DateTime<Utc>>, AdminError> {
    match until {
        Some(until) if nanoseconds(until) <= now => Err(AdminError::EndInPast(until)),
        until => Ok(until.filter(|until| until.timestamp_nanos_opt().is_some())),
    }
}

/// Nanoseconds since 1970, saturating.
pub(super) fn nanoseconds(at: DateTime<Utc>) -> i64 {
    at.timestamp_nanos_opt().unwrap_or(if at < DateTime::UNIX_EPOCH { i64::MIN } else { i64::MAX })
}

/// Bytes that MySQL's `text` holds.
const MAX_REASON: usize = 65_535;
