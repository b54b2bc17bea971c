//! Opens the database of an example: the one in its argument, or one in memory.
#![allow(
    missing_docs,
    clippy::missing_errors_doc,
    clippy::must_use_candidate,
    reason = "only examples and tests use it"
)]

use std::time::Duration;

use anyhow::{Context, bail};
#[cfg(feature = "mysql")]
use sqlx::MySqlPool;
#[cfg(feature = "postgres")]
use sqlx::PgPool;
use sqlx::pool::PoolOptions;
use sqlx::{Pool, SqlitePool};
#[cfg(feature = "mysql")]
use tollgate::MySqlStore;
#[cfg(feature = "postgres")]
use tollgate::PgStore;
use tollgate::{
    Admin, AnyStore, Error, Key, Quota, SqliteStore, admin::AdminError, layers::LocalReads, store::Migrate,
};
use uuid::Uuid;

#[cfg(feature = "fleet")]
pub mod fleet;
#[cfg(feature = "http")]
pub mod http;
#[cfg(feature = "processes")]
pub mod processes;
pub mod simulated;

/// Opens the database whose URL is the first argument. Default: SQLite in memory.
pub async fn open() -> anyhow::Result<Database> {
    open_at(&std::env::args().nth(1).unwrap_or_else(|| "sqlite::memory:".to_owned())).await
}

/// Opens the database with this URL.
pub async fn open_at(url: &str) -> anyhow::Result<Database> {
    let engine = match url.split(':').next() {
        #[cfg(feature = "postgres")]
        Some("postgres" | "postgresql") => Engine::Postgres(connect(url).await?),
        #[cfg(feature = "mysql")]
        Some("mysql" | "mariadb") => Engine::MySql(connect(url).await?),
        Some("sqlite") => Engine::Sqlite(connect(url).await?),
        _ => bail!("give a URL of sqlite://, or with --features postgres,mysql one of postgres:// or mysql://"),
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
pub struct Database {
    engine: Engine,
    run: Uuid,
}

#[derive(Clone)]
pub enum Engine {
    #[cfg(feature = "mysql")]
    MySql(MySqlPool),
    #[cfg(feature = "postgres")]
    Postgres(PgPool),
    Sqlite(SqlitePool),
}

impl Database {
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// A key that no other run of an example uses.
    pub fn key(&self, name: &str) -> Result<Key, Error> {
        Ok(Key::try_from(format!("{name} {}", self.run))?)
    }

    /// Creates a plan, or changes its quota.
    pub async fn create_plan(&self, name: &Key, quota: Quota) -> Result<(), AdminError> {
        match &self.engine {
            #[cfg(feature = "mysql")]
            Engine::MySql(pool) => MySqlStore::from(pool.clone()).create_plan(name, quota.into()).await,
            #[cfg(feature = "postgres")]
            Engine::Postgres(pool) => PgStore::from(pool.clone()).create_plan(name, quota.into()).await,
            Engine::Sqlite(pool) => SqliteStore::from(pool.clone()).create_plan(name, quota.into()).await,
        }
    }
}

impl Database {
    /// The store of its buckets.
    pub fn store(&self) -> AnyStore {
        match &self.engine {
            #[cfg(feature = "mysql")]
            Engine::MySql(pool) => AnyStore::new(MySqlStore::from(pool.clone())),
            #[cfg(feature = "postgres")]
            Engine::Postgres(pool) => AnyStore::new(PgStore::from(pool.clone())),
            Engine::Sqlite(pool) => AnyStore::new(SqliteStore::from(pool.clone())),
        }
    }

    /// The store, with local reads of sliding windows.
    pub fn local_reads(&self) -> AnyStore {
        match &self.engine {
            #[cfg(feature = "mysql")]
            Engine::MySql(pool) => AnyStore::new(LocalReads::new(MySqlStore::from(pool.clone()))),
            #[cfg(feature = "postgres")]
            Engine::Postgres(pool) => AnyStore::new(LocalReads::new(PgStore::from(pool.clone()))),
            Engine::Sqlite(pool) => AnyStore::new(LocalReads::new(SqliteStore::from(pool.clone()))),
        }
    }
}

/// Whole seconds, rounded up, because a client that retries too early is denied again.
pub fn seconds(span: Duration) -> u128 {
    span.as_nanos().div_ceil(1_000_000_000)
}

/// `in 10 min`, rounded up to whole minutes, or `never`.
pub fn in_minutes(span: Option<Duration>) -> String {
    span.map_or_else(|| "never".to_owned(), |span| format!("in {} min", seconds(span).div_ceil(60)))
}
