//! A database of its own, whose clock a simulation moves. Only a simulation may replace the clock of a server.

use anyhow::Context;
#[cfg(any(feature = "mysql", feature = "postgres"))]
use sqlx::AssertSqlSafe;
#[cfg(feature = "mysql")]
use sqlx::MySqlPool;
#[cfg(feature = "postgres")]
use sqlx::PgPool;
use tollgate::chrono::{DateTime, Utc};
use tollgate::{SqliteStore, clock::ManualClock};

use crate::connect;

/// A database that shows the time of a simulation.
pub enum Simulated {
    #[cfg(feature = "mysql")]
    MySql(OnServer<sqlx::MySql>),
    #[cfg(feature = "postgres")]
    Postgres(OnServer<sqlx::Postgres>),
    Sqlite(SqliteStore, ManualClock),
}

/// A database on a server, and the connection that created it.
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub struct OnServer<DB: sqlx::Database> {
    pub pool: sqlx::Pool<DB>,
    server: sqlx::Pool<DB>,
    name: String,
}

impl Simulated {
    /// Creates a database on the server whose URL is the first argument. Default: SQLite in memory.
    pub async fn open() -> anyhow::Result<Self> {
        let url = std::env::args().nth(1).unwrap_or_else(|| "sqlite::memory:".to_owned());
        match url.split(':').next() {
            #[cfg(feature = "mysql")]
            Some("mysql" | "mariadb") => {
                let (name, server) = (name(), MySqlPool::connect(&url).await.context("cannot connect")?);
                sqlx::raw_sql(AssertSqlSafe(format!("create database {name}"))).execute(&server).await?;
                let pool = connect(&beside(&url, &name)?).await?;
                sqlx::raw_sql(
                    "create table simulated_clock (now bigint not null);
                     insert into simulated_clock values (0);
                     drop procedure token_clock;
                     create procedure token_clock(out o_now bigint) reads sql data
                       select now into o_now from simulated_clock;
                     create or replace view token_now as select now from simulated_clock",
                )
                .execute(&pool)
                .await?;
                Ok(Self::MySql(OnServer { pool, server, name }))
            }
            #[cfg(feature = "postgres")]
            Some("postgres" | "postgresql") => {
                let (name, server) = (name(), PgPool::connect(&url).await.context("cannot connect")?);
                sqlx::raw_sql(AssertSqlSafe(format!("create database {name}"))).execute(&server).await?;
                let pool = connect(&beside(&url, &name)?).await?;
                sqlx::raw_sql(
                    "create table tollgate.simulated_clock (now bigint not null);
                     insert into tollgate.simulated_clock values (0);
                     create or replace function tollgate.clock() returns bigint language plpgsql volatile
                     as $$ begin return (select now from tollgate.simulated_clock); end $$",
                )
                .execute(&pool)
                .await?;
                Ok(Self::Postgres(OnServer { pool, server, name }))
            }
            _ => {
                let clock = ManualClock::default();
                Ok(Self::Sqlite(SqliteStore::with_clock(connect(&url).await?, clock.clone()), clock))
            }
        }
    }

    /// Moves the clock.
    pub async fn at(&self, now: DateTime<Utc>) -> anyhow::Result<()> {
        let now = now.timestamp_nanos_opt().context("after the year 2262")?;
        match self {
            #[cfg(feature = "mysql")]
            Self::MySql(database) => {
                sqlx::query("update simulated_clock set now = ?").bind(now).execute(&database.pool).await?;
            }
            #[cfg(feature = "postgres")]
            Self::Postgres(database) => {
                let set = sqlx::query("update tollgate.simulated_clock set now = $1").bind(now);
                set.execute(&database.pool).await?;
            }
            Self::Sqlite(_, clock) => clock.set(now),
        }
        Ok(())
    }

    /// Deletes the database.
    pub async fn close(self) -> anyhow::Result<()> {
        match self {
            #[cfg(feature = "mysql")]
            Self::MySql(OnServer { pool, server, name }) => {
                pool.close().await;
                sqlx::raw_sql(AssertSqlSafe(format!("drop database {name}"))).execute(&server).await?;
            }
            #[cfg(feature = "postgres")]
            Self::Postgres(OnServer { pool, server, name }) => {
                pool.close().await;
                sqlx::raw_sql(AssertSqlSafe(format!("drop database {name}"))).execute(&server).await?;
            }
            Self::Sqlite(..) => {}
        }
        Ok(())
    }
}

#[cfg(any(feature = "mysql", feature = "postgres"))]
fn name() -> String {
    format!("tollgate_simulated_{}", uuid::Uuid::new_v4().simple())
}

/// The URL of another database on the same server.
#[cfg(any(feature = "mysql", feature = "postgres"))]
fn beside(url: &str, name: &str) -> anyhow::Result<String> {
    let (server, _) = url.rsplit_once('/').context("a URL ends with a database")?;
    Ok(format!("{server}/{name}"))
}
