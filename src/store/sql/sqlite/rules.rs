//! The rules of keys: plans, overrides, and the mode of every key.

use chrono::{DateTime, Utc};
use sqlx::FromRow as _;
use sqlx::sqlite::{SqliteConnection, SqliteRow};

use crate::admin::{AdminSettings, ModeSetting, Override, Plan};
use crate::model::{Key, Mode, Quota};
use crate::store::sql::admin::{self, key, mode_setting, over, quota};
use crate::store::sql::dialect::{PageStart, RowResult};
use crate::store::sql::instant::Instant;

/// A mode, its reason, and its end in milliseconds since 1970.
type ModeColumns = (Option<String>, Option<String>, Option<i64>);

/// Capacity, nanoseconds from empty to full and refill, then the columns of [`ModeColumns`] of an override.
type OverrideColumns = (Option<i64>, Option<i64>, String, Option<String>, String, Option<i64>);

/// An id, then [`OverrideColumns`].
type KeyedOverrideColumns = (String, Option<i64>, Option<i64>, String, Option<String>, String, Option<i64>);

/// Reads the choices for a key, and for a plan if one is named, with an inner error if one of their rows cannot be
/// decoded.
pub(super) async fn find(
    connection: &mut SqliteConnection,
    key: &Key,
    plan: Option<&Key>,
) -> Result<RowResult<AdminSettings>, sqlx::Error> {
    let all = mode(connection).await?;
    let over = sqlx::query(
        "select capacity, refill_ns, refill, mode, reason,
                cast(round(unixepoch(expires_at, 'subsec') * 1000) as integer)
           from token_overrides where id = ?1",
    )
    .bind(key.as_str())
    .fetch_optional(&mut *connection)
    .await?;
    let plan = match plan {
        None => None,
        Some(plan) => find_plan(connection, plan).await?,
    };
    let over = over.as_ref().map(|row| override_from_columns(OverrideColumns::from_row(row)?));
    let settings = || Ok(AdminSettings { all: all?, plan: plan.transpose()?, over: over.transpose()? });
    Ok(settings())
}

fn override_from_columns(
    (capacity, refill_ns, refill, mode, reason, expires): OverrideColumns,
) -> Result<Override, sqlx::Error> {
    over((capacity, refill_ns, refill, mode, reason, expires.and_then(Instant::from_millis)))
}

/// Reads the mode of every key, with an inner error if its row cannot be decoded.
pub(super) async fn mode(connection: &mut SqliteConnection) -> Result<RowResult<ModeSetting>, sqlx::Error> {
    let all =
        sqlx::query("select mode, reason, cast(round(unixepoch(until, 'subsec') * 1000) as integer) from token_mode")
            .fetch_optional(connection)
            .await?;
    let choice = |row: &SqliteRow| {
        let (mode, reason, until) = ModeColumns::from_row(row)?;
        Ok((mode, reason, until.and_then(Instant::from_millis)))
    };
    Ok(admin::mode(all.as_ref().map(choice)))
}

/// Sets the mode of every key.
pub(super) async fn set_mode(connection: &mut SqliteConnection, setting: &ModeSetting) -> Result<(), sqlx::Error> {
    sqlx::query(
        "insert into token_mode (mode, reason, until) values (?1, ?2, ?3)
         on conflict (one) do update set mode = excluded.mode, reason = excluded.reason, until = excluded.until",
    )
    .bind(setting.mode.as_str())
    .bind(setting.reason.as_deref())
    .bind(setting.until.map(timestamp))
    .execute(connection)
    .await
    .map(drop)
}

/// Creates or replaces an override.
pub(super) async fn set_override(
    connection: &mut SqliteConnection,
    key: &Key,
    over: &Override,
) -> Result<(), sqlx::Error> {
    sqlx::query(
        "insert into token_overrides (id, capacity, refill_seconds, refill, mode, reason, expires_at)
         values (?1, ?2, ?3 / 1e9, coalesce(?4, 'continuous'), ?5, ?6, ?7)
         on conflict (id) do update
            set capacity = excluded.capacity, refill_seconds = excluded.refill_seconds, refill = excluded.refill,
                mode = excluded.mode, reason = excluded.reason, expires_at = excluded.expires_at",
    )
    .bind(key.as_str())
    .bind(over.quota.as_ref().map(Quota::capacity_i64))
    .bind(over.quota.as_ref().map(Quota::refill_ns))
    .bind(over.quota.map(|quota| quota.refill().as_str()))
    .bind(over.mode.map(Mode::as_str))
    .bind(&over.reason)
    .bind(over.expires_at.map(timestamp))
    .execute(connection)
    .await
    .map(drop)
}

/// Reads a page of overrides, in the order of their keys.
pub(super) async fn overrides(
    connection: &mut SqliteConnection,
    after: &PageStart,
    limit: u32,
) -> Result<Vec<RowResult<(Key, Override)>>, sqlx::Error> {
    let rows = sqlx::query(
        "select id, capacity, refill_ns, refill, mode, reason,
                cast(round(unixepoch(expires_at, 'subsec') * 1000) as integer)
           from token_overrides where id > ?1 order by id limit ?2 offset ?3",
    )
    .bind(after.key.as_ref().map_or("", Key::as_str))
    .bind(limit)
    .bind(after.skip)
    .fetch_all(connection)
    .await?;
    let one = |row: &SqliteRow| {
        let (id, capacity, refill_ns, refill, mode, reason, expires) = KeyedOverrideColumns::from_row(row)?;
        Ok((key(id)?, override_from_columns((capacity, refill_ns, refill, mode, reason, expires))?))
    };
    Ok(rows.iter().map(one).collect())
}

/// Name, capacity, nanoseconds from empty to full, refill, mode, reason, end in milliseconds since 1970.
type PlanColumns = (String, i64, i64, String, Option<String>, Option<String>, Option<i64>);

/// Creates a plan, or changes its quota.
pub(super) async fn create_plan(
    connection: &mut SqliteConnection,
    name: &Key,
    quota: &Quota,
) -> Result<(), sqlx::Error> {
    sqlx::query(
        "insert into token_plans (name, capacity, refill_seconds, refill) values (?1, ?2, ?3 / 1e9, ?4)
         on conflict (name) do update
            set capacity = excluded.capacity, refill_seconds = excluded.refill_seconds, refill = excluded.refill",
    )
    .bind(name.as_str())
    .bind(quota.capacity_i64())
    .bind(quota.refill_ns())
    .bind(quota.refill().as_str())
    .execute(connection)
    .await
    .map(drop)
}

/// Sets or clears the mode of a plan, and returns whether the plan exists.
pub(super) async fn set_plan_mode(
    connection: &mut SqliteConnection,
    name: &Key,
    setting: Option<&ModeSetting>,
) -> Result<bool, sqlx::Error> {
    sqlx::query("update token_plans set mode = ?2, mode_reason = ?3, mode_until = ?4 where name = ?1")
        .bind(name.as_str())
        .bind(setting.map(|setting| setting.mode.as_str()))
        .bind(setting.and_then(|setting| setting.reason.as_deref()))
        .bind(setting.and_then(|setting| setting.until).map(timestamp))
        .execute(connection)
        .await
        .map(|done| done.rows_affected() > 0)
}

/// Reads a plan, if it exists, with an inner error if its row cannot be decoded.
pub(super) async fn find_plan(
    connection: &mut SqliteConnection,
    name: &Key,
) -> Result<Option<RowResult<Plan>>, sqlx::Error> {
    let columns = sqlx::query(
        "select name, capacity, refill_ns, refill, mode, mode_reason,
                cast(round(unixepoch(mode_until, 'subsec') * 1000) as integer)
           from token_plans where name = ?1",
    )
    .bind(name.as_str())
    .fetch_optional(connection)
    .await?;
    Ok(columns.as_ref().map(plan))
}

/// Reads a page of plans, in the order of their names.
pub(super) async fn plans(
    connection: &mut SqliteConnection,
    after: &PageStart,
    limit: u32,
) -> Result<Vec<RowResult<Plan>>, sqlx::Error> {
    let columns = sqlx::query(
        "select name, capacity, refill_ns, refill, mode, mode_reason,
                cast(round(unixepoch(mode_until, 'subsec') * 1000) as integer)
           from token_plans where name > ?1 order by name limit ?2 offset ?3",
    )
    .bind(after.key.as_ref().map_or("", Key::as_str))
    .bind(limit)
    .bind(after.skip)
    .fetch_all(connection)
    .await?;
    Ok(columns.iter().map(plan).collect())
}

fn plan(columns: &SqliteRow) -> RowResult<Plan> {
    let (name, capacity, refill_ns, refill, mode, reason, until) = PlanColumns::from_row(columns)?;
    Ok(Plan {
        name: key(name)?,
        quota: quota(capacity, refill_ns, &refill)?,
        mode: mode_setting((mode, reason, until.and_then(Instant::from_millis)))?,
    })
}

/// An instant as `datetime()` could have written it, with milliseconds: operators read and write these tables.
pub(super) fn timestamp(at: DateTime<Utc>) -> String {
    at.format("%Y-%m-%d %H:%M:%S%.3f").to_string()
}
