//! Another session, whose transaction can hold the rows of a request.

use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::{AssertSqlSafe, MySql, MySqlPool, Postgres, Row, Sqlite};
use tollgate::{Decision, Key, Take, store::take_within};

use crate::engines::Kind;
use crate::test_db::{AnyPool, TestDb};

/// Uses a separate connection. The transaction is rolled back on drop.
pub struct Session {
    connection: AnyConnection,
    /// The server's process, once the transaction has begun: PostgreSQL only.
    pid: i32,
}

enum AnyConnection {
    MySql(PoolConnection<MySql>),
    Postgres(PoolConnection<Postgres>),
    Sqlite(PoolConnection<Sqlite>),
}

impl Session {
    /// Takes a token in a transaction that stays open.
    pub async fn lock_bucket(db: &TestDb, key: &Key) -> anyhow::Result<Self> {
        let mut session = Self::begin(db).await?;
        session.take(db, key).await?;
        Ok(session)
    }

    /// Begins a transaction that stays open.
    pub async fn begin(db: &TestDb) -> anyhow::Result<Self> {
        let mut session = Self::idle(db).await?;
        session.connection.close_on_drop();
        session.run(if db.engine.kind == Kind::Sqlite { "begin immediate" } else { "begin" }).await?;
        if let AnyConnection::Postgres(connection) = &mut session.connection {
            session.pid = sqlx::query_scalar("select pg_backend_pid()").fetch_one(&mut **connection).await?;
        }
        Ok(session)
    }

    /// Takes a connection out of the pool.
    pub async fn idle(db: &TestDb) -> anyhow::Result<Self> {
        let connection = match &db.pool {
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
    pub async fn take(&mut self, db: &TestDb, key: &Key) -> Result<(), sqlx::Error> {
        let sql = format!("update {} set granted = granted + 1 where id = {}", db.table(), db.literal(key));
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
    pub async fn until_blocking(&self, db: &TestDb) -> anyhow::Result<()> {
        while !match &db.pool {
            AnyPool::MySql(pool) => has_lock_wait(pool).await?,
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
async fn has_lock_wait(pool: &MySqlPool) -> anyhow::Result<bool> {
    let report: String = sqlx::raw_sql("show engine innodb status").fetch_one(pool).await?.try_get("Status")?;
    // The text before the first transaction describes the last deadlock, which has ended.
    let waiting = report.split("---TRANSACTION ").skip(1).filter(|transaction| transaction.contains("\nLOCK WAIT "));
    let threads: Vec<&str> = waiting
        .filter_map(|transaction| transaction.split_once(" thread id "))
        .filter_map(|(_, id)| id.split(',').next())
        .collect();
    let in_database = sqlx::query_scalar(
        "select exists (select 1 from information_schema.processlist where find_in_set(id, ?) and db = database())",
    );
    Ok(in_database.bind(threads.join(",")).fetch_one(pool).await?)
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
