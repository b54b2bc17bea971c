//! The SQL engines: what the report needs of them beside what the library does.

mod mysql;
mod postgres;
mod sqlite;

use std::time::Duration;

use sqlx::Pool;
use sqlx::migrate::MigrateDatabase;
use tollgate::store::{Dialect, Migrate};

pub(crate) trait Engine: Dialect + Migrate + MigrateDatabase {
    /// A pool that does not ask whether a connection is alive before each call: that would be a round trip more.
    fn open(url: &str, connections: u32, durable: bool) -> impl Future<Output = anyhow::Result<Pool<Self>>> + Send;

    /// A statement that changes a row.
    fn bare(pool: &Pool<Self>, id: &str) -> impl Future<Output = sqlx::Result<()>> + Send;

    /// A statement that changes many such rows, and how many it found.
    fn bare_many(pool: &Pool<Self>, ids: &[&str]) -> impl Future<Output = sqlx::Result<u64>> + Send;

    /// The same of as many buckets, in one call that answers what is in each of them, and how many it found.
    fn answer_many(pool: &Pool<Self>, ids: &[&str]) -> impl Future<Output = sqlx::Result<u64>> + Send;

    /// A statement that reads many such rows, and how many it found.
    fn read_many(pool: &Pool<Self>, ids: &[&str]) -> impl Future<Output = sqlx::Result<u64>> + Send;

    /// A statement that does nothing.
    fn one(pool: &Pool<Self>) -> impl Future<Output = sqlx::Result<i32>> + Send;

    /// Makes the table of the rows that [`bare`](Self::bare) changes.
    fn make_bare(pool: &Pool<Self>) -> impl Future<Output = sqlx::Result<()>> + Send;

    /// A statement that adds many such rows, and how many it found or added.
    fn add_bare(pool: &Pool<Self>, ids: &[&str]) -> impl Future<Output = sqlx::Result<u64>> + Send;

    /// Makes buckets like the one of that name, if the server can do so by itself: millions within a minute or two.
    fn make_like(_: &Pool<Self>, _one: &str, _ids: &[String]) -> impl Future<Output = sqlx::Result<bool>> + Send {
        async { Ok(false) }
    }

    /// Does what the server would do by itself after so many new rows of a table: now, and not while they are measured.
    fn tidy(_: &Pool<Self>, _table: &str) -> impl Future<Output = sqlx::Result<()>> + Send {
        async { Ok(()) }
    }

    fn version(pool: &Pool<Self>) -> impl Future<Output = sqlx::Result<String>> + Send;

    /// What a commit waits for, as `name = value`.
    fn settings(pool: &Pool<Self>) -> impl Future<Output = sqlx::Result<Vec<String>>> + Send;

    /// How many calls it has had, if it counts them.
    fn calls(pool: &Pool<Self>) -> impl Future<Output = sqlx::Result<Option<i64>>> + Send;

    /// What it has written, if it says so.
    fn written(_: &Pool<Self>) -> impl Future<Output = sqlx::Result<Option<Written>>> + Send {
        async { Ok(None) }
    }

    /// How many tokens the buckets whose ids begin so have ever given, as their rows say.
    fn debited(pool: &Pool<Self>, prefix: &str) -> impl Future<Output = sqlx::Result<i64>> + Send;

    /// Changes what only the server's administrator can, so that commits wait for the disk.
    fn make_durable(_: &Pool<Self>) -> impl Future<Output = sqlx::Result<()>> + Send {
        async { Ok(()) }
    }

    /// Undoes [`make_durable`](Self::make_durable), given what [`settings`](Self::settings) said before.
    fn restore(_: &Pool<Self>, _settings: &[String]) -> impl Future<Output = sqlx::Result<()>> + Send {
        async { Ok(()) }
    }
}

/// What a server has written since it runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Written {
    /// Of the write-ahead log, whoever else writes.
    pub(crate) wal_bytes: i64,
    /// Updates of rows of this database, and those that touched no index.
    pub(crate) updates: i64,
    pub(crate) hot_updates: i64,
}

/// As many as a service has: for every peer the same.
pub(crate) const CONNECTIONS: u32 = 8;

/// A thousand tasks wait for a connection in turn, on a slow disk for long.
const PATIENCE: Duration = Duration::from_mins(1);
