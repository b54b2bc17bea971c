//! The systems under test, and how to prepare each.

mod floor;
pub(crate) mod governor;
pub(crate) mod redis;
mod redis_cell;
mod redis_pipelined;
mod stores;
pub(crate) mod tollgate;

use ::tollgate::SqlStore;
use anyhow::{Context, bail};
use sqlx::{MySql, Postgres, Sqlite};
use stores::{Rows, Touch};

use crate::engine::{CONNECTIONS, Engine};
use crate::http;
use crate::peer::{Opened, opened};
use crate::processes::Driver;
use crate::scene::Scene;
use crate::server::Server;
use crate::system::{Kind, System};

impl System {
    /// Creates the buckets of the workload, if they outlive a measurement.
    ///
    /// The first `made` buckets already exist.
    pub(crate) async fn load(self, scene: &Scene, made: u32) -> anyhow::Result<()> {
        let names = &scene.names[made as usize..];
        match (self.kind, self.server) {
            (Kind::Redis, Some(server)) => redis::load(server, scene, names).await,
            (Kind::RedisCell, _) => redis_cell::load(scene, names).await,
            (Kind::Tollgate | Kind::Bare, Some(server)) => match server {
                Server::Postgres | Server::Postgres15 => self.load_sql::<Postgres>(server, scene, names).await,
                Server::Mysql | Server::Mariadb => self.load_sql::<MySql>(server, scene, names).await,
                _ => self.load_sql::<Sqlite>(server, scene, names).await,
            },
            _ => Ok(()),
        }
    }

    /// Connects the system under test.
    pub(crate) async fn open(self, scene: &Scene) -> anyhow::Result<Box<dyn Opened>> {
        if scene.workload.http {
            return http::open(self, scene).await;
        }
        let server = self.server.context("it needs a server");
        Ok(match self.kind {
            Kind::Redis => opened(redis::AsUsersRunIt::open(server?, scene).await?),
            Kind::RedisPipelined => opened(redis_pipelined::Pipelined::open(server?, scene).await?),
            Kind::RedisCell => opened(redis_cell::RedisCell::open(scene).await?),
            Kind::Governor => opened(governor::Governor::open(scene)?),
            Kind::Memory => opened(tollgate::memory(scene).await?),
            Kind::Unlimited => bail!("without a server in front there is nothing to measure"),
            Kind::Flexible => Box::new(Driver::node(scene)?),
            Kind::Nothing => opened(tollgate::Tollgate::open(stores::Nothing, scene, self.kind)?),
            _ => match server? {
                server @ (Server::Postgres | Server::Postgres15) => self.open_sql::<Postgres>(server, scene).await?,
                server @ (Server::Mysql | Server::Mariadb) => self.open_sql::<MySql>(server, scene).await?,
                Server::Sqlite => self.open_sql::<Sqlite>(Server::Sqlite, scene).await?,
                server => bail!("{} is no SQL engine", server.name()),
            },
        })
    }

    async fn load_sql<E: Engine>(self, server: Server, scene: &Scene, names: &[String]) -> anyhow::Result<()> {
        let pool = E::open(&server.database(&scene.run)?, CONNECTIONS, false).await?;
        if self.owner().kind == Kind::Bare {
            E::make_bare(&pool).await?;
            for names in names.chunks(1000) {
                E::add_bare(&pool, &names.iter().map(String::as_str).collect::<Vec<_>>()).await?;
            }
            E::tidy(&pool, "bare").await?;
        } else if let [first, others @ ..] = names {
            let store = SqlStore::from(pool.clone());
            tollgate::load(&store, scene, std::slice::from_ref(first)).await?;
            if !E::make_like(&pool, first, others).await? {
                tollgate::load(&store, scene, others).await?;
            }
        }
        pool.close().await;
        Ok(())
    }

    async fn open_sql<E: Engine>(self, server: Server, scene: &Scene) -> anyhow::Result<Box<dyn Opened>> {
        let pool = E::open(&server.database(&scene.run)?, CONNECTIONS, scene.workload.durable).await?;
        let touch = match self.kind {
            Kind::BareBatches if scene.workload.bucket_limits.first_use() => Some(Touch::Make),
            Kind::BareBatches => Some(Touch::Write),
            Kind::AnsweredBatches => Some(Touch::WriteAndAnswer),
            Kind::BareReads => Some(Touch::Read),
            _ => None,
        };
        if let Some(touch) = touch {
            let store = Rows { pool: pool.clone(), touch };
            return Ok(opened(tollgate::OnSql::open(store, pool, scene, self.kind)?));
        }
        Ok(match self.kind {
            Kind::Bare | Kind::SelectOne => opened(floor::Floor::open(pool, scene, self.kind == Kind::Bare)),
            kind => opened(tollgate::OnSql::open(SqlStore::from(pool.clone()), pool, scene, kind)?),
        })
    }
}
