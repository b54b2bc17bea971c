//! Opens the database of an example: the one in its argument, or one in memory.
#![allow(dead_code, reason = "each example uses a part of it")]

use std::time::Duration;

use anyhow::{Context, bail};
use sqlx::pool::PoolOptions;
use sqlx::{MySqlPool, PgPool, Pool, SqlitePool};
use tollgate::{
    Admin, AnyStore, Error, Key, MySqlStore, PgStore, Quota, SqliteStore, admin::AdminError, layers::LocalReads,
    store::Migrate,
};
use uuid::Uuid;

/// Opens the database whose URL is the first argument. Default: SQLite in memory.
pub(crate) async fn open() -> anyhow::Result<Database> {
    open_at(&std::env::args().nth(1).unwrap_or_else(|| "sqlite::memory:".to_owned())).await
}

/// Opens the database with this URL.
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
    // In memory, each connection has its own database, so the pool keeps exactly one.
    let connections = if url.contains(":memory:") { 1 } else { 4 };
    let pool = PoolOptions::<DB>::new().max_connections(connections).idle_timeout(None).max_lifetime(None);
    let pool = pool.connect(url).await.context("cannot connect")?;
    tollgate::migrate(&pool).await?;
    Ok(pool)
}

/// A database on any of the engines. A service has only one, and needs no [`AnyStore`]: `PgStore::from(pool)` is its store.
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

    /// Creates a plan, or changes its quota.
    pub(crate) async fn create_plan(&self, name: &Key, quota: Quota) -> Result<(), AdminError> {
        match &self.engine {
            Engine::MySql(pool) => MySqlStore::from(pool.clone()).create_plan(name, quota).await,
            Engine::Postgres(pool) => PgStore::from(pool.clone()).create_plan(name, quota).await,
            Engine::Sqlite(pool) => SqliteStore::from(pool.clone()).create_plan(name, quota).await,
        }
    }
}

impl Database {
    /// The store of its buckets.
    pub(crate) fn store(&self) -> AnyStore {
        match &self.engine {
            Engine::MySql(pool) => AnyStore::new(MySqlStore::from(pool.clone())),
            Engine::Postgres(pool) => AnyStore::new(PgStore::from(pool.clone())),
            Engine::Sqlite(pool) => AnyStore::new(SqliteStore::from(pool.clone())),
        }
    }

    /// The store, with local reads of sliding windows.
    pub(crate) fn local_reads(&self) -> AnyStore {
        match &self.engine {
            Engine::MySql(pool) => AnyStore::new(LocalReads::new(MySqlStore::from(pool.clone()))),
            Engine::Postgres(pool) => AnyStore::new(LocalReads::new(PgStore::from(pool.clone()))),
            Engine::Sqlite(pool) => AnyStore::new(LocalReads::new(SqliteStore::from(pool.clone()))),
        }
    }
}

/// Whole seconds, rounded up, because a client that retries too early is denied again.
pub(crate) fn seconds(span: Duration) -> u128 {
    span.as_nanos().div_ceil(1_000_000_000)
}

/// `in 10 min`, rounded up to whole minutes, or `never`.
pub(crate) fn in_minutes(span: Option<Duration>) -> String {
    span.map_or_else(|| "never".to_owned(), |span| format!("in {} min", seconds(span).div_ceil(60)))
}
