//! Counts of denials by hour and key.

use chrono::{DateTime, DurationRound, TimeDelta, Utc};
use sqlx::sqlite::{SqliteConnection, SqliteRow};
use sqlx::{Connection, FromRow as _};

use super::rules::timestamp;
use super::{HostClock, usage};
use crate::admin::DenialCount;
use crate::model::Key;
use crate::store::sql::admin::DenialColumns;
use crate::store::sql::dialect::{PageStart, RowResult};
use crate::store::sql::instant::Instant;

/// Adds a process's counts of denials, and deletes counts that are older than two days.
pub(super) async fn count(
    connection: &mut SqliteConnection,
    denials: &[(Key, i64)],
    clock: &HostClock,
) -> Result<(), sqlx::Error> {
    let mut transaction = connection.begin_with("begin immediate").await?;
    let now = DateTime::from_timestamp_nanos(clock.now());
    for (key, denied) in denials {
        sqlx::query(
            "insert into token_stats (hour, id, denied, last_denied_at) values (?1, ?2, ?3, ?4)
             on conflict (hour, id) do update
                set denied = min(denied, 9223372036854775807 - excluded.denied) + excluded.denied,
                    last_denied_at = max(last_denied_at, excluded.last_denied_at)",
        )
        .bind(hour(now))
        .bind(key.as_str())
        .bind(denied)
        .bind(timestamp(now))
        .execute(&mut *transaction)
        .await?;
        usage::count_denials(&mut transaction, key, *denied).await?;
    }
    forget_old(&mut transaction, clock, 1000).await?;
    transaction.commit().await
}

/// Deletes counts that are older than two days, and returns how many rows.
pub(super) async fn forget_old(
    connection: &mut SqliteConnection,
    clock: &HostClock,
    limit: u32,
) -> Result<u64, sqlx::Error> {
    let old = sqlx::query(
        "delete from token_stats where (hour, id) in (select hour, id from token_stats where hour < ?1 limit ?2)",
    );
    let before = hour(DateTime::from_timestamp_nanos(clock.now()) - TimeDelta::hours(48));
    Ok(old.bind(before).bind(limit).execute(connection).await?.rows_affected())
}

/// Reads the keys with the most denials in the last 24 hours.
pub(super) async fn most(
    connection: &mut SqliteConnection,
    after: &PageStart,
    limit: u32,
    clock: &HostClock,
) -> Result<Vec<RowResult<DenialCount>>, sqlx::Error> {
    let now = DateTime::from_timestamp_nanos(clock.now());
    let most = sqlx::query(
        "select id, sum(max(min(denied, 100000000000000000), -1)) as denied, cast(round(unixepoch(max(last_denied_at), 'subsec') * 1000) as integer)
           from token_stats where hour > ?1 group by id order by denied desc, id limit ?2 offset ?3",
    )
    .bind(timestamp(now - TimeDelta::hours(24)))
    .bind(limit)
    .bind(after.skip);
    let denials = |row: &SqliteRow| {
        let (id, denied, last) = <(String, i64, i64)>::from_row(row)?;
        let last = Instant::from_millis(last).ok_or(sqlx::Error::RowNotFound)?;
        DenialColumns::from((id, denied, last)).try_into()
    };
    Ok(most.fetch_all(connection).await?.iter().map(denials).collect())
}

fn hour(at: DateTime<Utc>) -> String {
    timestamp(at.duration_trunc(TimeDelta::hours(1)).unwrap_or(at))
}
