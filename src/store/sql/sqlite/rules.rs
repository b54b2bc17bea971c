//! The rules of keys: plans, overrides, and the mode of every key.

use chrono::{DateTime, Utc};
use sqlx::FromRow as _;
use sqlx::sqlite::{SqliteConnection, SqliteRow};

use crate::admin::{AdminSettings, ModeSetting, Override, Plan};
use crate::model::{Key, LimitName, Limits, Mode, Quota};
use crate::store::sql::admin::{self, key, mode_setting, over, quota};
use crate::store::sql::dialect::{LimitNames, PageStart, RowResult};
use crate::store::sql::instant::Instant;
use crate::store::sql::plans::limit_name;

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
    .bind(over.quota.map(|quota| quota.refill().column()))
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

/// Name, capacity, nanoseconds from empty to full, refill, mode, reason, end in milliseconds since 1970, name of the limit, name
/// of its cost.
type PlanColumns =
    (String, i64, i64, String, Option<String>, Option<String>, Option<i64>, Option<String>, Option<String>);

macro_rules! planned {
    () => {
        "select name, capacity, refill_ns, refill, mode, mode_reason,
                cast(round(unixepoch(mode_until, 'subsec') * 1000) as integer), limit_name, cost_name
           from token_plans
           left join token_plan_limits l
             on place = 1 and l.plan = name or place > 1 and l.plan || char(1) || limit_name = name"
    };
}

/// Creates a plan, or changes its limits.
pub(super) async fn create_plan(
    connection: &mut SqliteConnection,
    plan: &Key,
    limits: &Limits,
) -> Result<(), sqlx::Error> {
    let mut kept = Vec::new();
    for (name, limit) in limits.buckets(plan) {
        sqlx::query(
            // A new further limit has the mode of the first one.
            "insert into token_plans (name, capacity, refill_seconds, refill, mode, mode_reason, mode_until)
             select ?1, ?2, ?3 / 1e9, ?4, mode, mode_reason, mode_until
               from (select 1) left join token_plans on name = ?5
              where true
             on conflict (name) do update
                set capacity = excluded.capacity, refill_seconds = excluded.refill_seconds, refill = excluded.refill",
        )
        .bind(name.as_str())
        .bind(limit.quota.capacity_i64())
        .bind(limit.quota.refill_ns())
        .bind(limit.quota.refill().column())
        .bind(plan.as_str())
        .execute(&mut *connection)
        .await?;
        kept.push(name);
    }
    let others: Vec<String> =
        sqlx::query_scalar(FURTHER_LIMITS).bind(plan.as_str()).fetch_all(&mut *connection).await?;
    for other in others.iter().filter(|other| kept.iter().all(|name| name.as_str() != **other)) {
        sqlx::query("delete from token_plans where name = ?1").bind(other).execute(&mut *connection).await?;
    }
    sqlx::query("delete from token_plan_limits where plan = ?1").bind(plan.as_str()).execute(&mut *connection).await?;
    for (place, limit) in (1_i64..).zip(limits.iter().filter(|_| limits.are_named())) {
        sqlx::query("insert into token_plan_limits (plan, place, limit_name, cost_name) values (?1, ?2, ?3, ?4)")
            .bind(plan.as_str())
            .bind(place)
            .bind(limit.name.as_ref().map(LimitName::as_str))
            .bind(limit.cost.as_ref().map(LimitName::as_str))
            .execute(&mut *connection)
            .await?;
    }
    Ok(())
}

/// Reads the names of a plan's limits and of their costs.
pub(super) async fn plan_limits(connection: &mut SqliteConnection, plan: &Key) -> Result<Vec<LimitNames>, sqlx::Error> {
    sqlx::query_as("select limit_name, cost_name from token_plan_limits where plan = ?1 order by place")
        .bind(plan.as_str())
        .fetch_all(connection)
        .await
}

/// Deletes a plan with its limits, and returns whether it existed.
pub(super) async fn delete_plan(connection: &mut SqliteConnection, plan: &Key) -> Result<bool, sqlx::Error> {
    let delete = "delete from token_plans where name = ?1 or name > ?1 || char(1) and name < ?1 || char(2)";
    let deleted = sqlx::query(delete).bind(plan.as_str()).execute(&mut *connection).await?.rows_affected();
    sqlx::query("delete from token_plan_limits where plan = ?1").bind(plan.as_str()).execute(connection).await?;
    Ok(deleted > 0)
}

/// The names of a plan's further limits.
const FURTHER_LIMITS: &str = "select name from token_plans where name > ?1 || char(1) and name < ?1 || char(2)";

/// Sets or clears the mode of all limits of a plan, or of one of its further limits. Returns whether there is any.
pub(super) async fn set_plan_mode(
    connection: &mut SqliteConnection,
    name: &Key,
    setting: Option<&ModeSetting>,
) -> Result<bool, sqlx::Error> {
    let set = "update token_plans set mode = ?2, mode_reason = ?3, mode_until = ?4
                where name = ?1 or name > ?1 || char(1) and name < ?1 || char(2)";
    sqlx::query(set)
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
    let columns =
        sqlx::query(concat!(planned!(), " where name = ?1")).bind(name.as_str()).fetch_optional(connection).await?;
    Ok(columns.as_ref().map(plan))
}

/// Reads a page of plans, in the order of their names.
pub(super) async fn plans(
    connection: &mut SqliteConnection,
    after: &PageStart,
    limit: u32,
) -> Result<Vec<RowResult<Plan>>, sqlx::Error> {
    let columns = sqlx::query(concat!(planned!(), " where name > ?1 order by name limit ?2 offset ?3"))
        .bind(after.key.as_ref().map_or("", Key::as_str))
        .bind(limit)
        .bind(after.skip)
        .fetch_all(connection)
        .await?;
    Ok(columns.iter().map(plan).collect())
}

fn plan(columns: &SqliteRow) -> RowResult<Plan> {
    let (name, capacity, refill_ns, refill, mode, reason, until, limit, cost) = PlanColumns::from_row(columns)?;
    Ok(Plan {
        name: key(name)?,
        limit: limit_name(limit)?,
        cost: limit_name(cost)?,
        quota: quota(capacity, refill_ns, &refill)?,
        mode: mode_setting((mode, reason, until.and_then(Instant::from_millis)))?,
    })
}

/// An instant as `datetime()` could have written it, with milliseconds: operators read and write these tables.
pub(super) fn timestamp(at: DateTime<Utc>) -> String {
    at.format("%Y-%m-%d %H:%M:%S%.3f").to_string()
}
