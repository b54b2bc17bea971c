//! The clock for expiry: the server's, or this host's with SQLite.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use sqlx::{Database, MySql, MySqlConnection, MySqlPool, PgPool, Pool, Postgres, Sqlite, SqlitePool};

use crate::exit::CliError;
use crate::failure::chain;
use crate::lock_timeout::with_lock_timeout;
use crate::times;

/// Reads the clock that decides on the expiry of modes and overrides.
pub(crate) trait ServerClock: Database {
    /// The time by which what is set ends, in microseconds since 1970.
    fn now(pool: &Pool<Self>) -> impl Future<Output = Result<i64, sqlx::Error>> + Send;
}

impl ServerClock for Postgres {
    async fn now(pool: &PgPool) -> Result<i64, sqlx::Error> {
        // Under the role's own search path, so each name has its schema.
        let now =
            "select (extract(epoch from pg_catalog.clock_timestamp()) operator(pg_catalog.*) 1000000::numeric)::bigint";
        sqlx::query_scalar(now).fetch_one(pool).await
    }
}

impl ServerClock for MySql {
    async fn now(pool: &MySqlPool) -> Result<i64, sqlx::Error> {
        mysql_now(&mut *pool.acquire().await?).await
    }
}

impl ServerClock for Sqlite {
    async fn now(_: &SqlitePool) -> Result<i64, sqlx::Error> {
        Ok(Utc::now().timestamp_micros())
    }
}

/// MySQL's clock, by this connection.
pub(crate) async fn mysql_now(connection: &mut MySqlConnection) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar("select cast(timestampdiff(microsecond, '1970-01-01', utc_timestamp(6)) as signed)")
        .fetch_one(connection)
        .await
}

pub(crate) async fn now<DB: ServerClock>(pool: &Pool<DB>) -> anyhow::Result<DateTime<Utc>> {
    let answer = with_lock_timeout(DB::now(pool)).await;
    let now = answer.map(DateTime::from_timestamp_micros).map_err(|error| match error.downcast::<CliError>() {
        Ok(refusal) => refusal,
        Err(error) => CliError::database(chain(&error), "run `tollgate doctor` to find the cause"),
    })?;
    Ok(now.ok_or_else(|| CliError::database("the server's clock is set to no time", "set it"))?)
}

/// The end of a span from now, if a span is given.
pub(crate) fn end(duration: Option<Duration>, now: DateTime<Utc>) -> anyhow::Result<Option<DateTime<Utc>>> {
    duration.map(|span| end_by(span, now, Utc::now())).transpose()
}

/// Fails if the end is past by this host's clock, because the library would refuse it.
fn end_by(span: Duration, now: DateTime<Utc>, host: DateTime<Utc>) -> anyhow::Result<DateTime<Utc>> {
    let (end, ahead) = (times::after(span, now)?, host - now);
    if end <= host && ahead > MAX_CLOCK_SKEW {
        let ahead = times::span(ahead.to_std().unwrap_or_default());
        let message = format!("this host's clock is {ahead} ahead of the server's: an end that soon is past for it");
        return Err(CliError::arguments(message, "set this host's clock right, or give --for more than that").into());
    }
    Ok(end)
}

const MAX_CLOCK_SKEW: TimeDelta = TimeDelta::seconds(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn end_is_relative_to_server_time_unless_past_for_host() {
        let (minute, server) = (Duration::from_secs(60), DateTime::UNIX_EPOCH);
        let end = |ahead| end_by(5 * minute, server, server + TimeDelta::minutes(ahead));
        for ahead in [-6, 0, 4] {
            assert_eq!(end(ahead).expect("an end"), server + 5 * minute, "{ahead} min ahead");
        }
        let error = end(6).expect_err("it is past").to_string();
        assert_eq!(error, "this host's clock is 6m ahead of the server's: an end that soon is past for it");
    }
}
