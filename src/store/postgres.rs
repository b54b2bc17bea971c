use sqlx::SqlStr;
use sqlx::error::DatabaseError;
use sqlx::postgres::{PgConnectOptions, PgConnection, Postgres};

use super::answer::AdjustedColumns;
use super::ask::Ask;
use super::call::Counting;
use super::columns::{self, Columns};
use super::connect::Durability;
use super::dialect::Dialect;
use super::isolation::Isolation;
use super::sql::SqlStore;
use crate::answer::Answer;
use crate::bucket::Request;
use crate::retry::Class;
use crate::{Adjustment, Counted, Quota};

mod admin;

/// Buckets in PostgreSQL or YugabyteDB, at the server's clock.
pub type PgStore = SqlStore<Postgres>;

impl Dialect for Postgres {
    const ONE_STATEMENT: bool = true;
    const CALLS_AT_ONCE: usize = 2;

    fn begin(isolation: Isolation) -> Option<SqlStr> {
        Some(SqlStr::from_static(match isolation {
            Isolation::ReadCommitted => "begin isolation level read committed",
            Isolation::RepeatableRead => "begin isolation level repeatable read",
            Isolation::Serializable => "begin isolation level serializable",
        }))
    }

    fn connect_options(url: &str, durability: Durability) -> Result<PgConnectOptions, sqlx::Error> {
        let commit = match durability {
            Durability::Asynchronous => "off",
            Durability::Synchronous => "on",
        };
        Ok(url.parse::<PgConnectOptions>()?.options([("synchronous_commit", commit)]))
    }

    async fn take(connection: &mut PgConnection, asks: &[Ask], (): &()) -> Result<Vec<Answer>, sqlx::Error> {
        let columns = match asks {
            [ask @ Ask { times: 1, .. }] => vec![take_one(connection, ask).await?],
            [ask] => take_times(connection, ask).await?,
            _ => take_many(connection, asks).await?,
        };
        columns::in_order(columns, |place| asks.get(place).map(|ask| &ask.request))
    }

    async fn take_all(connection: &mut PgConnection, asks: &[Ask], (): &()) -> Result<Vec<Answer>, sqlx::Error> {
        let columns = match asks {
            [ask] => take_all(connection, ask).await?,
            _ => take_all_many(connection, asks).await?,
        };
        let requests: Vec<&Request> = limits(asks).map(|(_, ask, _)| &ask.request).collect();
        columns::in_order(columns, |place| requests.get(place).copied())
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
        Adjustment { receipt, kind }: &Adjustment,
        (): &(),
    ) -> Result<AdjustedColumns, sqlx::Error> {
        let (kind, tokens) = kind.figures();
        if receipt.window {
            return sqlx::query_as("select t.* from tollgate.adjust_window_v1($1, $2, $3, $4, $5, $6) t")
                .bind(kind)
                .bind(receipt.id)
                .bind(receipt.key.as_str())
                .bind(receipt.taken.cost)
                .bind(receipt.taken.acts_at)
                .bind(tokens)
                .fetch_one(connection)
                .await;
        }
        sqlx::query_as("select t.* from tollgate.adjust_v1($1, $2, $3, $4, $5, $6, $7) t")
            .bind(kind)
            .bind(receipt.id)
            .bind(receipt.key.as_str())
            .bind(receipt.taken.cost)
            .bind(receipt.taken.granted)
            .bind(receipt.taken.acts_at)
            .bind(tokens)
            .fetch_one(connection)
            .await
    }

    fn classify(error: &dyn DatabaseError) -> Class {
        let code = error.code().unwrap_or_default();
        match &*code {
            // serialization failure, deadlock, snapshot too old; our key inserted twice; a statement timeout;
            // statements that a pooler or a migration took away
            "55P03" => Class::Locked,
            "40001" | "40P01" | "72000" | "23505" | "57014" | "26000" | "42P05" => Class::RolledBack,
            "0A000" if error.message().contains("cached plan") => Class::RolledBack,
            "42883" | "42P01" | "3F000" => Class::NotMigrated,
            "42501" => Class::NotPermitted,
            "25006" => Class::ReadOnly,
            "XX000" => classify_yugabyte(error.message()),
            code if code.starts_with("08") || code.starts_with("57P") => Class::Unknown,
            _ => Class::Refused,
        }
    }

    async fn clean_up(_: &mut PgConnection) -> Result<(), sqlx::Error> {
        Ok(())
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
async fn take_times(connection: &mut PgConnection, ask: &Ask) -> Result<Vec<Columns>, sqlx::Error> {
    sqlx::query_as(
        "select 1::bigint, t.times, (t.taken).*
           from tollgate.take_times_v1($1, $2, $3, $4, $5::text::numeric, $6, $7, $8) t",
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
    .await
}

async fn take_all(connection: &mut PgConnection, ask: &Ask) -> Result<Vec<Columns>, sqlx::Error> {
    let places = 0..ask.take.limits.len();
    sqlx::query_as(
        "select t.entry, 1::bigint, (t.taken).*
           from tollgate.take_all_v1($1, $2, $3::text[]::numeric[], $4, $5, $6, $7, $8, $9, $10) t",
    )
    .bind(ask.take.keys().map(|key| key.as_str().to_owned()).collect::<Vec<_>>())
    .bind(places.clone().map(|place| ask.quota(place).map(Quota::capacity_i64)).collect::<Vec<_>>())
    .bind(places.clone().map(|place| ask.quota(place).map(Quota::refill_seconds)).collect::<Vec<_>>())
    .bind(places.clone().map(|place| ask.quota(place).map(refill)).collect::<Vec<_>>())
    .bind(places.map(|place| ask.plan(place).map(str::to_owned)).collect::<Vec<_>>())
    .bind(ask.request.cost)
    .bind(ask.request.max_wait)
    .bind(ask.request.keep)
    .bind(ask.id())
    .bind(ask.hold())
    .fetch_all(connection)
    .await
}

async fn take_all_many(connection: &mut PgConnection, asks: &[Ask]) -> Result<Vec<Columns>, sqlx::Error> {
    fn column<T>(asks: &[Ask], value: impl Fn(i64, &Ask, usize) -> T) -> Vec<T> {
        limits(asks).map(|(request, ask, place)| value(request, ask, place)).collect()
    }
    sqlx::query_as(
        "select t.entry, 1::bigint, (t.taken).*
           from tollgate.take_all_many_v1($1, $2, $3, $4, $5, $6::text[]::numeric[], $7, $8) t",
    )
    .bind(column(asks, |request, _, _| request))
    .bind(column(asks, |_, ask, place| ask.take.limits[place].0.as_str().to_owned()))
    .bind(column(asks, |_, ask, _| ask.request.cost))
    .bind(column(asks, |_, ask, _| ask.request.keep))
    .bind(column(asks, |_, ask, place| ask.quota(place).map(Quota::capacity_i64)))
    .bind(column(asks, |_, ask, place| ask.quota(place).map(Quota::refill_seconds)))
    .bind(column(asks, |_, ask, place| ask.quota(place).map(refill)))
    .bind(column(asks, |_, ask, place| ask.plan(place).map(str::to_owned)))
    .fetch_all(connection)
    .await
}

/// The places of requests for several buckets each, each with the number of its request, from 1.
fn limits(asks: &[Ask]) -> impl Iterator<Item = (i64, &Ask, usize)> {
    (1..).zip(asks).flat_map(|(request, ask)| (0..ask.take.limits.len()).map(move |place| (request, ask, place)))
}

async fn take_many(connection: &mut PgConnection, asks: &[Ask]) -> Result<Vec<Columns>, sqlx::Error> {
    fn column<T>(asks: &[Ask], value: impl Fn(&Ask) -> T) -> Vec<T> {
        asks.iter().map(value).collect()
    }
    sqlx::query_as(
        "select t.entry, t.times, (t.taken).*
           from tollgate.take_many_v1($1, $2, $3, $4, $5, $6::text[]::numeric[], $7, $8, $9, $10, $11) t",
    )
    .bind(column(asks, |ask| ask.key().as_str().to_owned()))
    .bind(column(asks, |ask| ask.request.cost))
    .bind(column(asks, |ask| ask.request.max_wait))
    .bind(column(asks, |ask| ask.request.keep))
    .bind(column(asks, |ask| ask.quota(0).map(Quota::capacity_i64)))
    .bind(column(asks, |ask| ask.quota(0).map(Quota::refill_seconds)))
    .bind(column(asks, |ask| ask.quota(0).map(refill)))
    .bind(column(asks, |ask| ask.plan(0).map(str::to_owned)))
    .bind(column(asks, Ask::id))
    .bind(column(asks, Ask::hold))
    .bind(column(asks, |ask| ask.times))
    .fetch_all(connection)
    .await
}

fn refill(quota: &Quota) -> &'static str {
    quota.refill().as_str()
}

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
