use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{PgPool, Postgres};

use crate::engine::{Durability, Engine};

impl Engine for Postgres {
    const CONNECTIONS: u32 = 8;

    async fn open(url: &str, connections: u32, durability: Durability) -> anyhow::Result<PgPool> {
        let synchronous_commit = match durability {
            Durability::Relaxed => "off",
            Durability::Durable => "on",
        };
        let options: PgConnectOptions = url.parse()?;
        let pool = PgPoolOptions::new()
            .idle_timeout(None)
            .max_lifetime(None)
            .min_connections(connections)
            .max_connections(connections);
        Ok(pool
            .test_before_acquire(false)
            .connect_with(options.options([("synchronous_commit", synchronous_commit)]))
            .await?)
    }

    async fn bare(pool: &PgPool, id: &str) -> sqlx::Result<()> {
        sqlx::query("update bare set n = n + 1 where id = $1").bind(id).execute(pool).await.map(drop)
    }

    async fn make_bare(pool: &PgPool, ids: &[String]) -> sqlx::Result<()> {
        sqlx::raw_sql(r#"create table bare (id text collate "C" primary key, n bigint not null)"#)
            .execute(pool)
            .await?;
        sqlx::query("insert into bare select id, 0 from unnest($1) id").bind(ids).execute(pool).await.map(drop)
    }

    async fn books(pool: &PgPool) -> sqlx::Result<(i64, i64)> {
        sqlx::query_as(
            "select (select sum(n)::bigint from bare), (select sum(granted)::bigint from tollgate.token_buckets)",
        )
        .fetch_one(pool)
        .await
    }

    async fn version(pool: &PgPool) -> sqlx::Result<String> {
        sqlx::query_scalar("select 'PostgreSQL ' || current_setting('server_version')").fetch_one(pool).await
    }

    async fn settings(pool: &PgPool) -> sqlx::Result<Vec<String>> {
        sqlx::query_scalar(
            "select name || ' = ' || setting from pg_settings where name in ('fsync', 'synchronous_commit') order by 1",
        )
        .fetch_all(pool)
        .await
    }
}
