use smol_str::SmolStr;
use sqlx::error::DatabaseError;
use sqlx::mysql::{MySql, MySqlConnectOptions, MySqlConnection, MySqlDatabaseError};
use sqlx::{Row, SqlStr};

use super::ask::Ask;
use super::call::Counting;
use super::columns::{self, Columns};
use super::connect::{Durability, ipv6_address, require_one_host};
use super::dialect::{Dialect, Operation, Time};
use super::isolation::Isolation;
use super::outcomes::{self, AdjustedColumns};
use super::retry::Class;
use super::store::SqlStore;
use crate::model::answer::Answer;
use crate::model::{Adjustment, Counted, Key, Quota};

mod adjust;
mod admin;
mod alike;
mod json;
mod several;

/// Buckets in MySQL or MariaDB, at the server's clock.
pub type MySqlStore = SqlStore<MySql>;

/// In whose transaction the server decides. It has to be told: a session with autocommit off is always in one.
#[allow(unreachable_pub, reason = "the signatures of a sealed trait name it")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Whose {
    /// In one of its own, which it ends.
    #[default]
    Own,
    /// In the one that the caller has opened, if any.
    Callers,
}

impl Whose {
    fn is_own(self) -> bool {
        self == Self::Own
    }
}

impl Dialect for MySql {
    const ONE_STATEMENT: bool = true;
    const HAS_SERVER: bool = true;
    const CALLS_AT_ONCE: usize = 2;

    /// Nothing that others have left open on the connection is in it.
    fn begin(isolation: Isolation) -> Option<SqlStr> {
        Some(SqlStr::from_static(match isolation {
            Isolation::ReadCommitted => {
                "rollback and no chain no release; set transaction isolation level read committed; start transaction"
            }
            Isolation::RepeatableRead => {
                "rollback and no chain no release; set transaction isolation level repeatable read; start transaction"
            }
            Isolation::Serializable => {
                "rollback and no chain no release; set transaction isolation level serializable; start transaction"
            }
        }))
    }

    fn parse_url(url: &str) -> Result<MySqlConnectOptions, sqlx::Error> {
        require_one_host(url)?;
        let options: MySqlConnectOptions = url.parse()?;
        Ok(match ipv6_address(url) {
            Some(address) => options.host(address),
            None => options,
        })
    }

    fn connect_options(url: &str, _: Durability) -> Result<MySqlConnectOptions, sqlx::Error> {
        Self::parse_url(url)
    }

    async fn lacks_durability(connection: &mut MySqlConnection) -> Result<Option<String>, sqlx::Error> {
        let settings = "select cast(@@innodb_flush_log_at_trx_commit as signed), cast(@@sync_binlog as signed),
                               cast(@@log_bin as signed)";
        let (flush, sync, logged): (i64, i64, i64) = sqlx::query_as(settings).fetch_one(connection).await?;
        let durable = flush == 1 && (logged == 0 || sync == 1);
        Ok((!durable).then(|| format!("innodb_flush_log_at_trx_commit is {flush}, sync_binlog is {sync}")))
    }

    async fn take(connection: &mut MySqlConnection, asks: &[Ask], whose: &Whose) -> Result<Vec<Answer>, sqlx::Error> {
        // All rows are fetched: what is left unread of a CALL would be the next statement's answer.
        let columns: Vec<Columns> = match asks {
            [ask] => take_one(connection, ask, *whose).await?,
            _ => take_many(connection, asks, *whose).await?,
        };
        columns::in_order(columns::entries(columns)?, |place| asks.get(place).map(|ask| ask.request))
    }

    async fn take_all(
        connection: &mut MySqlConnection,
        asks: &[Ask],
        whose: &Whose,
    ) -> Result<Vec<Answer>, sqlx::Error> {
        several::take_all(connection, asks, *whose).await
    }

    async fn take_window(
        connection: &mut MySqlConnection,
        ask: &Ask,
        counting: Counting,
        whose: &Whose,
    ) -> Result<Counted, sqlx::Error> {
        let window = ask.window()?;
        // With a placeholder for each OUT parameter, which the server answers as a row.
        let rows: Vec<WindowOutParameters> =
            sqlx::query_as("call token_take_window_v1(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)")
                .bind(bytes(ask.key()))
                .bind(ask.request.cost)
                .bind(ask.request.max_wait)
                .bind(ask.request.keep)
                .bind(window.most())
                .bind(window.interval_ns())
                .bind(window.resolution_ns())
                .bind(ask.id().map(|id| id.hyphenated().to_string()))
                .bind(ask.hold())
                .bind(counting == Counting::Count)
                .bind(whose.is_own())
                .bind(None::<i64>)
                .bind(None::<i64>)
                .bind(None::<i64>)
                .bind(None::<i64>)
                .bind(None::<i64>)
                .bind(None::<i64>)
                .fetch_all(connection)
                .await?;
        let row = rows.into_iter().next().ok_or(sqlx::Error::RowNotFound)?;
        let (outcome, mode, now, acts_at, counts, resolution) = row;
        let counts = outcomes::parse_counts(&text(counts))?;
        columns::counted((text(outcome), mode.map(text), now, acts_at, counts, resolution))
    }

    async fn adjust(
        connection: &mut MySqlConnection,
        adjustments: &[Adjustment],
        whose: &Whose,
    ) -> Result<Vec<AdjustedColumns>, sqlx::Error> {
        adjust::adjust(connection, adjustments, *whose).await
    }

    fn classify(error: &dyn DatabaseError) -> Class {
        // Signalled by a routine that gave up.
        if error.code().as_deref() == Some("40001") {
            return Class::RolledBack;
        }
        match number(error) {
            // lock wait timeout, NOWAIT
            Some(1205 | 3572) => Class::Locked,
            // deadlock, MariaDB's changed record; group replication's and Galera's certification;
            // statement timeouts
            Some(1213 | 1020 | 3101 | 1180 | 1969 | 3024) => Class::RolledBack,
            Some(1305 | 1146) => Class::NotMigrated,
            Some(1370 | 1142 | 1044) => Class::NotPermitted,
            // an option that prevents it; a server, or a transaction, that only reads
            Some(1290 | 1792 | 1836) => Class::ReadOnly,
            Some(1047) => Class::Unavailable,
            Some(1053 | 1158..=1161 | 1317 | 1927 | 2006 | 2013 | 4031) => Class::Unknown,
            _ => Class::Refused,
        }
    }

    /// Its number: many errors share a SQLSTATE.
    fn code(error: &dyn DatabaseError) -> Option<SmolStr> {
        number(error).map(|number| smol_str::format_smolstr!("{number}"))
    }

    /// A lock wait that timed out undoes its statement only, and a killed procedure leaves its transaction open.
    async fn clean_up(connection: &mut MySqlConnection) -> Result<(), sqlx::Error> {
        sqlx::raw_sql("rollback and no chain no release").execute(connection).await.map(drop)
    }

    fn within(_: &Whose) -> Whose {
        Whose::Callers
    }

    async fn begin_operation(connection: &mut MySqlConnection) -> Result<bool, sqlx::Error> {
        let rows = sqlx::raw_sql("rollback and no chain no release; select @@autocommit").fetch_all(connection).await?;
        rows.first().ok_or(sqlx::Error::RowNotFound)?.try_get::<i64, _>(0).map(|autocommit| autocommit == 0)
    }

    /// At another level than the session's, as the routines do, and whatever its `completion_type`.
    async fn change<A: Sync, T: Send>(
        connection: &mut MySqlConnection,
        operation: Operation<Self, A, T>,
        arguments: &A,
        whose: &Whose,
        time: Time<'_>,
    ) -> Result<T, sqlx::Error> {
        if let Some(begin) = Self::begin(Isolation::ReadCommitted) {
            sqlx::raw_sql(begin).execute(&mut *connection).await?;
        }
        let answer = operation(&mut *connection, arguments, whose).await?;
        if time.may_commit.claim() {
            Self::end_operation(connection).await?;
        } else {
            Self::clean_up(connection).await?;
        }
        Ok(answer)
    }

    async fn end_operation(connection: &mut MySqlConnection) -> Result<(), sqlx::Error> {
        sqlx::raw_sql("commit and no chain no release").execute(connection).await.map(drop)
    }
}

fn number(error: &dyn DatabaseError) -> Option<u16> {
    error.try_downcast_ref::<MySqlDatabaseError>().map(MySqlDatabaseError::number)
}

/// How many equal requests were granted, and [`Columns`] without the first two, about the others or all. MySQL does not say
/// that text is text.
type OutParameters = (
    i64,
    Vec<u8>,
    Option<Vec<u8>>,
    i64,
    Option<i64>,
    Option<i64>,
    Option<i64>,
    Option<i64>,
    Option<i64>,
    Option<i64>,
    Option<i64>,
    Option<i64>,
);

/// [`columns::WindowColumns`], likewise.
type WindowOutParameters = (Vec<u8>, Option<Vec<u8>>, i64, Option<i64>, Vec<u8>, i64);

/// Calls the routine that decides, with a placeholder for each of its OUT parameters: the server answers them as a row,
/// which saves a routine in between that would select them. Equal requests are decided by the same call.
async fn take_one(connection: &mut MySqlConnection, ask: &Ask, whose: Whose) -> Result<Vec<Columns>, sqlx::Error> {
    const OUT_PARAMETERS: usize = 11;
    let mut call =
        sqlx::query_as("call token_take_v1(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, true, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)")
            .bind(bytes(ask.key()))
            .bind(ask.request.cost)
            .bind(ask.request.max_wait)
            .bind(ask.request.keep)
            .bind(ask.quota(0).map(Quota::capacity_i64))
            .bind(ask.quota(0).map(Quota::refill_seconds))
            .bind(ask.quota(0).map(refill))
            .bind(ask.plan(0).map(str::as_bytes))
            .bind(ask.id().map(|id| id.hyphenated().to_string()))
            .bind(ask.hold())
            .bind(whose.is_own())
            .bind(ask.times);
    for _ in 0..OUT_PARAMETERS {
        call = call.bind(None::<i64>);
    }
    let rows: Vec<OutParameters> = call.fetch_all(connection).await?;
    let row = rows.into_iter().next().ok_or(sqlx::Error::RowNotFound)?;
    let (granted_times, outcome, mode, now, acts_at, full_at, granted, burst, anchor, step_ns, step_ticks, token_ticks) =
        row;
    let (outcome, mode) = (text(outcome), mode.map(text));
    let columns =
        (1, ask.times, outcome, mode, now, acts_at, full_at, granted, burst, anchor, step_ns, step_ticks, token_ticks);
    Ok(parts(granted_times, columns).collect())
}

async fn take_many(connection: &mut MySqlConnection, asks: &[Ask], whose: Whose) -> Result<Vec<Columns>, sqlx::Error> {
    if let Some(columns) = alike::take(connection, asks, whose).await? {
        return Ok(columns);
    }
    let rows: Vec<(Vec<u8>,)> = sqlx::query_as("call token_take_batch_v1(?, ?, ?)")
        .bind(json::requests(asks))
        .bind(whose.is_own())
        .bind(None::<String>)
        .fetch_all(connection)
        .await?;
    let (answers,) = rows.into_iter().next().ok_or(sqlx::Error::RowNotFound)?;
    let mut columns = Vec::with_capacity(asks.len());
    for text in json::texts(&text(answers)) {
        let unread = || sqlx::Error::Protocol(format!("the answer {text:?}"));
        let mut words = text.splitn(3, ' ');
        let mut times = || words.next().and_then(|word| word.parse::<i64>().ok()).ok_or_else(unread);
        let (times, granted_times) = (times()?, times()?);
        if times > 0 {
            let mut answer = json::parse_columns(words.next().ok_or_else(unread)?)?;
            answer.1 = times;
            columns.extend(parts(granted_times, answer));
        }
    }
    Ok(columns)
}

/// What is said of so many equal requests, apart for those that were granted and the others.
fn parts(granted_times: i64, mut others: Columns) -> impl Iterator<Item = Columns> {
    let mut granted = others.clone();
    (granted.1, granted.2, granted.3) = (granted_times, "granted".to_owned(), None);
    others.1 -= granted_times;
    [granted, others].into_iter().filter(|columns| columns.1 > 0)
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap_or_default()
}

/// A key or a name as the server has to receive it: the server converts what is bound as text from the session's character
/// set, and would file the key under other bytes.
fn bytes(key: &Key) -> &[u8] {
    key.as_str().as_bytes()
}

fn refill(quota: &Quota) -> &'static str {
    quota.refill().as_str()
}
