//! How often keys were denied.

use chrono::{DateTime, DurationRound, TimeDelta, Utc};
use sqlx::sqlite::{SqliteConnection, SqliteRow};
use sqlx::{Connection, FromRow as _};

use super::{HostClock, times};
use crate::admin::Denials;
use crate::model::Key;
use crate::store::sql::admin::columns;
use crate::store::sql::operations::{After, Read};

/// Adds what a process has counted, and forgets what is older than two days.
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
                set denied = denied + excluded.denied, last_denied_at = max(last_denied_at, excluded.last_denied_at)",
        )
        .bind(hour(now))
        .bind(key.as_str())
        .bind(denied)
        .bind(times::text(now))
        .execute(&mut *transaction)
        .await?;
    }
    forget(&mut transaction, clock, 1000).await?;
    transaction.commit().await
}

/// Deletes what is older than two days, and says how many rows that was.
pub(super) async fn forget(
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

/// The keys that were denied most in the last 24 hours.
pub(super) async fn most(
    connection: &mut SqliteConnection,
    after: &After,
    limit: u32,
    clock: &HostClock,
) -> Result<Vec<Read<Denials>>, sqlx::Error> {
    let now = DateTime::from_timestamp_nanos(clock.now());
    let most = sqlx::query(
        "select id, sum(min(denied, 100000000000000000)) as denied, cast(round(unixepoch(max(last_denied_at), 'subsec') * 1000) as integer)
           from token_stats where hour > ?1 group by id order by denied desc, id limit ?2 offset ?3",
    )
    .bind(times::text(now - TimeDelta::hours(24)))
    .bind(limit)
    .bind(after.skip);
    let denials = |row: &SqliteRow| {
        let (id, denied, last) = <(String, i64, i64)>::from_row(row)?;
        let last = times::instant(last).ok_or(sqlx::Error::RowNotFound)?;
        columns::Denied::from((id, denied, last)).try_into()
    };
    Ok(most.fetch_all(connection).await?.iter().map(denials).collect())
}

fn hour(at: DateTime<Utc>) -> String {
    times::text(at.duration_trunc(TimeDelta::hours(1)).unwrap_or(at))
}
