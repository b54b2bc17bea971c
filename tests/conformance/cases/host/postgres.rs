//! A token taken within the host's own transaction: PostgreSQL.

use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::{AssertSqlSafe, Postgres};
use tollgate::{Key, Quota, store::Isolation};

use super::{NONE, changed};
use crate::engines::Kind;
use crate::matrix::{Case, IsolationLevels, Setup, list};
use crate::pools::Scratch;
use crate::test_db::{AnyPool, TestDb};

pub fn cases() -> Vec<Case> {
    list!(
        Setup {
            levels: IsolationLevels::Every,
            needs: |engine| engine.kind == Kind::Postgres,
            ..Setup::WITHOUT_LAYERS
        };
        rollback_gives_the_token_back,
        a_commit_takes_the_token_with_the_hosts_rows,
        transaction_settings_are_unchanged,
        an_error_can_be_rolled_back_to_a_savepoint,
    )
}

async fn rollback_gives_the_token_back(db: TestDb) -> anyhow::Result<()> {
    let mut host = Host::new(&db).await?;
    let before = host.scratch.db.row(&host.key).await?;
    host.insert_and_take().await?;
    assert_eq!(host.scratch.db.row(&host.key).await?, before, "invisible until the commit");
    host.run("rollback").await?;
    assert_eq!(host.scratch.db.row(&host.key).await?, before);
    assert_eq!(host.rows().await?, 0);
    Ok(())
}

async fn a_commit_takes_the_token_with_the_hosts_rows(db: TestDb) -> anyhow::Result<()> {
    let mut host = Host::new(&db).await?;
    host.insert_and_take().await?;
    host.run("commit").await?;
    assert_eq!(host.scratch.db.row(&host.key).await?.map(|row| row.granted), Some(1));
    assert_eq!(host.rows().await?, 1);
    Ok(())
}

async fn transaction_settings_are_unchanged(db: TestDb) -> anyhow::Result<()> {
    let mut host = Host::new(&db).await?;
    host.begin().await?;
    host.run("set local search_path = public; set local time zone 'Asia/Tokyo'; set local work_mem = '5MB'").await?;
    let before = host.settings().await?;
    let is_on = |name: &str, value: &str| before.contains(&(name.to_owned(), value.to_owned()));
    assert!(is_on("synchronous_commit", "on") && is_on("TimeZone", "Asia/Tokyo") && is_on("search_path", "public"));
    host.take().await?;
    assert_eq!(changed(&before, &host.settings().await?), NONE);
    Ok(())
}

async fn an_error_can_be_rolled_back_to_a_savepoint(db: TestDb) -> anyhow::Result<()> {
    let mut host = Host::new(&db).await?;
    host.insert_and_take().await?;
    let before = host.settings().await?;
    for wrong in [
        "request_token('nobody made it')",
        "request_tokens(null)",
        "take_v1('x', -1, 0, 0, null, null, null, null, null, null)",
    ] {
        host.run("savepoint before").await?;
        host.run(&format!("select tollgate.{wrong}")).await.expect_err(wrong);
        host.run("rollback to before").await?;
        assert_eq!(changed(&before, &host.settings().await?), NONE, "after {wrong}");
    }
    host.run("commit").await?;
    assert_eq!(host.scratch.db.row(&host.key).await?.map(|row| row.granted), Some(1));
    assert_eq!(host.rows().await?, 1);
    Ok(())
}

/// An application that also uses the database for other data.
struct Host {
    connection: PoolConnection<Postgres>,
    level: Option<Isolation>,
    key: Key,
    scratch: Scratch,
}

impl Host {
    async fn new(db: &TestDb) -> anyhow::Result<Self> {
        let scratch = Scratch::migrated(db).await?;
        let AnyPool::Postgres(pool) = &scratch.db.pool else { anyhow::bail!("PostgreSQL is needed") };
        let mut connection = pool.acquire().await?;
        connection.close_on_drop();
        let key = scratch.db.bucket(Quota::interval(2, Duration::from_secs(86_400))?).await?;
        scratch.db.pool.run("create table host_rows (n int)").await?;
        // The language adds its own settings at its first use.
        sqlx::raw_sql("do $$ begin end $$").execute(&mut *connection).await?;
        Ok(Self { connection, level: db.level, key, scratch })
    }

    async fn run(&mut self, sql: &str) -> Result<(), sqlx::Error> {
        sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(&mut *self.connection).await.map(drop)
    }

    async fn begin(&mut self) -> Result<(), sqlx::Error> {
        self.run(match self.level {
            None => "begin",
            Some(Isolation::ReadCommitted) => "begin isolation level read committed",
            Some(Isolation::RepeatableRead) => "begin isolation level repeatable read",
            Some(Isolation::Serializable) => "begin isolation level serializable",
        })
        .await
    }

    async fn take(&mut self) -> Result<(), sqlx::Error> {
        let granted: bool = sqlx::query_scalar("select granted from tollgate.request_token($1)")
            .bind(self.key.as_str())
            .fetch_one(&mut *self.connection)
            .await?;
        assert!(granted);
        Ok(())
    }

    /// The transaction is unchanged afterwards, and still open.
    async fn insert_and_take(&mut self) -> Result<(), sqlx::Error> {
        self.begin().await?;
        self.run("insert into host_rows values (1)").await?;
        let before = self.transaction().await?;
        self.take().await?;
        assert_eq!(self.transaction().await?, before);
        Ok(())
    }

    async fn transaction(&mut self) -> Result<i64, sqlx::Error> {
        sqlx::query_scalar("select txid_current()").fetch_one(&mut *self.connection).await
    }

    async fn settings(&mut self) -> Result<Vec<(String, String)>, sqlx::Error> {
        sqlx::query_as("select name, setting from pg_settings order by name").fetch_all(&mut *self.connection).await
    }

    async fn rows(&mut self) -> Result<i64, sqlx::Error> {
        sqlx::query_scalar("select count(*) from host_rows").fetch_one(&mut *self.connection).await
    }
}
