//! Creates the databases of a run, and always drops them at the end.

use anyhow::Context;
use sqlx::{MySql, Postgres, Sqlite};

use crate::engine::{Engine, Written};
use crate::peers::redis;
use crate::server::Server;

/// The databases of this run, and the previous settings of the servers.
pub(crate) struct Venues {
    run: String,
    engines: Vec<(Server, Vec<String>)>,
}

/// Calls a function of the engine that a server runs.
macro_rules! on {
    ($server:expr, $function:ident($($argument:expr),*)) => {
        match $server {
            Server::Postgres | Server::Postgres15 => $function::<Postgres>($($argument),*).await,
            Server::Mysql | Server::Mariadb => $function::<MySql>($($argument),*).await,
            _ => $function::<Sqlite>($($argument),*).await,
        }
    };
}

impl Venues {
    pub(crate) async fn make(run: &str, engines: &[Server]) -> anyhow::Result<Self> {
        let mut this = Self { run: run.to_owned(), engines: Vec::new() };
        for &server in engines {
            let url = server.database(run)?;
            let settings = on!(server, make(&url)).with_context(|| format!("no database on {}", server.name()))?;
            this.engines.push((server, settings));
        }
        Ok(this)
    }

    /// Returns the versions of the servers, and the settings that commits depend on.
    pub(crate) async fn versions(&self) -> anyhow::Result<Vec<String>> {
        let mut versions = Vec::new();
        for (server, _) in &self.engines {
            versions.push(on!(server, version(&server.database(&self.run)?))?);
        }
        for server in [Server::Redis, Server::RedisAlways, Server::RedisCell] {
            if server.is_there() {
                let version = redis::info(server, "redis_version").await?.unwrap_or_default();
                let persistence = match server {
                    Server::RedisAlways => "appendonly yes, appendfsync always",
                    Server::RedisCell => "redis-cell, no persistence",
                    _ => "no persistence",
                };
                versions.push(format!("Redis {version} ({persistence})"));
            }
        }
        Ok(versions)
    }

    /// Sets whether commits wait for the disk, if that is a setting of the server and not of the session.
    pub(crate) async fn set_durable(&self, durable: bool) -> anyhow::Result<()> {
        for (server, settings) in &self.engines {
            on!(server, set(&server.database(&self.run)?, if durable { None } else { Some(settings) }))?;
        }
        Ok(())
    }

    /// Returns how many calls a store has had since its start, if it reports them.
    pub(crate) async fn calls(&self, server: Server) -> Option<i64> {
        match server {
            Server::Redis | Server::RedisAlways => {
                let scripts = redis::info(server, "cmdstat_evalsha").await.ok()??;
                scripts.strip_prefix("calls=")?.split(',').next()?.parse().ok()
            }
            Server::RedisCell => None,
            server => on!(server, calls(&server.database(&self.run).ok()?)).ok()?,
        }
    }

    /// Returns what a store has written since its start, if it reports it.
    pub(crate) async fn written(&self, server: Server) -> Option<Written> {
        match server {
            Server::Redis | Server::RedisAlways | Server::RedisCell => None,
            server => on!(server, written(&server.database(&self.run).ok()?)).ok()?,
        }
    }

    /// Returns how many tokens the buckets with this prefix have granted, according to the store.
    pub(crate) async fn debited(&self, server: Server, prefix: &str) -> anyhow::Result<i64> {
        on!(server, debited(&server.database(&self.run)?, prefix))
    }

    pub(crate) async fn remove(self) -> anyhow::Result<()> {
        self.set_durable(false).await?;
        for (server, _) in &self.engines {
            on!(server, drop_database(&server.database(&self.run)?))?;
        }
        for server in [Server::Redis, Server::RedisAlways, Server::RedisCell] {
            if server.is_there() {
                redis::unload(server, &self.run).await?;
            }
        }
        Ok(())
    }
}

async fn make<E: Engine>(url: &str) -> anyhow::Result<Vec<String>> {
    E::create_database(url).await?;
    let pool = E::open(url, 1, false).await?;
    tollgate::migrate(&pool).await?;
    let settings = E::settings(&pool).await?;
    pool.close().await;
    Ok(settings)
}

async fn version<E: Engine>(url: &str) -> anyhow::Result<String> {
    let pool = E::open(url, 1, false).await?;
    let version = format!("{} ({})", E::version(&pool).await?, E::settings(&pool).await?.join(", "));
    pool.close().await;
    Ok(version)
}

async fn set<E: Engine>(url: &str, back_to: Option<&[String]>) -> anyhow::Result<()> {
    let pool = E::open(url, 1, false).await?;
    match back_to {
        None => E::make_durable(&pool).await?,
        Some(settings) => E::restore(&pool, settings).await?,
    }
    pool.close().await;
    Ok(())
}

async fn calls<E: Engine>(url: &str) -> anyhow::Result<Option<i64>> {
    let pool = E::open(url, 1, false).await?;
    let calls = E::calls(&pool).await?;
    pool.close().await;
    Ok(calls)
}

async fn written<E: Engine>(url: &str) -> anyhow::Result<Option<Written>> {
    let pool = E::open(url, 1, false).await?;
    let written = E::written(&pool).await?;
    pool.close().await;
    Ok(written)
}

async fn debited<E: Engine>(url: &str, prefix: &str) -> anyhow::Result<i64> {
    let pool = E::open(url, 1, false).await?;
    let debited = E::debited(&pool, prefix).await?;
    pool.close().await;
    Ok(debited)
}

async fn drop_database<E: Engine>(url: &str) -> anyhow::Result<()> {
    Ok(E::drop_database(url).await?)
}
