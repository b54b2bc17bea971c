use anyhow::Context;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};
use sqlx::{Sqlite, SqlitePool};

use super::{Engine, PATIENCE};

impl Engine for Sqlite {
    /// SQLite has one writer at a time, so more than two connections only contend.
    async fn open(url: &str, connections: u32, durable: bool) -> anyhow::Result<SqlitePool> {
        let synchronous = if durable { SqliteSynchronous::Full } else { SqliteSynchronous::Normal };
        let options: SqliteConnectOptions = url.parse().context("the database's URL")?;
        let options = options.journal_mode(SqliteJournalMode::Wal).synchronous(synchronous).busy_timeout(PATIENCE);
        let connections = connections.min(2);
        let pool = SqlitePoolOptions::new()
            .idle_timeout(None)
            .max_lifetime(None)
            .min_connections(connections)
            .max_connections(connections);
        Ok(pool.test_before_acquire(false).acquire_timeout(PATIENCE).connect_with(options).await?)
    }

    async fn bare(pool: &SqlitePool, id: &str) -> sqlx::Result<()> {
        sqlx::query("update bare set n = n + 1 where id = ?").bind(id).execute(pool).await.map(drop)
    }

    async fn bare_many(pool: &SqlitePool, ids: &[&str]) -> sqlx::Result<u64> {
        let change = "update bare set n = n + 1 where id in (select value from json_each(?))";
        Ok(sqlx::query(change).bind(serde_json::json!(ids).to_string()).execute(pool).await?.rows_affected())
    }

    async fn answer_many(pool: &SqlitePool, ids: &[&str]) -> sqlx::Result<u64> {
        let change = "update token_buckets set full_at = full_at + 1, granted = granted + 1
              where id in (select value from json_each(?)) returning id, full_at, granted";
        Ok(sqlx::query(change).bind(serde_json::json!(ids).to_string()).fetch_all(pool).await?.len() as u64)
    }

    async fn read_many(pool: &SqlitePool, ids: &[&str]) -> sqlx::Result<u64> {
        let read = "select n from bare where id in (select value from json_each(?))";
        Ok(sqlx::query(read).bind(serde_json::json!(ids).to_string()).fetch_all(pool).await?.len() as u64)
    }

    async fn one(pool: &SqlitePool) -> sqlx::Result<i32> {
        sqlx::query_scalar("select 1").fetch_one(pool).await
    }

    async fn make_bare(pool: &SqlitePool) -> sqlx::Result<()> {
        sqlx::raw_sql(
            "create table if not exists bare (id text not null primary key, n integer not null) strict, without rowid",
        )
        .execute(pool)
        .await
        .map(drop)
    }

    async fn add_bare(pool: &SqlitePool, ids: &[&str]) -> sqlx::Result<u64> {
        let add = "insert into bare select value, 0 from json_each(?) where true on conflict do nothing";
        sqlx::query(add).bind(serde_json::json!(ids).to_string()).execute(pool).await.map(|_| ids.len() as u64)
    }

    async fn version(pool: &SqlitePool) -> sqlx::Result<String> {
        sqlx::query_scalar("select 'SQLite ' || sqlite_version()").fetch_one(pool).await
    }

    async fn settings(pool: &SqlitePool) -> sqlx::Result<Vec<String>> {
        let synchronous: i64 = sqlx::query_scalar("pragma synchronous").fetch_one(pool).await?;
        let journal: String = sqlx::query_scalar("pragma journal_mode").fetch_one(pool).await?;
        Ok(vec![format!("journal_mode = {journal}"), format!("synchronous = {synchronous}")])
    }

    async fn calls(_: &SqlitePool) -> sqlx::Result<Option<i64>> {
        Ok(None)
    }

    async fn debited(pool: &SqlitePool, prefix: &str) -> sqlx::Result<i64> {
        sqlx::query_scalar("select coalesce(sum(granted), 0) from token_buckets where id glob ? || '*'")
            .bind(prefix)
            .fetch_one(pool)
            .await
    }
}
