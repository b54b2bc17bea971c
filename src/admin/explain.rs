use std::time::Duration;

use super::chosen::nanoseconds;
use super::{Chosen, Explanation, Origin, Prospect, Switch};
use crate::model::answer::Word;
use crate::model::bucket::{NEVER_NS, Request};
use crate::model::decide;
use crate::model::decide::{Row, Rules};
use crate::model::{Key, Mode, Rule};

/// Says what rules a key, for the stores that decide in this process: the request is decided, and forgotten.
pub(crate) fn explain(row: Option<Row>, named: Option<&Key>, chosen: &Chosen, now: i64) -> Explanation {
    let rules = Rules::from(chosen);
    let plan = named.or_else(|| row.as_ref()?.plan.as_deref()).cloned();
    let over = chosen.over.as_ref().filter(|_| rules.over.is_some_and(|over| over.setting.holds(now)));

    let quotas = [
        (Origin::Override, over.and_then(|over| over.quota)),
        (Origin::Plan, chosen.plan.as_ref().map(|plan| plan.quota)),
        (Origin::Bucket, row.as_ref().map(|row| row.own)),
    ];
    let quota = quotas.into_iter().find_map(|(from, quota)| Some((from, quota?)));
    let of_key = over
        .and_then(|over| Some(Switch { mode: over.mode?, reason: Some(over.reason.clone()), until: over.expires_at }));
    let of_plan = chosen.plan.as_ref().and_then(|plan| plan.switch.clone());
    let of_all = (chosen.all.mode != Mode::Enforce).then(|| chosen.all.clone());
    let switches = [(Origin::Override, of_key), (Origin::Plan, of_plan), (Origin::All, of_all)];
    let in_force = |switch: &Switch| switch.until.is_none_or(|until| nanoseconds(until) > now);
    let switch = switches.into_iter().find_map(|(from, switch)| Some((from, switch.filter(in_force)?)));

    let known = row.is_some();
    let rule = named.map_or(Rule::Provisioned, |plan| Rule::Plan(plan.clone()));
    let (prospect, retry_after, available) = foresee(row, &rule, &rules, now);
    let (mode_from, switch) = switch.map(|(from, switch)| (Some(from), switch)).unwrap_or_default();
    Explanation {
        known,
        quota: quota.map(|(_, quota)| quota),
        quota_from: quota.map(|(from, _)| from),
        plan,
        mode: switch.mode,
        mode_from,
        mode_reason: switch.reason,
        mode_until: switch.until,
        override_reason: over.map(|over| over.reason.clone()),
        override_until: over.and_then(|over| over.expires_at),
        available: available.filter(|_| known),
        prospect,
        retry_after: match retry_after {
            NEVER_NS => Duration::MAX,
            ns => Duration::from_nanos(ns.unsigned_abs()),
        },
    }
}

/// What a request for one token would come to, in how many nanoseconds a token is there, and the tokens under the terms
/// that rule.
fn foresee(row: Option<Row>, rule: &Rule, chosen: &Rules, now: i64) -> (Prospect, i64, Option<i64>) {
    let available = row.as_ref().map(|row| row.available(now));
    let mut brought = match decide::rule(row, rule, chosen, now) {
        Ok(brought) => brought,
        Err(Word::Unplanned) => return (Prospect::UnknownPlan, NEVER_NS, available),
        Err(Word::Conflict) => return (Prospect::Conflict, NEVER_NS, available),
        Err(_) => return (Prospect::UnknownBucket, NEVER_NS, available),
    };
    let Some(row) = brought.row.as_ref().filter(|_| brought.mode != Mode::Off) else {
        return (Prospect::Granted, 0, available);
    };
    let request = Request { cost: 1, max_wait: 0, keep: 0 };
    let available = Some(row.available(now));
    let retry_after = match brought.mode {
        Mode::Block => brought.until.map_or(NEVER_NS, |until| until - now),
        _ => row.bucket.verdict(&row.terms(), now, request, false).retry_after,
    };
    let granted = decide::take(&mut brought, request, now).word == Word::Granted;
    (if granted { Prospect::Granted } else { Prospect::Denied }, retry_after, available)
}
