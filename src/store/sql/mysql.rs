//! Connections, transactions and error classes of MySQL and MariaDB.

use std::borrow::Cow;
use std::time::Duration;

use sqlx::error::DatabaseError;
use sqlx::mysql::{MySql, MySqlConnectOptions, MySqlConnection, MySqlDatabaseError};
use sqlx::{Row, SqlStr};

use super::connect::{ipv6_address, require_one_host};
use super::dialect::{ChangeTime, Dialect, Engine, Operation};
use super::retry::ErrorClass;
use super::settings::{Durability, Isolation};
use super::store::SqlStore;
use crate::model::{Key, Quota};

mod adjust;
mod admin;
mod json;
mod take;

/// Buckets in MySQL or MariaDB, at the server's clock.
pub type MySqlStore = SqlStore<MySql>;

/// In whose transaction the server decides. Each call must say so: a session with autocommit off is always in a
/// transaction.
#[allow(unreachable_pub, reason = "the signatures of a sealed trait name it")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TransactionOwner {
    /// In a transaction of the call's own, which the routine ends.
    #[default]
    Own,
    /// In the transaction that the caller has opened, if any.
    Callers,
}

impl TransactionOwner {
    fn is_own(self) -> bool {
        self == Self::Own
    }
}

impl Dialect for MySql {}

impl Engine for MySql {
    const ONE_STATEMENT: bool = true;
    const HAS_SERVER: bool = true;
    const CONCURRENT_CALLS: usize = 2;

    /// Rolls back first, so that the transaction contains nothing that other code left open on the connection.
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

    fn classify(error: &dyn DatabaseError) -> ErrorClass {
        // A routine signals this if the bucket or its limits changed during each of its attempts.
        if error.code().as_deref() == Some("40001") {
            return ErrorClass::RolledBack;
        }
        match error_number(error) {
            // lock wait timeout, NOWAIT
            Some(1205 | 3572) => ErrorClass::Locked,
            // deadlock, MariaDB's changed record; group replication's and Galera's certification;
            // statement timeouts
            Some(1213 | 1020 | 3101 | 1180 | 1969 | 3024) => ErrorClass::RolledBack,
            Some(1305 | 1146) => ErrorClass::NotMigrated,
            Some(1370 | 1142 | 1044) => ErrorClass::NotPermitted,
            // an option that prevents the statement; a read-only server or transaction
            Some(1290 | 1792 | 1836) => ErrorClass::ReadOnly,
            // no primary component; limits of connections, of an account's calls per hour, and of prepared statements
            Some(1047 | 1040 | 1203 | 1226 | 1461) => ErrorClass::Unavailable,
            Some(1053 | 1158..=1161 | 1317 | 1927 | 2006 | 2013 | 4031) => ErrorClass::Unknown,
            _ => ErrorClass::Refused,
        }
    }

    fn is_full(error: &dyn DatabaseError) -> bool {
        matches!(error_number(error), Some(1040 | 1203 | 1226))
    }

    /// Counts each statement of the account in the database: the server shows the innermost statement of a call, which can
    /// be a trigger's.
    async fn is_call_running(connection: &mut MySqlConnection, age: Duration) -> Result<bool, sqlx::Error> {
        let is_running = "select exists (
               select 1 from information_schema.processlist
                where user = substring_index(user(), '@', 1) and db = database() and id <> connection_id()
                  and command in ('Query', 'Execute') and time >= ?)";
        sqlx::query_scalar(is_running).bind(age.as_secs()).fetch_one(connection).await
    }

    /// Rolls back: a lock wait that times out rolls back only its statement, and a killed procedure leaves its
    /// transaction open.
    async fn clean_up(connection: &mut MySqlConnection) -> Result<(), sqlx::Error> {
        sqlx::raw_sql("rollback and no chain no release").execute(connection).await.map(drop)
    }

    fn in_callers_transaction(_: &TransactionOwner) -> TransactionOwner {
        TransactionOwner::Callers
    }

    async fn begin_operation(connection: &mut MySqlConnection) -> Result<bool, sqlx::Error> {
        let rows = sqlx::raw_sql("rollback and no chain no release; select @@autocommit").fetch_all(connection).await?;
        rows.first().ok_or(sqlx::Error::RowNotFound)?.try_get::<i64, _>(0).map(|autocommit| autocommit == 0)
    }

    /// Uses its own isolation level, as the routines do, and does not depend on the session's `completion_type`.
    async fn run_change<A: Sync, T: Send>(
        connection: &mut MySqlConnection,
        operation: Operation<Self, A, T>,
        arguments: &A,
        owner: &TransactionOwner,
        time: ChangeTime<'_>,
    ) -> Result<T, sqlx::Error> {
        if let Some(begin) = Self::begin(Isolation::ReadCommitted) {
            sqlx::raw_sql(begin).execute(&mut *connection).await?;
        }
        let answer = operation(&mut *connection, arguments, owner).await?;
        if time.commit_claim.claim() {
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

/// The number of an error of the server, which tells apart errors that share a SQLSTATE. `None` for any other error.
fn error_number(error: &dyn DatabaseError) -> Option<u16> {
    error.try_downcast_ref::<MySqlDatabaseError>().map(MySqlDatabaseError::number)
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap_or_default()
}

/// The bytes of a key or a name. Bound as text, the server would convert them from the session's character set, and store
/// the key under other bytes.
fn bytes(key: &Key) -> &[u8] {
    key.as_str().as_bytes()
}

fn refill(quota: &Quota) -> Cow<'static, str> {
    quota.refill().column()
}
