//! A database of PostgreSQL that a run creates and drops, and an empty database of Redis that it empties again.

use std::env;

use anyhow::{Context, bail};
use redis::Client;
use sqlx::Postgres;
use sqlx::migrate::MigrateDatabase;

use crate::serve::postgres;

pub(crate) struct Scratch {
    pub(crate) postgres: String,
    pub(crate) redis: String,
}

impl Scratch {
    pub(crate) async fn create(run: &str) -> anyhow::Result<Self> {
        let server = url("TOLLGATE_POSTGRES_URL")?;
        let (server, _) = server.rsplit_once('/').context("TOLLGATE_POSTGRES_URL names no database")?;
        let this = Self { postgres: format!("{server}/{run}"), redis: empty(&url("TOLLGATE_REDIS_URL")?).await? };
        Postgres::create_database(&this.postgres).await.context("no database on PostgreSQL")?;
        if let Err(error) = this.migrate().await {
            this.remove().await?;
            return Err(error);
        }
        Ok(this)
    }

    async fn migrate(&self) -> anyhow::Result<()> {
        let store = postgres(&self.postgres)?;
        tollgate::migrate(store.pool()).await?;
        store.pool().close().await;
        Ok(())
    }

    pub(crate) async fn remove(&self) -> anyhow::Result<()> {
        Postgres::force_drop_database(&self.postgres).await?;
        let mut connection = Client::open(self.redis.as_str())?.get_multiplexed_async_connection().await?;
        let () = redis::cmd("FLUSHDB").arg("ASYNC").query_async(&mut connection).await?;
        Ok(())
    }
}

fn url(variable: &str) -> anyhow::Result<String> {
    env::var(variable).with_context(|| format!("{variable} names no server: run scripts/bench serve, which starts it"))
}

/// Returns the URL of a database of Redis that has no keys.
async fn empty(url: &str) -> anyhow::Result<String> {
    let (scheme, rest) = url.split_once("://").context("TOLLGATE_REDIS_URL is no URL")?;
    let server = rest.split('/').next().unwrap_or(rest);
    for number in (1..REDIS_DATABASES).rev() {
        let url = format!("{scheme}://{server}/{number}");
        let mut connection = Client::open(url.as_str())?.get_multiplexed_async_connection().await?;
        let keys: u64 = redis::cmd("DBSIZE").query_async(&mut connection).await?;
        if keys == 0 {
            return Ok(url);
        }
    }
    bail!("Redis has no empty database: empty one of 1 to {}", REDIS_DATABASES - 1)
}

/// The default of Redis.
const REDIS_DATABASES: u32 = 16;
