use std::time::Duration;

use sqlx::SqlStr;
use sqlx::error::DatabaseError;
use sqlx::postgres::{PgConnectOptions, PgConnection, PgDatabaseError, PgSeverity, Postgres};

use super::ask::Ask;
use super::call::Counting;
use super::columns::{self, Columns, Entry};
use super::connect::{Durability, ipv6_address, require_one_host};
use super::dialect::Dialect;
use super::isolation::Isolation;
use super::outcomes::AdjustedColumns;
use super::retry::Class;
use super::store::SqlStore;
use crate::model::answer::Answer;
use crate::model::{Adjustment, Counted, Quota};
use crate::telemetry;

mod adjust;
mod admin;
mod answers;
mod several;
mod url;

/// Buckets in PostgreSQL or YugabyteDB, at the server's clock.
pub type PgStore = SqlStore<Postgres>;

impl Dialect for Postgres {
    const ONE_STATEMENT: bool = true;
    const HAS_SERVER: bool = true;
    const CALLS_AT_ONCE: usize = 2;

    fn begin(isolation: Isolation) -> Option<SqlStr> {
        Some(SqlStr::from_static(match isolation {
            Isolation::ReadCommitted => "begin isolation level read committed",
            Isolation::RepeatableRead => "begin isolation level repeatable read",
            Isolation::Serializable => "begin isolation level serializable",
        }))
    }

    fn parse_url(url: &str) -> Result<PgConnectOptions, sqlx::Error> {
        require_one_host(url)?;
        let (url, unknown) = url::without_unknown(url);
        if unknown > 0 {
            telemetry::ignored(unknown);
        }
        let Some(address) = ipv6_address(&url) else { return url.parse() };
        // Not `host` on what was parsed: the password file has been looked up by then.
        let (place, parameters) = url.split_once('?').unwrap_or((&url, ""));
        format!("{place}?hostaddr={address}&{parameters}").parse()
    }

    fn connect_options(url: &str, durability: Durability) -> Result<PgConnectOptions, sqlx::Error> {
        let commit = match durability {
            Durability::Asynchronous => "off",
            Durability::Synchronous => "on",
        };
        Ok(Self::parse_url(url)?.options([("synchronous_commit", commit)]))
    }

    async fn take(connection: &mut PgConnection, asks: &[Ask], (): &()) -> Result<Vec<Answer>, sqlx::Error> {
        let entries = match asks {
            [ask @ Ask { times: 1, .. }] => vec![take_one(connection, ask).await?.try_into()?],
            [ask] => take_times(connection, ask).await?,
            _ => take_many(connection, asks).await?,
        };
        columns::in_order(entries, |place| asks.get(place).map(|ask| ask.request))
    }

    async fn take_all(connection: &mut PgConnection, asks: &[Ask], (): &()) -> Result<Vec<Answer>, sqlx::Error> {
        several::take_all(connection, asks).await
    }

    async fn take_window(
        connection: &mut PgConnection,
        ask: &Ask,
        counting: Counting,
        (): &(),
    ) -> Result<Counted, sqlx::Error> {
        let window = ask.window()?;
        let (outcome, mode, now, acts_at, ends, counts, resolution) =
            sqlx::query_as("select t.* from tollgate.take_window_v1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) t")
                .bind(ask.key().as_str())
                .bind(ask.request.cost)
                .bind(ask.request.max_wait)
                .bind(ask.request.keep)
                .bind(window.most())
                .bind(window.interval_ns())
                .bind(window.resolution_ns())
                .bind(ask.id())
                .bind(ask.hold())
                .bind(counting == Counting::Count)
                .fetch_one(connection)
                .await?;
        let (ends, counts): (Vec<i64>, Vec<i64>) = (ends, counts);
        columns::counted((outcome, mode, now, acts_at, ends.into_iter().zip(counts).collect(), resolution))
    }

    async fn adjust(
        connection: &mut PgConnection,
        adjustments: &[Adjustment],
        (): &(),
    ) -> Result<Vec<AdjustedColumns>, sqlx::Error> {
        adjust::adjust(connection, adjustments).await
    }

    fn classify(error: &dyn DatabaseError) -> Class {
        let code = error.code().unwrap_or_default();
        match &*code {
            // serialization failure, deadlock, snapshot too old; our key inserted twice; timeouts of a statement and of a
            // transaction; statements that a pooler or a migration took away
            "55P03" => Class::Locked,
            "40001" | "40P01" | "72000" | "23505" | "57014" | "25P04" | "26000" | "42P05" => Class::RolledBack,
            "0A000" if error.message().contains("cached plan") => Class::RolledBack,
            "42883" | "42P01" | "3F000" => Class::NotMigrated,
            "42501" => Class::NotPermitted,
            "25006" => Class::ReadOnly,
            "XX000" => classify_yugabyte(error.message()),
            code if code.starts_with("08") || code.starts_with("57P") => Class::Unknown,
            _ => Class::Refused,
        }
    }

    fn closes(error: &dyn DatabaseError) -> bool {
        let error = error.try_downcast_ref::<PgDatabaseError>();
        error.is_some_and(|error| matches!(error.severity(), PgSeverity::Fatal | PgSeverity::Panic))
    }

    async fn clean_up(_: &mut PgConnection) -> Result<(), sqlx::Error> {
        Ok(())
    }

    /// The server gives up a little before the caller does, so that nothing waits in the queue of a lock for a caller who is
    /// gone.
    async fn limit(connection: &mut PgConnection, left: Duration) -> Result<(), sqlx::Error> {
        let millis = |tenths: u128| (left.as_millis() * tenths / 10).clamp(1, MOST_MILLIS).to_string();
        sqlx::query(
            "select pg_catalog.set_config('lock_timeout', $1, true), pg_catalog.set_config('statement_timeout', $2, true)",
        )
        .bind(millis(8))
        .bind(millis(9))
        .execute(connection)
        .await
        .map(drop)
    }
}

async fn take_one(connection: &mut PgConnection, ask: &Ask) -> Result<Columns, sqlx::Error> {
    sqlx::query_as(
        "select 1::bigint, 1::bigint, t.* from tollgate.take_v1($1, $2, $3, $4, $5, $6::text::numeric, $7, $8, $9, $10) t",
    )
    .bind(ask.key().as_str())
    .bind(ask.request.cost)
    .bind(ask.request.max_wait)
    .bind(ask.request.keep)
    .bind(ask.quota(0).map(Quota::capacity_i64))
    .bind(ask.quota(0).map(Quota::refill_seconds))
    .bind(ask.quota(0).map(refill))
    .bind(ask.plan(0))
    .bind(ask.id())
    .bind(ask.hold())
    .fetch_one(connection)
    .await
}

/// Of requests that are equal, and so have no id and do not wait.
async fn take_times(connection: &mut PgConnection, ask: &Ask) -> Result<Vec<Entry>, sqlx::Error> {
    let rows = sqlx::query_as(
        "select t.*
           from tollgate.take_equal_v1($1, $2, $3, $4, $5::text::numeric, $6, $7, $8) t",
    )
    .bind(ask.key().as_str())
    .bind(ask.request.cost)
    .bind(ask.request.keep)
    .bind(ask.quota(0).map(Quota::capacity_i64))
    .bind(ask.quota(0).map(Quota::refill_seconds))
    .bind(ask.quota(0).map(refill))
    .bind(ask.plan(0))
    .bind(ask.times)
    .fetch_all(connection)
    .await?;
    answers::entries(rows)
}

/// What differs between the requests is said of each; if that is no more than the bucket and how often, all else once.
async fn take_many(connection: &mut PgConnection, asks: &[Ask]) -> Result<Vec<Entry>, sqlx::Error> {
    fn column<'a, T>(asks: &'a [Ask], value: impl Fn(&'a Ask) -> T) -> Vec<T> {
        asks.iter().map(value).collect()
    }
    let alike = asks.windows(2).all(|pair| pair[0].is_like(&pair[1]) && pair[0].key() < pair[1].key());
    let terms = if alike { &asks[..1] } else { asks };
    let rows = sqlx::query_as(
        "select t.*
           from tollgate.take_batch_v1($1, $2, $3, $4, $5, $6::text[]::numeric[], $7, $8, $9, $10, $11) t",
    )
    .bind(column(asks, |ask| ask.key().as_str()))
    .bind(column(terms, |ask| ask.request.cost))
    .bind(column(terms, |ask| ask.request.max_wait))
    .bind(column(terms, |ask| ask.request.keep))
    .bind(column(terms, |ask| ask.quota(0).map(Quota::capacity_i64)))
    .bind(column(terms, |ask| ask.quota(0).map(Quota::refill_seconds)))
    .bind(column(terms, |ask| ask.quota(0).map(refill)))
    .bind(column(terms, |ask| ask.plan(0)))
    .bind(column(terms, Ask::id))
    .bind(column(terms, Ask::hold))
    .bind(column(asks, |ask| ask.times))
    .fetch_all(connection)
    .await?;
    answers::entries(rows)
}

fn refill(quota: &Quota) -> &'static str {
    quota.refill().as_str()
}

/// The longest timeout that PostgreSQL takes.
const MOST_MILLIS: u128 = i32::MAX as u128;

/// YugabyteDB reports much of its own under one code, and tells the cases apart by text alone.
fn classify_yugabyte(message: &str) -> Class {
    const ROLLED_BACK: [&str; 7] = [
        "Restart read",
        "Try again",
        "kConflict",
        "expired or aborted",
        "aborted while waiting for locks",
        "schema version mismatch",
        "Catalog Version Mismatch",
    ];
    const UNKNOWN: [&str; 6] =
        ["Timed out", "Not the leader", "Leader", "Service unavailable", "Network error", "Remote error"];

    let says = |text: &&str| message.contains(*text);
    if ROLLED_BACK.iter().any(says) {
        Class::RolledBack
    } else if UNKNOWN.iter().any(says) {
        Class::Unknown
    } else {
        Class::Refused
    }
}
