//! The effective limit and mode of a key, their origins, and the expected outcome of its next request.

use std::time::Duration;

use chrono::{DateTime, Utc};

use super::ModeSetting;
use super::changes::{AdminSettings, nanoseconds};
use crate::model::answer::OutcomeCode;
use crate::model::bucket::{BucketRequest, NEVER_NS};
use crate::model::decide::{self, BucketRow, KeySettings};
use crate::model::{Key, Mode, Quota, Rule};

/// A key's effective limit and mode, where they come from, and the result of a request for one token.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Explanation {
    /// Whether the bucket exists.
    pub known: bool,
    /// The effective quota. `None`: nothing states one.
    pub quota: Option<Quota>,
    /// Where the quota comes from.
    pub quota_from: Option<Origin>,
    /// The plan that the request would name, or else the bucket's.
    pub plan: Option<Key>,
    /// The effective mode.
    pub mode: Mode,
    /// Where the mode comes from. `None`: no operator set one.
    pub mode_from: Option<Origin>,
    /// Why the operator set the mode.
    pub mode_reason: Option<String>,
    /// When the mode ends. `None`: when another mode is set.
    pub mode_until: Option<DateTime<Utc>>,
    /// Why the operator set the override. `None`: the key has no override in force.
    pub override_reason: Option<String>,
    /// When the override ends. `None`: when it is removed, or the key has none in force.
    pub override_until: Option<DateTime<Utc>>,
    /// The whole tokens available. A negative number is promised to requests that wait. `None`: the bucket does not exist.
    ///
    /// PostgreSQL, MySQL and MariaDB compute this and [`retry_after`](Self::retry_after) by the quota of the bucket's last
    /// request, until the next request changes the bucket's quota.
    pub available: Option<i64>,
    /// The result of a request for one token.
    pub expected_outcome: ExpectedOutcome,
    /// The time until a token is available. `None`: never, or unknown.
    pub retry_after: Option<Duration>,
}

/// Where a key's effective quota or mode comes from. The origin nearest to the key wins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Origin {
    /// The key's override.
    Override,
    /// The plan.
    Plan,
    /// The bucket itself.
    Bucket,
    /// The mode of every key.
    All,
}

/// The result of a request for one token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ExpectedOutcome {
    /// It would be granted.
    Granted,
    /// It would be denied.
    Denied,
    /// The bucket does not exist, and the request states no quota to create it with.
    UnknownBucket,
    /// The plan does not exist.
    UnknownPlan,
    /// The bucket was provisioned, but not under the plan that the request names.
    Conflict,
}

/// Explains a key of a store that decides in this process: decides a request on a copy of the row.
pub(crate) fn explain(row: Option<BucketRow>, named: Option<&Key>, chosen: &AdminSettings, now: i64) -> Explanation {
    let rules = KeySettings::from(chosen);
    let plan = named.or_else(|| row.as_ref()?.plan.as_deref()).cloned();
    let over = chosen.over.as_ref().filter(|_| rules.over.is_some_and(|over| over.setting.holds(now)));

    let quotas = [
        (Origin::Override, over.and_then(|over| over.quota)),
        (Origin::Plan, chosen.plan.as_ref().map(|plan| plan.quota)),
        (Origin::Bucket, row.as_ref().map(|row| row.own_quota)),
    ];
    let quota = quotas.into_iter().find_map(|(from, quota)| Some((from, quota?)));
    let of_key = over.and_then(|over| {
        Some(ModeSetting { mode: over.mode?, reason: Some(over.reason.clone()), until: over.expires_at })
    });
    let of_plan = chosen.plan.as_ref().and_then(|plan| plan.mode.clone());
    let of_all = (chosen.all.mode != Mode::Enforce).then(|| chosen.all.clone());
    let settings = [(Origin::Override, of_key), (Origin::Plan, of_plan), (Origin::All, of_all)];
    let in_force = |setting: &ModeSetting| setting.until.is_none_or(|until| nanoseconds(until) > now);
    let setting = settings.into_iter().find_map(|(from, setting)| Some((from, setting.filter(in_force)?)));

    let known = row.is_some();
    let rule = named.map_or(Rule::Provisioned, |plan| Rule::Plan(plan.clone()));
    let (expected_outcome, retry_after, available) = expected_outcome_of(row, &rule, &rules, now);
    let (mode_from, setting) = setting.map(|(from, setting)| (Some(from), setting)).unwrap_or_default();
    Explanation {
        known,
        quota: quota.map(|(_, quota)| quota),
        quota_from: quota.map(|(from, _)| from),
        plan,
        mode: setting.mode,
        mode_from,
        mode_reason: setting.reason,
        mode_until: setting.until,
        override_reason: over.map(|over| over.reason.clone()),
        override_until: over.and_then(|over| over.expires_at),
        available: available.filter(|_| known),
        expected_outcome,
        retry_after: match retry_after {
            NEVER_NS => None,
            ns => Some(Duration::from_nanos(ns.unsigned_abs())),
        },
    }
}

/// The result of a request for one token, the nanoseconds until a token is available, and the tokens under the effective quota.
fn expected_outcome_of(
    row: Option<BucketRow>,
    rule: &Rule,
    chosen: &KeySettings,
    now: i64,
) -> (ExpectedOutcome, i64, Option<i64>) {
    let available = row.as_ref().map(|row| row.available(now));
    let mut brought = match decide::effective_bucket(row, rule, chosen, now) {
        Ok(brought) => brought,
        Err(OutcomeCode::Unplanned) => return (ExpectedOutcome::UnknownPlan, NEVER_NS, available),
        Err(OutcomeCode::Conflict) => return (ExpectedOutcome::Conflict, NEVER_NS, available),
        Err(_) => return (ExpectedOutcome::UnknownBucket, NEVER_NS, available),
    };
    let Some(row) = brought.row.as_ref().filter(|_| brought.mode != Mode::Off) else {
        return (ExpectedOutcome::Granted, 0, available);
    };
    let request = BucketRequest { cost: 1, max_wait: 0, min_remaining: 0 };
    let available = Some(row.available(now));
    let retry_after = match brought.mode {
        Mode::Block => brought.until.map_or(NEVER_NS, |until| until - now),
        _ => row.bucket.verdict(&row.limits(), now, request, false).retry_after,
    };
    let granted = decide::take(&mut brought, request, now).code == OutcomeCode::Granted;
    (if granted { ExpectedOutcome::Granted } else { ExpectedOutcome::Denied }, retry_after, available)
}
