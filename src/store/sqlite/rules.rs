use sqlx::sqlite::SqliteConnection;

use super::super::admin::columns::{quota, switch};
use super::{plans, times};
use crate::admin::Chosen;
use crate::{Key, Mode, Override, Quota, Switch};

/// A mode, its reason, and its end in milliseconds since 1970.
type Choice = (Option<String>, Option<String>, Option<i64>);

/// Capacity, nanoseconds from empty to full and refill, then as above.
type Columns = (Option<i64>, Option<i64>, String, Option<String>, String, Option<i64>);

/// What was chosen for a key, and for a plan if one is named.
pub(super) async fn find(
    connection: &mut SqliteConnection,
    key: &Key,
    plan: Option<&Key>,
) -> Result<Chosen, sqlx::Error> {
    let all = mode(connection).await?;
    let over: Option<Columns> = sqlx::query_as(
        "select capacity, refill_ns, refill, mode, reason,
                cast(round(unixepoch(expires_at, 'subsec') * 1000) as integer)
           from token_overrides where id = ?1",
    )
    .bind(key.as_str())
    .fetch_optional(&mut *connection)
    .await?;
    let plan = match plan {
        None => None,
        Some(plan) => plans::find(connection, plan).await?,
    };
    let over = over.map(|(capacity, refill_ns, refill, mode, reason, expires)| {
        let terms = match (capacity, refill_ns) {
            (Some(capacity), Some(refill_ns)) => Some(quota(capacity, refill_ns, &refill)?),
            _ => None,
        };
        let mode = switch((mode, None, None))?.map(|switch| switch.mode);
        Ok::<_, sqlx::Error>(Override { quota: terms, mode, reason, expires_at: expires.and_then(times::instant) })
    });
    Ok(Chosen { all, plan, over: over.transpose()? })
}

/// The mode of every key.
pub(super) async fn mode(connection: &mut SqliteConnection) -> Result<Switch, sqlx::Error> {
    let all: Option<Choice> = sqlx::query_as(
        "select mode, reason, cast(round(unixepoch(until, 'subsec') * 1000) as integer) from token_mode",
    )
    .fetch_optional(connection)
    .await?;
    let all = all.map(|(mode, reason, until)| switch((mode, reason, until.and_then(times::instant))));
    Ok(all.transpose()?.flatten().unwrap_or_default())
}

/// Sets the mode of every key.
pub(super) async fn set_mode(connection: &mut SqliteConnection, switch: &Switch) -> Result<(), sqlx::Error> {
    sqlx::query("update token_mode set mode = ?1, reason = ?2, until = ?3")
        .bind(switch.mode.as_str())
        .bind(switch.reason.as_deref())
        .bind(switch.until.map(times::text))
        .execute(connection)
        .await
        .map(drop)
}

/// Makes an override, or replaces it.
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
    .bind(over.expires_at.map(times::text))
    .execute(connection)
    .await
    .map(drop)
}
