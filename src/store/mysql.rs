use std::fmt::Write;

use sqlx::SqlStr;
use sqlx::error::DatabaseError;
use sqlx::mysql::{MySql, MySqlConnection, MySqlDatabaseError};

use super::dialect::{Answer, Ask, Columns, Dialect};
use super::isolation::Isolation;
use super::levels;
use super::sql::SqlStore;
use crate::retry::Class;
use crate::{Key, Quota};

/// Buckets in MySQL or MariaDB, at the server's clock.
pub type MySqlStore = SqlStore<MySql>;

impl Dialect for MySql {
    type Clock = ();

    const ONE_STATEMENT: bool = true;

    fn begin(isolation: Isolation) -> Option<SqlStr> {
        Some(SqlStr::from_static(match isolation {
            Isolation::ReadCommitted => "set transaction isolation level read committed; start transaction",
            Isolation::RepeatableRead => "set transaction isolation level repeatable read; start transaction",
            Isolation::Serializable => "set transaction isolation level serializable; start transaction",
        }))
    }

    async fn take(connection: &mut MySqlConnection, asks: &[Ask], (): &()) -> Result<Vec<Answer>, sqlx::Error> {
        // All rows are fetched: what is left unread of a CALL would be the next statement's answer.
        if let [ask] = asks {
            let mut decide = sqlx::query_as("call token_decide_v1(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)")
                .bind(ask.key.as_str())
                .bind(ask.request.cost)
                .bind(ask.request.max_wait)
                .bind(ask.request.keep)
                .bind(ask.quota.map(|quota| quota.capacity_i64()))
                .bind(ask.quota.map(|quota| quota.refill_seconds()))
                .bind(ask.quota.map(|quota| quota.refill().as_str()));
            for _ in 0..RESULTS {
                decide = decide.bind(None::<i64>);
            }
            let decided: Vec<Decided> = decide.fetch_all(connection).await?;
            decided.into_iter().map(answer).collect()
        } else {
            let take = sqlx::query_as("call token_take_many_v1(?)").bind(requests(asks));
            let taken: Vec<Columns> = take.fetch_all(connection).await?;
            Ok(taken.into_iter().map(Answer::from).collect())
        }
    }

    async fn create_bucket(
        connection: &mut MySqlConnection,
        key: &Key,
        quota: &Quota,
        (): &(),
    ) -> Result<(), sqlx::Error> {
        sqlx::query("call token_create_bucket(?, ?, ?, ?)")
            .bind(key.as_str())
            .bind(quota.capacity_i64())
            .bind(quota.refill_seconds())
            .bind(quota.refill().as_str())
            .execute(connection)
            .await
            .map(drop)
    }

    async fn levels(
        connection: &mut MySqlConnection,
        after: &str,
        limit: u32,
    ) -> Result<Vec<levels::Columns>, sqlx::Error> {
        sqlx::query_as(
            "select id, capacity, cast(refill_seconds * 1000000000 as signed), refill, provisioned, available, granted,
                    full_at, next_refill_at
               from token_bucket_levels where cast(id as binary) > ? order by cast(id as binary) limit ?",
        )
        .bind(after)
        .bind(limit)
        .fetch_all(connection)
        .await
    }

    fn classify(error: &dyn DatabaseError) -> Class {
        match error.try_downcast_ref::<MySqlDatabaseError>().map(MySqlDatabaseError::number) {
            // deadlock, lock wait timeout, MariaDB's changed record; group replication's and Galera's certification;
            // NOWAIT and statement timeouts
            Some(1213 | 1205 | 1020 | 3101 | 1180 | 3572 | 1969 | 3024) => Class::RolledBack,
            Some(1305 | 1146) => Class::NotMigrated,
            Some(1370 | 1142 | 1044) => Class::NotPermitted,
            Some(1047) => Class::Unavailable,
            Some(1053 | 1158..=1161 | 1317 | 1927 | 2006 | 2013 | 4031) => Class::Unknown,
            // the routines' own word that nothing came of it
            _ if error.code().as_deref() == Some("40001") => Class::RolledBack,
            _ => Class::Refused,
        }
    }

    /// A lock wait that timed out undoes its statement only, and a killed procedure leaves its transaction open.
    async fn clean_up(connection: &mut MySqlConnection) -> Result<(), sqlx::Error> {
        sqlx::raw_sql("rollback").execute(connection).await.map(drop)
    }
}

/// What a prepared `CALL` of `token_decide_v1` answers: its results as a row, texts as bytes.
type Decided =
    (Vec<u8>, i64, Option<i64>, Option<i64>, Option<i64>, Option<i64>, Option<i64>, Option<i64>, Option<i64>);

const RESULTS: usize = 9;

fn answer(decided: Decided) -> Result<Answer, sqlx::Error> {
    let (outcome, now, full_at, granted, capacity, anchor, step_ns, step_ticks, token_ticks) = decided;
    let outcome = String::from_utf8(outcome).map_err(|error| sqlx::Error::Decode(error.into()))?;
    Ok(Answer::from((1, outcome, now, full_at, granted, capacity, anchor, step_ns, step_ticks, token_ticks)))
}

/// The argument of `token_take_many_v1`.
fn requests(asks: &[Ask]) -> String {
    let mut json = String::with_capacity(96 * asks.len() + 2);
    let mut separator = '[';
    for ask in asks {
        json.push(separator);
        json.push_str("[\"");
        for character in ask.key.as_str().chars() {
            match character {
                '"' | '\\' => json.extend(['\\', character]),
                '\0'..' ' => write!(json, "\\u{:04x}", u32::from(character)).expect("a String takes everything"),
                _ => json.push(character),
            }
        }
        write!(json, "\",{},{},{},", ask.request.cost, ask.request.max_wait, ask.request.keep)
            .expect("a String takes everything");
        match ask.quota {
            None => json.push_str("null,null,null]"),
            Some(quota) => {
                let (capacity, refill) = (quota.capacity_i64(), quota.refill().as_str());
                write!(json, "{capacity},{},\"{refill}\"]", quota.refill_seconds()).expect("a String takes everything");
            }
        }
        separator = ',';
    }
    json.push(']');
    json
}
