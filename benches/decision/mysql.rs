use sqlx::mysql::{MySqlConnectOptions, MySqlPoolOptions};
use sqlx::{AssertSqlSafe, MySql, MySqlPool};

use crate::engine::{Durability, Engine};

impl Engine for MySql {
    const CONNECTIONS: u32 = 8;

    async fn open(url: &str, connections: u32, _: Durability) -> anyhow::Result<MySqlPool> {
        let options: MySqlConnectOptions = url.parse()?;
        let pool = MySqlPoolOptions::new()
            .idle_timeout(None)
            .max_lifetime(None)
            .min_connections(connections)
            .max_connections(connections);
        Ok(pool.test_before_acquire(false).connect_with(options).await?)
    }

    async fn bare(pool: &MySqlPool, id: &str) -> sqlx::Result<()> {
        sqlx::query("update bare set n = n + 1 where id = ?").bind(id).execute(pool).await.map(drop)
    }

    async fn make_bare(pool: &MySqlPool, ids: &[String]) -> sqlx::Result<()> {
        sqlx::raw_sql("create table bare (id varbinary(255) primary key, n bigint not null)").execute(pool).await?;
        for id in ids {
            sqlx::query("insert into bare values (?, 0)").bind(id).execute(pool).await?;
        }
        Ok(())
    }

    async fn books(pool: &MySqlPool) -> sqlx::Result<(i64, i64)> {
        sqlx::query_as(
            "select (select cast(sum(n) as signed) from bare), (select cast(sum(granted) as signed) from token_buckets)",
        )
        .fetch_one(pool)
        .await
    }

    async fn version(pool: &MySqlPool) -> sqlx::Result<String> {
        let version: String = sqlx::query_scalar("select version()").fetch_one(pool).await?;
        let name = if version.contains("MariaDB") { "MariaDB" } else { "MySQL" };
        Ok(format!("{name} {}", version.split('-').next().unwrap_or_default()))
    }

    async fn settings(pool: &MySqlPool) -> sqlx::Result<Vec<String>> {
        let settings: Vec<(String, String)> = sqlx::query_as(
            "show global variables
              where variable_name in ('innodb_flush_log_at_trx_commit', 'log_bin', 'sync_binlog')",
        )
        .fetch_all(pool)
        .await?;
        Ok(settings.iter().map(|(name, value)| format!("{name} = {value}")).collect())
    }

    async fn prepare(pool: &MySqlPool, durability: Durability) -> sqlx::Result<()> {
        match durability {
            Durability::Relaxed => Ok(()),
            Durability::Durable => set(pool, &["innodb_flush_log_at_trx_commit = 1", "sync_binlog = 1"]).await,
        }
    }

    async fn restore(pool: &MySqlPool, settings: &[String]) -> sqlx::Result<()> {
        let changed = |setting: &&str| !setting.starts_with("log_bin");
        set(pool, &settings.iter().map(String::as_str).filter(changed).collect::<Vec<_>>()).await
    }
}

async fn set(pool: &MySqlPool, settings: &[&str]) -> sqlx::Result<()> {
    for setting in settings {
        sqlx::raw_sql(AssertSqlSafe(format!("set global {setting}"))).execute(pool).await?;
    }
    Ok(())
}
