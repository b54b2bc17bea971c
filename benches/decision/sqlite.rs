use std::time::Duration;

use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};
use sqlx::{Sqlite, SqlitePool};

use crate::engine::{Durability, Engine};

impl Engine for Sqlite {
    const CONNECTIONS: u32 = 4;

    async fn open(url: &str, connections: u32, durability: Durability) -> anyhow::Result<SqlitePool> {
        let synchronous = match durability {
            Durability::Relaxed => SqliteSynchronous::Normal,
            Durability::Durable => SqliteSynchronous::Full,
        };
        let options: SqliteConnectOptions = url.parse()?;
        let options =
            options.journal_mode(SqliteJournalMode::Wal).synchronous(synchronous).busy_timeout(Duration::from_secs(5));
        let pool = SqlitePoolOptions::new()
            .idle_timeout(None)
            .max_lifetime(None)
            .min_connections(connections)
            .max_connections(connections);
        Ok(pool.test_before_acquire(false).connect_with(options).await?)
    }

    async fn bare(pool: &SqlitePool, id: &str) -> sqlx::Result<()> {
        sqlx::query("update bare set n = n + 1 where id = ?").bind(id).execute(pool).await.map(drop)
    }

    async fn make_bare(pool: &SqlitePool, ids: &[String]) -> sqlx::Result<()> {
        sqlx::raw_sql("create table bare (id text not null primary key, n integer not null) strict, without rowid")
            .execute(pool)
            .await?;
        for id in ids {
            sqlx::query("insert into bare values (?, 0)").bind(id).execute(pool).await?;
        }
        Ok(())
    }

    async fn books(pool: &SqlitePool) -> sqlx::Result<(i64, i64)> {
        sqlx::query_as("select (select sum(n) from bare), (select sum(granted) from token_buckets)")
            .fetch_one(pool)
            .await
    }

    async fn version(pool: &SqlitePool) -> sqlx::Result<String> {
        sqlx::query_scalar("select 'SQLite ' || sqlite_version()").fetch_one(pool).await
    }

    async fn settings(pool: &SqlitePool) -> sqlx::Result<Vec<String>> {
        let synchronous: i64 = sqlx::query_scalar("pragma synchronous").fetch_one(pool).await?;
        let journal: String = sqlx::query_scalar("pragma journal_mode").fetch_one(pool).await?;
        Ok(vec![format!("journal_mode = {journal}"), format!("synchronous = {synchronous}")])
    }
}
