use std::path::Path;
use std::time::Duration;

use sqlx::SqlitePool;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};

use crate::pools::small;

/// A pool on a file, created and migrated if necessary.
pub async fn open(path: &Path, connections: u32) -> anyhow::Result<SqlitePool> {
    let pool = pool(path, connections).await?;
    tollgate::migrate(&pool).await?;
    Ok(pool)
}

/// A pool on a file, created if necessary, and not migrated.
pub async fn pool(path: &Path, connections: u32) -> anyhow::Result<SqlitePool> {
    let options = SqliteConnectOptions::new()
        .filename(path)
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Normal)
        .busy_timeout(Duration::from_secs(20));
    Ok(small(connections).connect_with(options).await?)
}
