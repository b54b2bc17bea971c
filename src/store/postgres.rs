use sqlx::SqlStr;
use sqlx::error::DatabaseError;
use sqlx::postgres::{PgConnection, Postgres};

use super::dialect::{Answer, Ask, Columns, Dialect};
use super::isolation::Isolation;
use super::levels;
use super::sql::SqlStore;
use crate::quota::Refill;
use crate::retry::Class;
use crate::{Key, Quota};

/// Buckets in PostgreSQL or YugabyteDB, at the server's clock.
pub type PgStore = SqlStore<Postgres>;

impl Dialect for Postgres {
    type Clock = ();

    const ONE_STATEMENT: bool = true;

    fn begin(isolation: Isolation) -> Option<SqlStr> {
        Some(SqlStr::from_static(match isolation {
            Isolation::ReadCommitted => "begin isolation level read committed",
            Isolation::RepeatableRead => "begin isolation level repeatable read",
            Isolation::Serializable => "begin isolation level serializable",
        }))
    }

    async fn take(connection: &mut PgConnection, asks: &[Ask], (): &()) -> Result<Vec<Answer>, sqlx::Error> {
        let columns = match asks {
            [ask] => vec![take_one(connection, ask).await?],
            _ => take_many(connection, asks).await?,
        };
        Ok(columns.into_iter().map(Answer::from).collect())
    }

    async fn create_bucket(
        connection: &mut PgConnection,
        key: &Key,
        quota: &Quota,
        (): &(),
    ) -> Result<(), sqlx::Error> {
        sqlx::query("select tollgate.create_bucket($1, $2, $3::text::numeric, $4)")
            .bind(key.as_str())
            .bind(quota.capacity_i64())
            .bind(quota.refill_seconds())
            .bind(quota.refill().as_str())
            .execute(connection)
            .await
            .map(drop)
    }

    async fn levels(
        connection: &mut PgConnection,
        after: &str,
        limit: u32,
    ) -> Result<Vec<levels::Columns>, sqlx::Error> {
        sqlx::query_as(
            "select id, capacity, (refill_seconds * 1000000000)::bigint, refill, provisioned, available, granted,
                    full_at, next_refill_at
               from tollgate.token_bucket_levels where id > $1 order by id limit $2",
        )
        .bind(after)
        .bind(i64::from(limit))
        .fetch_all(connection)
        .await
    }

    fn classify(error: &dyn DatabaseError) -> Class {
        let code = error.code().unwrap_or_default();
        match &*code {
            // serialization failure, deadlock, snapshot too old; our key inserted twice; a lock or statement timeout;
            // statements that a pooler or a migration took away
            "40001" | "40P01" | "72000" | "23505" | "55P03" | "57014" | "26000" | "42P05" => Class::RolledBack,
            "0A000" if error.message().contains("cached plan") => Class::RolledBack,
            "42883" | "42P01" | "3F000" => Class::NotMigrated,
            "42501" => Class::NotPermitted,
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
    sqlx::query_as("select 1::bigint, t.* from tollgate.take_v1($1, $2, $3, $4, $5, $6::text::numeric, $7) t")
        .bind(ask.key.as_str())
        .bind(ask.request.cost)
        .bind(ask.request.max_wait)
        .bind(ask.request.keep)
        .bind(ask.quota.map(|quota| quota.capacity_i64()))
        .bind(ask.quota.map(|quota| quota.refill_seconds()))
        .bind(ask.quota.map(|quota| quota.refill().as_str()))
        .fetch_one(connection)
        .await
}

async fn take_many(connection: &mut PgConnection, asks: &[Ask]) -> Result<Vec<Columns>, sqlx::Error> {
    fn column<T>(asks: &[Ask], value: impl Fn(&Ask) -> T) -> Vec<T> {
        asks.iter().map(value).collect()
    }
    let of_quota = |ask: &Ask| ask.quota;
    sqlx::query_as("select * from tollgate.take_many_v1($1, $2, $3, $4, $5, $6::text[]::numeric[], $7)")
        .bind(column(asks, |ask| ask.key.as_str().to_owned()))
        .bind(column(asks, |ask| ask.request.cost))
        .bind(column(asks, |ask| ask.request.max_wait))
        .bind(column(asks, |ask| ask.request.keep))
        .bind(column(asks, |ask| of_quota(ask).map(|quota| quota.capacity_i64())))
        .bind(column(asks, |ask| of_quota(ask).as_ref().map(Quota::refill_seconds)))
        .bind(column(asks, |ask| of_quota(ask).as_ref().map(Quota::refill).map(Refill::as_str)))
        .fetch_all(connection)
        .await
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
