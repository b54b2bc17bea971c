use sqlx::FromRow as _;
use sqlx::sqlite::{SqliteConnection, SqliteRow};

use super::super::admin::columns::{key, quota, switch};
use super::super::operations::{After, Read};
use super::times;
use crate::admin::{Plan, Switch};
use crate::model::{Key, Quota};

/// Name, capacity, nanoseconds from empty to full, refill, mode, reason, end in milliseconds since 1970.
type Columns = (String, i64, i64, String, Option<String>, Option<String>, Option<i64>);

/// Makes a plan, or changes its quota.
pub(super) async fn create(connection: &mut SqliteConnection, name: &Key, quota: &Quota) -> Result<(), sqlx::Error> {
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

/// Gives a plan a mode, or takes it away, and says whether there is such a plan.
pub(super) async fn set_mode(
    connection: &mut SqliteConnection,
    name: &Key,
    switch: Option<&Switch>,
) -> Result<bool, sqlx::Error> {
    sqlx::query("update token_plans set mode = ?2, mode_reason = ?3, mode_until = ?4 where name = ?1")
        .bind(name.as_str())
        .bind(switch.map(|switch| switch.mode.as_str()))
        .bind(switch.and_then(|switch| switch.reason.as_deref()))
        .bind(switch.and_then(|switch| switch.until).map(times::text))
        .execute(connection)
        .await
        .map(|done| done.rows_affected() > 0)
}

/// Reads a plan, if it exists, with an inner error if its row cannot be decoded.
pub(super) async fn find(connection: &mut SqliteConnection, name: &Key) -> Result<Option<Read<Plan>>, sqlx::Error> {
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

/// A page of plans, in the order of their names.
pub(super) async fn page(
    connection: &mut SqliteConnection,
    after: &After,
    limit: u32,
) -> Result<Vec<Read<Plan>>, sqlx::Error> {
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

fn plan(columns: &SqliteRow) -> Read<Plan> {
    let (name, capacity, refill_ns, refill, mode, reason, until) = Columns::from_row(columns)?;
    Ok(Plan {
        name: key(name)?,
        quota: quota(capacity, refill_ns, &refill)?,
        switch: switch((mode, reason, until.and_then(times::instant)))?,
    })
}
