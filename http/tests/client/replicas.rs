//! Replicas of a service. Each has its own pool on one database, and no other connection to the others.

use std::path::PathBuf;
use std::time::Duration;

use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions};
use tollgate::{Limiter, SqliteStore};
use uuid::Uuid;

pub struct Replicas(PathBuf);

impl Replicas {
    pub fn new() -> anyhow::Result<Self> {
        let directory = std::env::temp_dir().join(format!("tollgate-{}", Uuid::new_v4()));
        std::fs::create_dir(&directory)?;
        Ok(Self(directory))
    }

    /// Creates the limiter of another replica.
    pub async fn limiter(&self, quota: &str) -> anyhow::Result<Limiter<SqliteStore>> {
        let options = SqliteConnectOptions::new()
            .filename(self.0.join("limits.db"))
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .busy_timeout(Duration::from_secs(20));
        let pool = SqlitePoolOptions::new()
            .idle_timeout(None)
            .max_lifetime(None)
            .max_connections(4)
            .connect_with(options)
            .await?;
        tollgate::migrate(&pool).await?;
        Ok(Limiter::new(SqliteStore::from(pool), quota)?)
    }
}

impl Drop for Replicas {
    fn drop(&mut self) {
        // If the removal fails, the files stay in the system's temporary directory.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
