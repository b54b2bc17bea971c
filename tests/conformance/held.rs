//! Another transaction that holds the rows of a request.

use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::{AssertSqlSafe, MySql, MySqlPool, Postgres, Row, Sqlite};
use tollgate::{Decision, Key, Take, store::take_within};

use crate::engines::Kind;
use crate::rig::{AnyPool, Rig};

/// Uses a separate connection. The transaction is rolled back on drop.
pub struct Held {
    connection: AnyConnection,
    /// The server's process, once the transaction has begun: PostgreSQL only.
    pid: i32,
}

enum AnyConnection {
    MySql(PoolConnection<MySql>),
    Postgres(PoolConnection<Postgres>),
    Sqlite(PoolConnection<Sqlite>),
}

impl Held {
    /// Takes a token in a transaction that stays open.
    pub async fn bucket(rig: &Rig, key: &Key) -> anyhow::Result<Self> {
        let mut held = Self::open(rig).await?;
        held.take(rig, key).await?;
        Ok(held)
    }

    /// Begins a transaction that stays open.
    pub async fn open(rig: &Rig) -> anyhow::Result<Self> {
        let mut held = Self::idle(rig).await?;
        held.connection.close_on_drop();
        held.run(if rig.engine.kind == Kind::Sqlite { "begin immediate" } else { "begin" }).await?;
        if let AnyConnection::Postgres(connection) = &mut held.connection {
            held.pid = sqlx::query_scalar("select pg_backend_pid()").fetch_one(&mut **connection).await?;
        }
        Ok(held)
    }

    /// Takes a connection out of the pool.
    pub async fn idle(rig: &Rig) -> anyhow::Result<Self> {
        let connection = match &rig.pool {
            AnyPool::MySql(pool) => AnyConnection::MySql(pool.acquire().await?),
            AnyPool::Postgres(pool) => AnyConnection::Postgres(pool.acquire().await?),
            AnyPool::Sqlite(pool) => AnyConnection::Sqlite(pool.acquire().await?),
        };
        Ok(Self { connection, pid: 0 })
    }

    /// Decides a request by the library, in the transaction.
    pub async fn decide(&mut self, take: &Take) -> anyhow::Result<Decision> {
        Ok(match &mut self.connection {
            AnyConnection::MySql(it) => take_within(&mut **it, take).await??,
            AnyConnection::Postgres(it) => take_within(&mut **it, take).await??,
            AnyConnection::Sqlite(it) => take_within(&mut **it, take).await??,
        })
    }

    /// Takes another token, and waits for the bucket's lock if necessary.
    pub async fn take(&mut self, rig: &Rig, key: &Key) -> Result<(), sqlx::Error> {
        let sql = format!("update {} set granted = granted + 1 where id = {}", rig.table(), rig.literal(key));
        self.run(sql).await
    }

    pub async fn run(&mut self, sql: impl Into<String>) -> Result<(), sqlx::Error> {
        let sql = AssertSqlSafe(sql.into());
        match &mut self.connection {
            AnyConnection::MySql(it) => sqlx::raw_sql(sql).execute(&mut **it).await.map(drop),
            AnyConnection::Postgres(it) => sqlx::raw_sql(sql).execute(&mut **it).await.map(drop),
            AnyConnection::Sqlite(it) => sqlx::raw_sql(sql).execute(&mut **it).await.map(drop),
        }
    }

    pub async fn commit(mut self) -> Result<(), sqlx::Error> {
        self.run("commit").await
    }

    /// Returns once a session waits for a lock: on PostgreSQL for a lock of this session, on MySQL for any lock in this
    /// database, which should be the case's own.
    pub async fn blocks(&self, rig: &Rig) -> anyhow::Result<()> {
        while !match &rig.pool {
            AnyPool::MySql(pool) => somebody_waits(pool).await?,
            AnyPool::Postgres(pool) => {
                sqlx::query_scalar("select exists (select from pg_locks where $1 = any (pg_blocking_pids(pid)))")
                    .bind(self.pid)
                    .fetch_one(pool)
                    .await?
            }
            AnyPool::Sqlite(_) => anyhow::bail!("a file does not say who waits for it"),
        } {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }
}

/// Reads InnoDB's report, because its views are refreshed only after 100 ms without a read, and other cases read them, too.
async fn somebody_waits(pool: &MySqlPool) -> anyhow::Result<bool> {
    let report: String = sqlx::raw_sql("show engine innodb status").fetch_one(pool).await?.try_get("Status")?;
    // The text before the first transaction describes the last deadlock, which has ended.
    let waiting = report.split("---TRANSACTION ").skip(1).filter(|transaction| transaction.contains("\nLOCK WAIT "));
    let threads: Vec<&str> = waiting
        .filter_map(|transaction| transaction.split_once(" thread id "))
        .filter_map(|(_, id)| id.split(',').next())
        .collect();
    let ours = sqlx::query_scalar(
        "select exists (select 1 from information_schema.processlist where find_in_set(id, ?) and db = database())",
    );
    Ok(ours.bind(threads.join(",")).fetch_one(pool).await?)
}

impl AnyConnection {
    fn close_on_drop(&mut self) {
        match self {
            Self::MySql(it) => it.close_on_drop(),
            Self::Postgres(it) => it.close_on_drop(),
            Self::Sqlite(it) => it.close_on_drop(),
        }
    }
}
