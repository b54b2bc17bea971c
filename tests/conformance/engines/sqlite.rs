use std::path::Path;
use std::time::Duration;

use sqlx::SqlitePool;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};
use tokio::sync::OnceCell;

use crate::pools::small;
use crate::test_db::TempDir;

/// A pool on a new file, as a copy of the one that the first test migrates.
pub async fn open(path: &Path, connections: u32) -> anyhow::Result<SqlitePool> {
    static MIGRATED: OnceCell<Vec<u8>> = OnceCell::const_new();
    let migrated = MIGRATED.get_or_try_init(async || {
        let directory = TempDir::new()?;
        let file = directory.path().join("migrated.db");
        let pool = create(&file, 1).await?;
        tollgate::migrate(&pool).await?;
        // Empties the journal into the file.
        pool.close().await;
        anyhow::Ok(std::fs::read(file)?)
    });
    std::fs::write(path, Box::pin(migrated).await?)?;
    create(path, connections).await
}

/// A pool on a file, created if necessary, and not migrated.
pub async fn create(path: &Path, connections: u32) -> anyhow::Result<SqlitePool> {
    let options = SqliteConnectOptions::new()
        .filename(path)
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Normal)
        .busy_timeout(Duration::from_secs(20));
    Ok(small(connections).connect_with(options).await?)
}
