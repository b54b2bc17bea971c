//! The methods of operators for SQL stores, and the conversion of the rows that they read.

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};

use super::SqlStore;
use super::dialect::{Dialect, Operation, PageStart, RecordingColumns, RowResult, UsageColumns};
use super::instant::Instant;
use super::plans::limit_name;
use crate::admin::{
    AdminError, BucketLevel, DenialCount, ExpectedOutcome, Explanation, Filter, ModeSetting, Origin, Override, Page,
    Plan, Usage, UsageFilter, UsagePeriod, UsageRecording,
};
use crate::admin::{limited, plan_limits};
use crate::model::quota::Refill;
use crate::model::{Error, Key, Limits, Mode, Quota, Window, WindowLevel};
use crate::store::Admin;

impl<DB: Dialect> Admin for SqlStore<DB> {
    async fn create_bucket(&self, key: &Key, quota: Quota) -> Result<(), AdminError> {
        Ok(self.run_change((key.clone(), limited(quota)?), DB::create_bucket).await?)
    }

    async fn peek(&self, key: &Key) -> Result<Option<BucketLevel>, Error> {
        let found = self.run_operation(key.clone(), DB::peek).await?;
        found.map(|row| row.map_err(|why| unreadable(key, why))).transpose()
    }

    async fn peek_window(&self, key: &Key) -> Result<Option<WindowLevel>, Error> {
        let found = self.run_operation(key.clone(), DB::peek_window).await?;
        found.map(|row| row.map_err(|why| unreadable(key, why))).transpose()
    }

    async fn list(&self, filter: &Filter, after: Option<&Key>, limit: u32) -> Result<Page<BucketLevel>, Error> {
        self.page(after, limit, |after| (filter.clone(), after, limit), DB::list).await
    }

    async fn windows(&self, prefix: Option<&Key>, after: Option<&Key>, limit: u32) -> Result<Page<WindowLevel>, Error> {
        let filter = prefix.cloned().into_iter().fold(Filter::default(), Filter::prefix);
        self.page(after, limit, |after| (filter.clone(), after, limit), DB::windows).await
    }

    async fn reset(&self, key: &Key) -> Result<bool, Error> {
        self.run_change(key.clone(), DB::reset).await
    }

    async fn delete(&self, key: &Key) -> Result<bool, Error> {
        self.run_change(key.clone(), DB::delete).await
    }

    async fn explain(&self, key: &Key, plan: Option<&Key>) -> Result<Explanation, Error> {
        let explained = self.run_operation((key.clone(), plan.cloned()), DB::explain).await?;
        explained.map_err(|why| unreadable(key, why))
    }

    async fn create_plan(&self, name: &Key, limits: Limits) -> Result<(), AdminError> {
        let limits = plan_limits(name, limits)?;
        let created = self.run_change((name.clone(), limits), DB::create_plan).await;
        self.plans.forget(name);
        Ok(created?)
    }

    async fn set_plan_mode(
        &self,
        name: &Key,
        mode: Option<Mode>,
        reason: Option<&str>,
        until: Option<DateTime<Utc>>,
    ) -> Result<bool, AdminError> {
        let setting = mode.map(|mode| ModeSetting::checked(mode, reason, until, self.now())).transpose()?;
        Ok(self.run_change((name.clone(), setting), DB::set_plan_mode).await?)
    }

    async fn plan(&self, name: &Key) -> Result<Option<Plan>, Error> {
        let found = self.run_operation(name.clone(), DB::plan).await?;
        found.map(|row| row.map_err(|why| unreadable(name, why))).transpose()
    }

    async fn plans(&self, after: Option<&Key>, limit: u32) -> Result<Page<Plan>, Error> {
        self.page(after, limit, |after| (after, limit), DB::plans).await
    }

    async fn delete_plan(&self, name: &Key) -> Result<bool, Error> {
        let deleted = self.run_change(name.clone(), DB::delete_plan).await;
        self.plans.forget(name);
        deleted
    }

    async fn set_mode(&self, mode: Mode, reason: Option<&str>, until: Option<DateTime<Utc>>) -> Result<(), AdminError> {
        Ok(self.run_change(ModeSetting::checked(mode, reason, until, self.now())?, DB::set_mode).await?)
    }

    async fn mode(&self) -> Result<ModeSetting, Error> {
        let (table, mode) = (Key::try_from("token_mode")?, self.run_operation((), DB::mode).await?);
        mode.map_err(|why| unreadable(&table, why))
    }

    async fn set_override(&self, key: &Key, over: Override) -> Result<(), AdminError> {
        Ok(self.run_change((key.clone(), over.checked(self.now())?), DB::set_override).await?)
    }

    async fn clear_override(&self, key: &Key) -> Result<bool, Error> {
        self.run_change(key.clone(), DB::clear_override).await
    }

    async fn overrides(&self, after: Option<&Key>, limit: u32) -> Result<Page<(Key, Override)>, Error> {
        self.page(after, limit, |after| (after, limit), DB::overrides).await
    }

    async fn most_denied(&self, limit: u32) -> Result<Page<DenialCount>, Error> {
        self.page(None, limit, |after| (after, limit), DB::most_denied).await
    }

    async fn set_usage_recording(&self, recording: Option<UsageRecording>) -> Result<(), AdminError> {
        let recording = recording.map(UsageRecording::checked).transpose()?;
        Ok(self.run_change(recording, DB::set_usage_recording).await?)
    }

    async fn usage_recording(&self) -> Result<Option<UsageRecording>, Error> {
        let (table, row) =
            (Key::try_from("token_usage_recording")?, self.run_operation((), DB::usage_recording).await?);
        row.map(recording).transpose().map_err(|why| unreadable(&table, why))
    }

    async fn usage(&self, filter: &UsageFilter, after: Option<&Key>, limit: u32) -> Result<Vec<Usage>, Error> {
        let (table, arguments) = (Key::try_from("token_usage")?, (filter.clone(), after.cloned(), limit));
        let rows = self.run_operation(arguments, DB::usage).await?;
        rows.into_iter().map(|row| usage(row).map_err(|why| unreadable(&table, why))).collect()
    }
}

impl<DB: Dialect> SqlStore<DB> {
    /// Reads rows until a page is full or there are no more. Skips and counts rows that cannot be read.
    async fn page<A, T>(
        &self,
        after: Option<&Key>,
        limit: u32,
        arguments: impl Fn(PageStart) -> A + Send + Sync,
        operation: Operation<DB, A, Vec<RowResult<T>>>,
    ) -> Result<Page<T>, Error>
    where
        A: Send + Sync + 'static,
        T: PageRow + Send + 'static,
    {
        let (mut page, mut after) = (Page::default(), PageStart { key: after.cloned(), skip: 0 });
        loop {
            let rows = self.run_operation(arguments(after.clone()), operation).await?;
            let is_last = rows.len() < limit as usize;
            for row in rows {
                if page.len() == limit as usize {
                    break;
                }
                after.skip += 1;
                match row {
                    Ok(row) => {
                        if let Some(key) = row.place() {
                            after = PageStart { key: Some(key.clone()), skip: 0 };
                        }
                        page.push(row);
                    }
                    Err(_) => page.skip_unreadable(),
                }
            }
            if is_last || page.len() == limit as usize {
                return Ok(page);
            }
        }
    }
}

/// A row of a page.
trait PageRow {
    /// The key after which the next row comes, if pages are in the order of keys.
    fn place(&self) -> Option<&Key>;
}

impl PageRow for BucketLevel {
    fn place(&self) -> Option<&Key> {
        Some(&self.key)
    }
}

impl PageRow for WindowLevel {
    fn place(&self) -> Option<&Key> {
        Some(&self.key)
    }
}

impl PageRow for Plan {
    fn place(&self) -> Option<&Key> {
        Some(&self.name)
    }
}

impl PageRow for (Key, Override) {
    fn place(&self) -> Option<&Key> {
        Some(&self.0)
    }
}

impl PageRow for DenialCount {
    fn place(&self) -> Option<&Key> {
        None
    }
}

/// The error about the row of a key that cannot be decoded.
pub(super) fn unreadable(key: &Key, why: sqlx::Error) -> Error {
    Error::Unreadable { key: key.clone(), source: Arc::new(why) }
}

/// Id, capacity, nanoseconds from empty to full, refill, plan, provisioned, overridden, available, granted, full at,
/// next refill at.
pub(super) type LevelColumns =
    (String, i64, i64, String, Option<String>, bool, bool, i64, i64, Option<Instant>, Option<Instant>);

/// Maximum, nanoseconds of the interval and of the resolution, counted, granted, milliseconds until one more passes.
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(super) type WindowCounts = (i64, i64, i64, i64, i64, i64);

/// Id, then the columns of [`WindowCounts`].
#[cfg(feature = "postgres")]
pub(super) type WindowLevelColumns = (String, i64, i64, i64, i64, i64, i64);

/// Mode, reason, until.
pub(super) type ModeColumns = (Option<String>, Option<String>, Option<Instant>);

/// Name, capacity, nanoseconds from empty to full, refill, mode, reason, until, name of the limit, name of its cost.
pub(super) type PlanColumns =
    (String, i64, i64, String, Option<String>, Option<String>, Option<Instant>, Option<String>, Option<String>);

/// Capacity, nanoseconds from empty to full, refill, mode, reason, expires at.
type OverrideColumns = (Option<i64>, Option<i64>, String, Option<String>, String, Option<Instant>);

/// Id, then the columns of [`OverrideColumns`].
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(super) type KeyedOverrideColumns =
    (String, Option<i64>, Option<i64>, String, Option<String>, String, Option<Instant>);

/// Id, denied, last denied at.
pub(super) type DenialColumns = (String, i64, Instant);

/// Known, quota from, plan, capacity, nanoseconds from empty to full, refill, mode, mode from, mode reason, mode until,
/// override reason, override until, available, outcome, milliseconds until a token is available.
pub(super) type ExplanationColumns = (
    bool,
    Option<String>,
    Option<String>,
    Option<i64>,
    Option<i64>,
    Option<String>,
    String,
    Option<String>,
    Option<String>,
    Option<Instant>,
    Option<String>,
    Option<Instant>,
    Option<i64>,
    String,
    Option<i64>,
);

impl TryFrom<LevelColumns> for BucketLevel {
    type Error = sqlx::Error;

    fn try_from(columns: LevelColumns) -> Result<Self, sqlx::Error> {
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
            full_at: instant(full_at),
            next_refill_at: instant(next),
        })
    }
}

impl TryFrom<PlanColumns> for Plan {
    type Error = sqlx::Error;

    fn try_from(columns: PlanColumns) -> Result<Self, sqlx::Error> {
        let (name, capacity, refill_ns, refill, mode, reason, until, limit, cost) = columns;
        Ok(Self {
            name: key(name)?,
            limit: limit_name(limit)?,
            cost: limit_name(cost)?,
            quota: quota(capacity, refill_ns, &refill)?,
            mode: mode_setting((mode, reason, until))?,
        })
    }
}

impl TryFrom<DenialColumns> for DenialCount {
    type Error = sqlx::Error;

    fn try_from((id, denied, last_denied_at): DenialColumns) -> Result<Self, sqlx::Error> {
        Ok(Self { key: key(id)?, denied: count(denied)?, last_denied_at: last_denied_at.0 })
    }
}

impl TryFrom<ExplanationColumns> for Explanation {
    type Error = sqlx::Error;

    fn try_from(columns: ExplanationColumns) -> Result<Self, sqlx::Error> {
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
            mode_until: instant(until),
            override_reason,
            override_until: instant(override_until),
            available,
            expected_outcome: match outcome.as_str() {
                "granted" => ExpectedOutcome::Granted,
                "denied" => ExpectedOutcome::Denied,
                "unknown" => ExpectedOutcome::UnknownBucket,
                "unplanned" => ExpectedOutcome::UnknownPlan,
                "conflict" => ExpectedOutcome::Conflict,
                other => return Err(strange("outcome", other)),
            },
            retry_after: retry_after_ms.map(|ms| Duration::from_millis(ms.max(0).unsigned_abs())),
        })
    }
}

#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(super) fn window(key: &Key, columns: WindowCounts) -> Result<WindowLevel, sqlx::Error> {
    let (max_requests, interval_ns, resolution_ns, counted, granted, retry_after_ms) = columns;
    Ok(WindowLevel {
        key: key.clone(),
        window: stored_window(max_requests, interval_ns, resolution_ns)?,
        counted: count(counted)?,
        granted: count(granted)?,
        retry_after: Duration::from_millis(count(retry_after_ms)?),
    })
}

#[cfg(feature = "postgres")]
pub(super) fn windowed(columns: WindowLevelColumns) -> Result<WindowLevel, sqlx::Error> {
    let (id, max_requests, interval_ns, resolution_ns, counted, granted, retry_after_ms) = columns;
    window(&key(id)?, (max_requests, interval_ns, resolution_ns, counted, granted, retry_after_ms))
}

pub(super) fn over(
    (capacity, refill_ns, refill, mode, reason, expires_at): OverrideColumns,
) -> Result<Override, sqlx::Error> {
    let quota = match (capacity, refill_ns) {
        (Some(capacity), Some(refill_ns)) => Some(quota(capacity, refill_ns, &refill)?),
        _ => None,
    };
    Ok(Override { quota, mode: mode.as_deref().map(parse).transpose()?, reason, expires_at: instant(expires_at) })
}

#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(super) fn overridden(columns: KeyedOverrideColumns) -> Result<(Key, Override), sqlx::Error> {
    let (id, capacity, refill_ns, refill, mode, reason, expires_at) = columns;
    Ok((key(id)?, over((capacity, refill_ns, refill, mode, reason, expires_at))?))
}

/// The mode that an operator chose, if any.
pub(super) fn mode_setting((mode, reason, until): ModeColumns) -> Result<Option<ModeSetting>, sqlx::Error> {
    mode.map(|mode| Ok(ModeSetting { mode: parse(&mode)?, reason, until: instant(until) })).transpose()
}

/// The mode of all keys; `enforce` where its row is missing.
pub(super) fn mode(row: Option<Result<ModeColumns, sqlx::Error>>) -> Result<ModeSetting, sqlx::Error> {
    Ok(row.transpose()?.map(mode_setting).transpose()?.flatten().unwrap_or_default())
}

fn recording((seconds, days): RecordingColumns) -> Result<UsageRecording, sqlx::Error> {
    let period = UsagePeriod::of_seconds(seconds).ok_or_else(|| strange("period", &seconds.to_string()))?;
    let days = u32::try_from(days).map_err(|error| sqlx::Error::Decode(error.into()))?;
    Ok(UsageRecording::new(period).keep_days(days))
}

fn usage((id, plan, granted, charged, refunded, denied): UsageColumns) -> Result<Usage, sqlx::Error> {
    Ok(Usage {
        key: key(id)?,
        plan: plan.map(key).transpose()?,
        granted: count(granted)?,
        charged: count(charged)?,
        refunded: count(refunded)?,
        denied: count(denied)?,
    })
}

fn instant(instant: Option<Instant>) -> Option<DateTime<Utc>> {
    instant.map(|Instant(instant)| instant)
}

pub(super) fn key(text: String) -> Result<Key, sqlx::Error> {
    Key::stored(text).map_err(|error| sqlx::Error::Decode(error.into()))
}

pub(super) fn quota(capacity: i64, refill_ns: i64, refill: &str) -> Result<Quota, sqlx::Error> {
    let refill = Refill::parse(refill).ok_or_else(|| strange("refill", refill))?;
    // The column of the refill time has no effect on these quotas.
    let refill_ns = match refill {
        Refill::Once => 0,
        Refill::Period(period) => period.usual_ns(),
        _ => refill_ns,
    };
    Quota::stored(capacity, refill_ns, refill).map_err(|error| sqlx::Error::Decode(error.into()))
}

/// The limits of a window.
pub(super) fn stored_window(max_requests: i64, interval_ns: i64, resolution_ns: i64) -> Result<Window, sqlx::Error> {
    let within = |number: i64| number >= 1;
    if !within(max_requests) || !within(interval_ns) || !within(resolution_ns) {
        return Err(strange("window", &format!("{max_requests} in {interval_ns} ns by {resolution_ns} ns")));
    }
    Ok(Window::stored(max_requests, interval_ns, resolution_ns))
}

/// A number that must not be negative.
pub(super) fn count(number: i64) -> Result<u64, sqlx::Error> {
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
