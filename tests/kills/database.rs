//! The engines under test, and connections to them.

use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sqlx::mysql::{MySqlConnectOptions, MySqlSslMode};
use sqlx::pool::PoolOptions;
use sqlx::postgres::{PgConnectOptions, PgSslMode};
use sqlx::sqlite::{LockedSqliteHandle, SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};
use sqlx::{Connection, MySqlConnection, MySqlPool, PgConnection, PgPool, Sqlite, SqlitePool};
use tollgate::{AnyStore, Decision, Error, SqlStore, Store};
use uuid::Uuid;

use crate::accounting::{Found, Request};

/// The engines that have a server.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub enum Engine {
    Postgres,
    MySql,
    MariaDb,
}

impl Engine {
    /// Returns the name of the engine in `scripts/servers`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Postgres => "postgres",
            Self::MySql => "mysql",
            Self::MariaDb => "mariadb",
        }
    }

    /// Returns the options that make the server start faster.
    pub fn fast_start(self) -> &'static [&'static str] {
        // The performance schema takes a third of MySQL's start, and no test reads it.
        if self == Self::MySql { &["--performance-schema=OFF"] } else { &[] }
    }
}

#[derive(Clone)]
pub enum Database {
    Postgres(PgPool),
    MySql(MySqlPool),
    Sqlite(SqlitePool),
}

/// Evaluates an expression with the pool of any engine.
macro_rules! with_pool {
    ($database:expr, $pool:ident => $body:expr) => {
        match $database {
            Database::Postgres($pool) => $body,
            Database::MySql($pool) => $body,
            Database::Sqlite($pool) => $body,
        }
    };
}

impl Database {
    /// Connects to a server. Fails while the server does not accept connections.
    pub async fn open(engine: Engine, url: &str) -> Result<Self, sqlx::Error> {
        if engine == Engine::Postgres {
            let options = PgConnectOptions::from_str(url)?.ssl_mode(PgSslMode::Disable);
            PgConnection::connect_with(&options).await?.close().await?;
            return Ok(Self::Postgres(small().connect_lazy_with(options)));
        }
        let options = MySqlConnectOptions::from_str(url)?.ssl_mode(MySqlSslMode::Disabled);
        let mut connection = MySqlConnection::connect_with(&options).await?;
        sqlx::raw_sql("create database if not exists tollgate").execute(&mut connection).await?;
        connection.close().await?;
        Ok(Self::MySql(small().connect_lazy_with(options.database("tollgate"))))
    }

    /// Opens an SQLite file. `prepare` runs on each new connection.
    pub async fn file(path: &Path, prepare: fn(&mut LockedSqliteHandle<'_>)) -> Result<Self, sqlx::Error> {
        let options = SqliteConnectOptions::new()
            .filename(path)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Normal)
            .busy_timeout(Duration::from_secs(20));
        let pool = small::<Sqlite>().after_connect(move |connection, _| {
            Box::pin(async move {
                prepare(&mut connection.lock_handle().await?);
                Ok(())
            })
        });
        Ok(Self::Sqlite(pool.connect_with(options).await?))
    }

    pub async fn migrate(&self) -> Result<(), Error> {
        with_pool!(self, pool => tollgate::migrate(pool).await.map(drop))
    }

    pub async fn run(&self, sql: &'static str) -> Result<(), sqlx::Error> {
        with_pool!(self, pool => sqlx::raw_sql(sql).execute(pool).await.map(drop))
    }

    /// Makes commits wait for the disk until the server restarts. PostgreSQL and SQLite need no change.
    pub async fn commit_to_the_disk(&self) -> Result<(), sqlx::Error> {
        match self {
            Self::MySql(_) => self.run("set global innodb_flush_log_at_trx_commit = 1").await,
            Self::Postgres(_) | Self::Sqlite(_) => Ok(()),
        }
    }

    pub async fn send(&self, request: &Request) -> Result<Decision, Error> {
        let take = request.take()?;
        Ok(with_pool!(self, pool => SqlStore::from(pool.clone()).take_one(&take).await)??)
    }

    /// Returns a store over the pool.
    pub fn store(&self) -> AnyStore {
        with_pool!(self, pool => AnyStore::new(SqlStore::from(pool.clone())))
    }

    /// Reads all buckets and all open receipts.
    pub async fn found(&self) -> anyhow::Result<Found> {
        let (buckets, receipts) = match self {
            Self::Postgres(_) => (
                "select id, granted from tollgate.token_buckets",
                "select id::text, bucket, cost from tollgate.token_receipts where state = 'open'",
            ),
            Self::MySql(_) => (
                "select convert(id using utf8mb4), granted from token_buckets",
                "select hex(id), convert(bucket using utf8mb4), cost from token_receipts where state = 'open'",
            ),
            Self::Sqlite(_) => (
                "select id, granted from token_buckets",
                "select id, bucket, cost from token_receipts where state = 'open'",
            ),
        };
        let granted: Vec<(String, i64)> = with_pool!(self, pool => sqlx::query_as(buckets).fetch_all(pool).await)?;
        let receipts: Vec<(String, String, i64)> =
            with_pool!(self, pool => sqlx::query_as(receipts).fetch_all(pool).await)?;
        let receipts =
            receipts.into_iter().map(|(id, bucket, cost)| Ok(((Uuid::parse_str(&id)?.as_u128(), bucket), cost)));
        Ok(Found { granted: granted.into_iter().collect(), receipts: receipts.collect::<anyhow::Result<_>>()? })
    }

    /// Closes the pool, and waits for the connections in use.
    pub async fn close(&self) {
        // The pool retries a refused connection until the deadline. A missing socket fails at once, so no caller waits.
        match self {
            Self::Postgres(pool) => {
                pool.set_connect_options(pool.connect_options().as_ref().clone().socket(MISSING_SOCKET));
            }
            Self::MySql(pool) => {
                pool.set_connect_options(pool.connect_options().as_ref().clone().socket(MISSING_SOCKET));
            }
            Self::Sqlite(_) => {}
        }
        with_pool!(self, pool => pool.close().await);
    }
}

/// A path at which there is no socket.
const MISSING_SOCKET: &str = "/nowhere/at/all";

/// Returns the options of a small pool that does not test its connections before use.
fn small<DB: sqlx::Database>() -> PoolOptions<DB> {
    PoolOptions::new().idle_timeout(None).max_lifetime(None).max_connections(8).test_before_acquire(false)
}
