//! Opens the database that an example is given, or one in memory.
#![allow(dead_code, reason = "each example uses a part of it")]

use std::time::Duration;

use anyhow::{Context, bail};
use sqlx::pool::PoolOptions;
use sqlx::{MySql, MySqlPool, PgPool, Pool, Postgres, Sqlite, SqlitePool};
use tollgate::{
    Adjusted, Adjustment, Admin, Counted, Error, HoldBack, Key, Migrate, Outcome, Quota, Rule, SharedWindows, SqlStore,
    Store, Take, TakeError, Window,
};
use uuid::Uuid;

/// The database whose URL is the first argument, or else one of SQLite that ends with the example.
pub(crate) async fn open() -> anyhow::Result<Database> {
    open_at(&std::env::args().nth(1).unwrap_or_else(|| "sqlite::memory:".to_owned())).await
}

/// The database with this URL.
pub(crate) async fn open_at(url: &str) -> anyhow::Result<Database> {
    let engine = match url.split(':').next() {
        Some("postgres" | "postgresql") => Engine::Postgres(connect(url).await?),
        Some("mysql" | "mariadb") => Engine::MySql(connect(url).await?),
        Some("sqlite") => Engine::Sqlite(connect(url).await?),
        _ => bail!("give a URL that begins with postgres://, mysql:// or sqlite://"),
    };
    Ok(Database { engine, run: Uuid::new_v4() })
}

async fn connect<DB: Migrate>(url: &str) -> anyhow::Result<Pool<DB>> {
    // One connection, which stays: each has a database in memory of its own.
    let pool = PoolOptions::<DB>::new().max_connections(1).idle_timeout(None).max_lifetime(None);
    let pool = pool.connect(url).await.context("cannot connect")?;
    tollgate::migrate(&pool).await?;
    Ok(pool)
}

/// Buckets on any of the engines. A service has only one, and uses its store: `PgStore::from(pool)`, for instance.
#[derive(Clone)]
pub(crate) struct Database {
    engine: Engine,
    run: Uuid,
}

#[derive(Clone)]
pub(crate) enum Engine {
    MySql(MySqlPool),
    Postgres(PgPool),
    Sqlite(SqlitePool),
}

impl Database {
    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    /// A key that no other run of an example uses.
    pub(crate) fn key(&self, name: &str) -> Result<Key, Error> {
        Ok(Key::try_from(format!("{name} {}", self.run))?)
    }

    /// Makes a plan, or gives it another quota.
    pub(crate) async fn create_plan(&self, name: &Key, quota: Quota) -> Result<(), Error> {
        match &self.engine {
            Engine::MySql(pool) => SqlStore::<MySql>::from(pool.clone()).create_plan(name, quota).await,
            Engine::Postgres(pool) => SqlStore::<Postgres>::from(pool.clone()).create_plan(name, quota).await,
            Engine::Sqlite(pool) => SqlStore::<Sqlite>::from(pool.clone()).create_plan(name, quota).await,
        }
    }
}

impl Store for Database {
    async fn take(&self, takes: &[Take]) -> Result<Vec<Outcome>, Error> {
        match &self.engine {
            Engine::MySql(pool) => SqlStore::<MySql>::from(pool.clone()).take(takes).await,
            Engine::Postgres(pool) => SqlStore::<Postgres>::from(pool.clone()).take(takes).await,
            Engine::Sqlite(pool) => SqlStore::<Sqlite>::from(pool.clone()).take(takes).await,
        }
    }

    async fn adjust(&self, adjustments: &[Adjustment]) -> Result<Vec<Result<Adjusted, TakeError>>, Error> {
        match &self.engine {
            Engine::MySql(pool) => SqlStore::<MySql>::from(pool.clone()).adjust(adjustments).await,
            Engine::Postgres(pool) => SqlStore::<Postgres>::from(pool.clone()).adjust(adjustments).await,
            Engine::Sqlite(pool) => SqlStore::<Sqlite>::from(pool.clone()).adjust(adjustments).await,
        }
    }

    async fn hold_back(&self, key: &Key, rule: &Rule, hold: HoldBack) -> Result<bool, Error> {
        match &self.engine {
            Engine::MySql(pool) => SqlStore::<MySql>::from(pool.clone()).hold_back(key, rule, hold).await,
            Engine::Postgres(pool) => SqlStore::<Postgres>::from(pool.clone()).hold_back(key, rule, hold).await,
            Engine::Sqlite(pool) => SqlStore::<Sqlite>::from(pool.clone()).hold_back(key, rule, hold).await,
        }
    }
}

impl SharedWindows for Database {
    async fn count(&self, key: &Key, window: &Window, cost: u64) -> Result<Counted, Error> {
        match &self.engine {
            Engine::MySql(pool) => SqlStore::<MySql>::from(pool.clone()).count(key, window, cost).await,
            Engine::Postgres(pool) => SqlStore::<Postgres>::from(pool.clone()).count(key, window, cost).await,
            Engine::Sqlite(pool) => SqlStore::<Sqlite>::from(pool.clone()).count(key, window, cost).await,
        }
    }
}

/// Whole seconds, rounded up, as a client is told them: one that comes back too early is denied again.
pub(crate) fn seconds(span: Duration) -> u128 {
    span.as_nanos().div_ceil(1_000_000_000)
}

/// Whole minutes, rounded up.
pub(crate) fn minutes(span: Duration) -> u128 {
    seconds(span).div_ceil(60)
}
