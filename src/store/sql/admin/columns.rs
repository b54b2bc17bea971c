//! What the databases answer an operator, in the order of their columns.

use std::time::Duration;

use chrono::{DateTime, Utc};

use crate::admin::{BucketLevel, Denials, Explanation, Origin, Override, Plan, Prospect, Switch};
#[cfg(any(feature = "postgres", feature = "mysql"))]
use crate::model::WindowLevel;
use crate::model::quota::Refill;
use crate::model::{Key, Mode, Quota, Window};

/// Id, capacity, nanoseconds from empty to full, refill, plan, provisioned, overridden, available, granted, full at, next
/// refill at.
pub(in crate::store::sql) type Level =
    (String, i64, i64, String, Option<String>, bool, bool, i64, i64, Option<DateTime<Utc>>, Option<DateTime<Utc>>);

/// Maximum, nanoseconds of the interval and of the resolution, counted, granted, milliseconds until one more passes.
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(in crate::store::sql) type WindowCounts = (i64, i64, i64, i64, i64, i64);

/// Id, then as above.
#[cfg(feature = "postgres")]
pub(in crate::store::sql) type Windowed = (String, i64, i64, i64, i64, i64, i64);

/// Mode, reason, until.
pub(in crate::store::sql) type Choice = (Option<String>, Option<String>, Option<DateTime<Utc>>);

/// Name, capacity, nanoseconds from empty to full, refill, mode, reason, until.
pub(in crate::store::sql) type Planned =
    (String, i64, i64, String, Option<String>, Option<String>, Option<DateTime<Utc>>);

/// Capacity, nanoseconds from empty to full, refill, mode, reason, expires at.
pub(in crate::store::sql) type Over = (Option<i64>, Option<i64>, String, Option<String>, String, Option<DateTime<Utc>>);

/// Id, then as above.
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(in crate::store::sql) type Overridden =
    (String, Option<i64>, Option<i64>, String, Option<String>, String, Option<DateTime<Utc>>);

/// Id, denied, last denied at.
pub(in crate::store::sql) type Denied = (String, i64, DateTime<Utc>);

/// Known, terms from, plan, capacity, nanoseconds from empty to full, refill, mode, mode from, mode reason, mode until,
/// override reason, override until, available, outcome, milliseconds until a token is there.
pub(in crate::store::sql) type Explained = (
    bool,
    Option<String>,
    Option<String>,
    Option<i64>,
    Option<i64>,
    Option<String>,
    String,
    Option<String>,
    Option<String>,
    Option<DateTime<Utc>>,
    Option<String>,
    Option<DateTime<Utc>>,
    Option<i64>,
    String,
    Option<i64>,
);

impl TryFrom<Level> for BucketLevel {
    type Error = sqlx::Error;

    fn try_from(columns: Level) -> Result<Self, sqlx::Error> {
        let (id, capacity, refill_ns, refill, plan, provisioned, overridden, available, granted, full_at, next) =
            columns;
        Ok(Self {
            key: key(id)?,
            quota: quota(capacity, refill_ns, &refill)?,
            plan: plan.map(key).transpose()?,
            provisioned,
            overridden,
            available,
            granted: count(granted)?,
            full_at,
            next_refill_at: next,
        })
    }
}

impl TryFrom<Planned> for Plan {
    type Error = sqlx::Error;

    fn try_from(columns: Planned) -> Result<Self, sqlx::Error> {
        let (name, capacity, refill_ns, refill, mode, reason, until) = columns;
        Ok(Self {
            name: key(name)?,
            quota: quota(capacity, refill_ns, &refill)?,
            switch: switch((mode, reason, until))?,
        })
    }
}

impl TryFrom<Denied> for Denials {
    type Error = sqlx::Error;

    fn try_from((id, denied, last_denied_at): Denied) -> Result<Self, sqlx::Error> {
        Ok(Self { key: key(id)?, denied: count(denied)?, last_denied_at })
    }
}

impl TryFrom<Explained> for Explanation {
    type Error = sqlx::Error;

    fn try_from(columns: Explained) -> Result<Self, sqlx::Error> {
        let (known, quota_from, plan, capacity, refill_ns, refill, mode, mode_from, reason, until, ..) = columns;
        let (.., override_reason, override_until, available, outcome, retry_after_ms) = columns;
        let quota = match (capacity, refill_ns, refill) {
            (Some(capacity), Some(refill_ns), Some(refill)) => Some(quota(capacity, refill_ns, &refill)?),
            _ => None,
        };
        Ok(Self {
            known,
            quota,
            quota_from: quota_from.as_deref().map(origin).transpose()?,
            plan: plan.map(key).transpose()?,
            mode: parse(&mode)?,
            mode_from: mode_from.as_deref().map(origin).transpose()?,
            mode_reason: reason,
            mode_until: until,
            override_reason,
            override_until,
            available,
            prospect: match outcome.as_str() {
                "granted" => Prospect::Granted,
                "denied" => Prospect::Denied,
                "unknown" => Prospect::UnknownBucket,
                "unplanned" => Prospect::UnknownPlan,
                "conflict" => Prospect::Conflict,
                other => return Err(strange("outcome", other)),
            },
            retry_after: retry_after_ms.map_or(Duration::MAX, |ms| Duration::from_millis(ms.max(0).unsigned_abs())),
        })
    }
}

#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(in crate::store::sql) fn window(key: &Key, columns: WindowCounts) -> Result<WindowLevel, sqlx::Error> {
    let (most, interval_ns, resolution_ns, counted, granted, retry_after_ms) = columns;
    Ok(WindowLevel {
        key: key.clone(),
        window: terms(most, interval_ns, resolution_ns)?,
        counted: count(counted)?,
        granted: count(granted)?,
        retry_after: Duration::from_millis(count(retry_after_ms)?),
    })
}

#[cfg(feature = "postgres")]
pub(in crate::store::sql) fn windowed(columns: Windowed) -> Result<WindowLevel, sqlx::Error> {
    let (id, most, interval_ns, resolution_ns, counted, granted, retry_after_ms) = columns;
    window(&key(id)?, (most, interval_ns, resolution_ns, counted, granted, retry_after_ms))
}

pub(in crate::store::sql) fn over(
    (capacity, refill_ns, refill, mode, reason, expires_at): Over,
) -> Result<Override, sqlx::Error> {
    let quota = match (capacity, refill_ns) {
        (Some(capacity), Some(refill_ns)) => Some(quota(capacity, refill_ns, &refill)?),
        _ => None,
    };
    Ok(Override { quota, mode: mode.as_deref().map(parse).transpose()?, reason, expires_at })
}

#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(in crate::store::sql) fn overridden(columns: Overridden) -> Result<(Key, Override), sqlx::Error> {
    let (id, capacity, refill_ns, refill, mode, reason, expires_at) = columns;
    Ok((key(id)?, over((capacity, refill_ns, refill, mode, reason, expires_at))?))
}

/// A mode that somebody chose, if somebody did.
pub(in crate::store::sql) fn switch((mode, reason, until): Choice) -> Result<Option<Switch>, sqlx::Error> {
    mode.map(|mode| Ok(Switch { mode: parse(&mode)?, reason, until })).transpose()
}

/// The mode of all keys; `enforce` where its row is missing.
pub(in crate::store::sql) fn mode(row: Option<Result<Choice, sqlx::Error>>) -> Result<Switch, sqlx::Error> {
    Ok(row.transpose()?.map(switch).transpose()?.flatten().unwrap_or_default())
}

pub(in crate::store::sql) fn key(text: String) -> Result<Key, sqlx::Error> {
    Key::try_from(text).map_err(|error| sqlx::Error::Decode(error.into()))
}

pub(in crate::store::sql) fn quota(capacity: i64, refill_ns: i64, refill: &str) -> Result<Quota, sqlx::Error> {
    let refill = Refill::parse(refill).ok_or_else(|| strange("refill", refill))?;
    // What is good once has no time in which it comes back, whatever its row says.
    let refill_ns = if refill == Refill::Once { 0 } else { refill_ns };
    Quota::stored(capacity, refill_ns, refill).map_err(|error| sqlx::Error::Decode(error.into()))
}

/// The terms of a window.
pub(in crate::store::sql) fn terms(most: i64, interval_ns: i64, resolution_ns: i64) -> Result<Window, sqlx::Error> {
    let within = |number: i64| number >= 1;
    if !within(most) || !within(interval_ns) || !within(resolution_ns) {
        return Err(strange("window", &format!("{most} in {interval_ns} ns by {resolution_ns} ns")));
    }
    Ok(Window::stored(most, interval_ns, resolution_ns))
}

/// A number that is never below zero.
pub(in crate::store::sql) fn count(number: i64) -> Result<u64, sqlx::Error> {
    u64::try_from(number).map_err(|error| sqlx::Error::Decode(error.into()))
}

fn origin(word: &str) -> Result<Origin, sqlx::Error> {
    match word {
        "override" => Ok(Origin::Override),
        "plan" => Ok(Origin::Plan),
        "bucket" => Ok(Origin::Bucket),
        "all" => Ok(Origin::All),
        other => Err(strange("origin", other)),
    }
}

fn parse(word: &str) -> Result<Mode, sqlx::Error> {
    Mode::parse(word).ok_or_else(|| strange("mode", word))
}

fn strange(what: &str, word: &str) -> sqlx::Error {
    sqlx::Error::Protocol(format!("the {what} {word:?}"))
}
