//! A bucket in a database, requested by SQL as any client can.
//!
//! The checker needs the instant of each decision, on the database's clock. The routine returns the instant, and a
//! `Decision` has only durations. SQLite has no routines, so the example records the host's clock there.

use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use anyhow::{Context, bail, ensure};
use sqlx::mysql::MySqlPoolOptions;
use sqlx::postgres::PgPoolOptions;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};
use sqlx::{MySqlPool, PgPool, Row, SqlitePool};
use tollgate::{
    Key, Quota, SqliteStore, Store, Take,
    clock::{Clock, SystemClock},
    create_bucket, migrate,
};

#[derive(Clone)]
pub enum Database {
    MySql(MySqlPool),
    Postgres(PgPool),
    Sqlite(SqlitePool),
}

impl Database {
    /// Opens all connections at once, so that the first requests do not wait for one.
    pub async fn connect(url: &str, connections: u32) -> anyhow::Result<Self> {
        Ok(match url.split(':').next() {
            Some("postgres" | "postgresql") => {
                let pool = PgPoolOptions::new()
                    .idle_timeout(None)
                    .max_lifetime(None)
                    .min_connections(connections)
                    .max_connections(connections);
                Self::Postgres(pool.connect(url).await?)
            }
            Some("mysql" | "mariadb") => {
                let pool = MySqlPoolOptions::new()
                    .idle_timeout(None)
                    .max_lifetime(None)
                    .min_connections(connections)
                    .max_connections(connections);
                Self::MySql(pool.connect(url).await?)
            }
            Some("sqlite") => {
                let options = SqliteConnectOptions::from_str(url)?
                    .journal_mode(SqliteJournalMode::Wal)
                    .synchronous(SqliteSynchronous::Normal);
                let pool = SqlitePoolOptions::new()
                    .idle_timeout(None)
                    .max_lifetime(None)
                    .min_connections(connections)
                    .max_connections(connections);
                Self::Sqlite(pool.connect_with(options).await?)
            }
            _ => bail!("give a URL that begins with postgres://, mysql:// or sqlite://"),
        })
    }

    /// Migrates the database.
    pub async fn migrate(&self) -> anyhow::Result<()> {
        match self {
            Self::MySql(pool) => migrate(pool).await?,
            Self::Postgres(pool) => migrate(pool).await?,
            Self::Sqlite(pool) => migrate(pool).await?,
        };
        Ok(())
    }

    /// Provisions a bucket, and returns its anchor.
    pub async fn provision(&self, id: &str, quota: Quota) -> anyhow::Result<i64> {
        match self {
            Self::MySql(pool) => {
                create_bucket(pool, id, quota).await?;
                let anchor = sqlx::query_scalar("select anchor from token_buckets where id = ?").bind(id);
                Ok(anchor.fetch_one(pool).await?)
            }
            Self::Postgres(pool) => {
                create_bucket(pool, id, quota).await?;
                let anchor = sqlx::query_scalar("select anchor from tollgate.token_buckets where id = $1").bind(id);
                Ok(anchor.fetch_one(pool).await?)
            }
            Self::Sqlite(pool) => {
                create_bucket(pool, id, quota).await?;
                let anchor = sqlx::query_scalar("select anchor from token_buckets where id = ?1").bind(id);
                Ok(anchor.fetch_one(pool).await?)
            }
        }
    }

    /// Requests one token. Returns whether it was granted, and the instant of the decision.
    pub async fn take(&self, id: &str) -> anyhow::Result<(bool, i64)> {
        let (outcome, at): (String, i64) = match self {
            Self::MySql(pool) => {
                // The server returns the twelve out parameters as a row.
                let take = "call token_take_v1(?, 1, 0, 0, null, null, null, null, null, null, true, false,
                                               ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
                let take = (0..11).fold(sqlx::query(take).bind(id).bind(1_i64), |take, _| take.bind(None::<i64>));
                // Fetches all results, because a CALL also ends with a result of its own.
                let rows = take.fetch_all(pool).await?;
                let row = rows.first().context("the routine answers")?;
                (String::from_utf8(row.try_get(1)?)?, row.try_get(3)?)
            }
            Self::Postgres(pool) => {
                let row = sqlx::query_as(
                    "select outcome, now from tollgate.take_v1($1, 1, 0, 0, null, null, null, null, null, null)",
                );
                row.bind(id).fetch_one(pool).await?
            }
            Self::Sqlite(pool) => {
                let clock = Listened::default();
                let store = SqliteStore::with_clock(pool.clone(), clock.clone());
                let outcome = store.take(&[Take::from(Key::try_from(id)?)]).await?.remove(0)?;
                let word = if outcome.is_granted() { "granted" } else { "denied" };
                (word.to_owned(), clock.0.load(Ordering::SeqCst))
            }
        };
        ensure!(outcome == "granted" || outcome == "denied", "the outcome is {outcome:?}");
        Ok((outcome == "granted", at))
    }

    pub async fn close(&self) {
        match self {
            Self::MySql(pool) => pool.close().await,
            Self::Postgres(pool) => pool.close().await,
            Self::Sqlite(pool) => pool.close().await,
        }
    }
}

/// The host's clock, with its last reading: the time of the decision.
#[derive(Clone, Default)]
struct Listened(Arc<AtomicI64>);

impl Clock for Listened {
    fn now(&self) -> i64 {
        let now = SystemClock.now();
        self.0.store(now, Ordering::SeqCst);
        now
    }
}
