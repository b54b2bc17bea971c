//! Replicas of a service: each has a pool of its own on one database, and knows nothing of the others.

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

    /// One more.
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
        // What cannot be removed is in the system's own directory for such things.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
