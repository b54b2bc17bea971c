//! Operations of the SQL engines that the report needs and the library lacks.

mod mysql;
mod postgres;
mod sqlite;

use std::time::Duration;

use sqlx::Pool;
use sqlx::migrate::MigrateDatabase;
use tollgate::store::{Dialect, Migrate};

pub(crate) trait Engine: Dialect + Migrate + MigrateDatabase {
    /// Opens a pool that does not test connections before each call, which would cost another round trip.
    fn open(url: &str, connections: u32, durable: bool) -> impl Future<Output = anyhow::Result<Pool<Self>>> + Send;

    /// Changes one row.
    fn bare(pool: &Pool<Self>, id: &str) -> impl Future<Output = sqlx::Result<()>> + Send;

    /// Changes many rows in one statement, and returns how many exist.
    fn bare_many(pool: &Pool<Self>, ids: &[&str]) -> impl Future<Output = sqlx::Result<u64>> + Send;

    /// Changes many rows of buckets in one call that returns their contents, and returns how many exist.
    fn answer_many(pool: &Pool<Self>, ids: &[&str]) -> impl Future<Output = sqlx::Result<u64>> + Send;

    /// Reads many rows in one statement, and returns how many exist.
    fn read_many(pool: &Pool<Self>, ids: &[&str]) -> impl Future<Output = sqlx::Result<u64>> + Send;

    /// Runs a statement that does nothing.
    fn one(pool: &Pool<Self>) -> impl Future<Output = sqlx::Result<i32>> + Send;

    /// Creates the table whose rows [`bare`](Self::bare) changes.
    fn make_bare(pool: &Pool<Self>) -> impl Future<Output = sqlx::Result<()>> + Send;

    /// Adds many rows in one statement, and returns how many exist afterwards.
    fn add_bare(pool: &Pool<Self>, ids: &[&str]) -> impl Future<Output = sqlx::Result<u64>> + Send;

    /// Copies the bucket of that name under other ids, if the server can copy millions within a minute or two.
    fn make_like(_: &Pool<Self>, _one: &str, _ids: &[String]) -> impl Future<Output = sqlx::Result<bool>> + Send {
        async { Ok(false) }
    }

    /// Runs the maintenance that the server would run after many new rows, so that it does not run during the
    /// measurement.
    fn tidy(_: &Pool<Self>, _table: &str) -> impl Future<Output = sqlx::Result<()>> + Send {
        async { Ok(()) }
    }

    fn version(pool: &Pool<Self>) -> impl Future<Output = sqlx::Result<String>> + Send;

    /// Returns the settings that commits depend on, as `name = value`.
    fn settings(pool: &Pool<Self>) -> impl Future<Output = sqlx::Result<Vec<String>>> + Send;

    /// Returns how many calls the server has had, if it counts them.
    fn calls(pool: &Pool<Self>) -> impl Future<Output = sqlx::Result<Option<i64>>> + Send;

    /// Returns what the server has written, if it reports it.
    fn written(_: &Pool<Self>) -> impl Future<Output = sqlx::Result<Option<Written>>> + Send {
        async { Ok(None) }
    }

    /// Returns how many tokens the buckets with this prefix have granted, according to their rows.
    fn debited(pool: &Pool<Self>, prefix: &str) -> impl Future<Output = sqlx::Result<i64>> + Send;

    /// Makes commits wait for the disk, if that needs the server's administrator.
    fn make_durable(_: &Pool<Self>) -> impl Future<Output = sqlx::Result<()>> + Send {
        async { Ok(()) }
    }

    /// Restores the [`settings`](Self::settings) from before [`make_durable`](Self::make_durable).
    fn restore(_: &Pool<Self>, _settings: &[String]) -> impl Future<Output = sqlx::Result<()>> + Send {
        async { Ok(()) }
    }
}

/// The writes of a server since its start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Written {
    /// Bytes of the write-ahead log, from all writers.
    pub(crate) wal_bytes: i64,
    /// Updates of rows in this database. `hot_updates` are those that changed no index.
    pub(crate) updates: i64,
    pub(crate) hot_updates: i64,
}

/// As many connections as a service has. The same for every peer.
pub(crate) const CONNECTIONS: u32 = 8;

/// A thousand tasks wait for a connection, which takes long on a slow disk.
const PATIENCE: Duration = Duration::from_mins(1);
