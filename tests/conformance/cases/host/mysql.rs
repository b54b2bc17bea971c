//! A token taken within the host's own transaction: MySQL and MariaDB.

use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::{AssertSqlSafe, FromRow, MySql};
use tollgate::{Key, Quota, store::Isolation};

use super::{NONE, changed};
use crate::engines::Kind;
use crate::matrix::{Case, IsolationLevels, Setup, list};
use crate::pools::Scratch;
use crate::test_db::{AnyPool, TestDb};

pub fn cases() -> Vec<Case> {
    list!(
        Setup { levels: IsolationLevels::Every, needs: |engine| engine.kind == Kind::MySql, ..Setup::WITHOUT_LAYERS };
        rollback_gives_the_token_back,
        rollback_without_autocommit_gives_the_token_back,
        a_commit_takes_the_token_with_the_hosts_rows,
        an_error_leaves_the_hosts_transaction_open,
        session_variables_are_unchanged,
        the_next_transaction_is_at_the_sessions_level,
        last_insert_id_is_unchanged,
        session_with_chained_transactions_commits_its_tokens,
    )
}

async fn rollback_gives_the_token_back(db: TestDb) -> anyhow::Result<()> {
    let mut host = Host::new(&db).await?;
    host.begin().await?;
    host.insert_and_take().await?;
    host.run("rollback").await?;
    assert_eq!(host.granted().await?, 0);
    assert_eq!(host.rows().await?, 0);
    Ok(())
}

async fn rollback_without_autocommit_gives_the_token_back(db: TestDb) -> anyhow::Result<()> {
    let mut host = Host::new(&db).await?;
    host.set_level("session").await?;
    host.run("set autocommit = 0").await?;
    host.insert_and_take().await?;
    host.run("rollback").await?;
    // The call itself can start the transaction.
    host.take().await?;
    assert_eq!(host.seen_by_others().await?, (0, 0));
    host.run("rollback").await?;
    assert_eq!(host.granted().await?, 0);
    assert_eq!(host.rows().await?, 0);
    Ok(())
}

async fn a_commit_takes_the_token_with_the_hosts_rows(db: TestDb) -> anyhow::Result<()> {
    let mut host = Host::new(&db).await?;
    host.begin().await?;
    host.insert_and_take().await?;
    host.run("commit").await?;
    assert_eq!(host.seen_by_others().await?, (1, 1));
    Ok(())
}

async fn an_error_leaves_the_hosts_transaction_open(db: TestDb) -> anyhow::Result<()> {
    let mut host = Host::new(&db).await?;
    for (&wrong, before) in WRONG.iter().zip(0..) {
        host.begin().await?;
        host.insert_and_take().await?;
        host.run(wrong).await.expect_err(wrong);
        assert_eq!(host.seen_by_others().await?, (before, before), "{wrong} has committed");
        host.run("commit").await?;
        assert_eq!(host.seen_by_others().await?, (before + 1, before + 1), "{wrong} has rolled back");
    }
    Ok(())
}

async fn session_variables_are_unchanged(db: TestDb) -> anyhow::Result<()> {
    let mut host = Host::new(&db).await?;
    host.set_level("session").await?;
    host.run("set sql_mode = 'ANSI_QUOTES,NO_BACKSLASH_ESCAPES', time_zone = '+09:00', timestamp = 1234567890").await?;
    let before = host.variables().await?;
    for call in RIGHT {
        host.run(call).await?;
        assert_eq!(changed(&before, &host.variables().await?), NONE, "after {call}");
    }
    for wrong in WRONG {
        host.run(wrong).await.expect_err(wrong);
        assert_eq!(changed(&before, &host.variables().await?), NONE, "after {wrong}");
    }
    Ok(())
}

/// An isolation level set for one transaction is not visible in a variable.
async fn the_next_transaction_is_at_the_sessions_level(db: TestDb) -> anyhow::Result<()> {
    let mut host = Host::new(&db).await?;
    host.set_level("session").await?;
    let level = db.level.unwrap_or(Isolation::RepeatableRead);
    assert_eq!(host.shown_level().await?, level);
    for call in RIGHT {
        host.run(call).await?;
        assert_eq!(host.shown_level().await?, level, "after {call}");
    }
    for wrong in WRONG {
        host.run(wrong).await.expect_err(wrong);
        assert_eq!(host.shown_level().await?, level, "after {wrong}");
    }
    Ok(())
}

async fn session_with_chained_transactions_commits_its_tokens(db: TestDb) -> anyhow::Result<()> {
    let mut host = Host::new(&db).await?;
    host.run("set completion_type = 'CHAIN'").await?;
    for taken in 1..4 {
        host.take().await?;
        assert_eq!(host.seen_by_others().await?, (0, taken));
    }
    Ok(())
}

async fn last_insert_id_is_unchanged(db: TestDb) -> anyhow::Result<()> {
    let mut host = Host::new(&db).await?;
    host.run("create table host_ids (id bigint auto_increment primary key)").await?;
    host.run("insert into host_ids values (41); insert into host_ids values (null)").await?;
    for call in RIGHT {
        host.run(call).await?;
        let id: u64 = sqlx::query_scalar("select last_insert_id()").fetch_one(&mut *host.connection).await?;
        assert_eq!(id, 42, "after {call}");
    }
    Ok(())
}

/// Calls that take tokens or create buckets.
const RIGHT: &[&str] = &[
    "call request_token('bucket')",
    "call rate_limiting_request('made by its first request', 2, 60)",
    "call token_create_bucket('provisioned', 1, 1, 'interval')",
    "call token_adjust_v1('refund', uuid(), 'bucket', 1, 0, 0, 1, false)",
    "call token_adjust_window_v1('refund', uuid(), 'bucket', 1, 0, 1, false)",
    "call token_adjust_batch_v1(json_array(json_array('refund', uuid(), '61', 1, 0, 0, 1, 0),
                                         json_array('refund', uuid(), '62', 1, 0, 0, 1, 1)), false, @answers)",
];

/// Calls that are refused, each in another part of the routines.
const WRONG: &[&str] = &[
    "call request_token('nobody made it')",
    "call request_token(null)",
    "call request_tokens('bucket', 1000, 0, 0)",
    "call request_tokens('bucket', -1, 0, 0)",
    "set @t = 1; call token_take_v1('bucket', 0, 0, 0, null, null, null, null, null, null, true, false, @t,
                                    @a, @b, @c, @d, @e, @f, @g, @h, @i, @j, @k)",
    "set @t = 1; call token_take_v1('made by its first request', 1, 0, 0, 0, 1, 'interval', null, null, null, true, false,
                                    @t, @a, @b, @c, @d, @e, @f, @g, @h, @i, @j, @k)",
    "call token_take_batch_v1('[[\"61\", 0, 0, 0, null, null, null]]', false, @answers)",
    "call rate_limiting_request('bucket', 2, 60)",
    "call token_adjust_v1('refund', null, 'bucket', 1, 0, 0, 1, false)",
    "call token_adjust_window_v1('refund', uuid(), 'bucket', 0, 0, 1, false)",
    "call token_adjust_batch_v1(json_array(json_array('refund', uuid(), '61', 1, 0, 0, 1, 0),
                                         json_array('refund', uuid(), '62', 0, 0, 0, 1, 0)), false, @answers)",
    "call token_create_bucket('', 1, 1, 'interval')",
    "call token_create_bucket('wrong', 0, 1, 'interval')",
];

/// An application that also uses the database for other data.
struct Host {
    connection: PoolConnection<MySql>,
    level: Option<Isolation>,
    scratch: Scratch,
}

impl Host {
    async fn new(db: &TestDb) -> anyhow::Result<Self> {
        let scratch = Scratch::migrated(db).await?;
        let AnyPool::MySql(pool) = &scratch.db.pool else { anyhow::bail!("MySQL is needed") };
        let mut connection = pool.acquire().await?;
        connection.close_on_drop();
        let key = Key::try_from("bucket")?;
        scratch.db.create(&key, Quota::interval(100, Duration::from_secs(86_400))?).await?;
        scratch.db.pool.run("create table host_rows (n int)").await?;
        Ok(Self { connection, level: db.level, scratch })
    }

    async fn run(&mut self, sql: &str) -> Result<(), sqlx::Error> {
        sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(&mut *self.connection).await.map(drop)
    }

    async fn begin(&mut self) -> Result<(), sqlx::Error> {
        self.set_level("").await?;
        self.run("start transaction").await
    }

    async fn set_level(&mut self, scope: &str) -> Result<(), sqlx::Error> {
        let level = match self.level {
            None => return Ok(()),
            Some(Isolation::ReadCommitted) => "read committed",
            Some(Isolation::RepeatableRead) => "repeatable read",
            Some(Isolation::Serializable) => "serializable",
        };
        self.run(&format!("set {scope} transaction isolation level {level}")).await
    }

    async fn take(&mut self) -> Result<(), sqlx::Error> {
        let (granted, ..): (i64, i64, i64, i64, i64) =
            sqlx::query_as("call request_token('bucket')").fetch_one(&mut *self.connection).await?;
        assert_eq!(granted, 1);
        Ok(())
    }

    /// The transaction is still open afterwards.
    async fn insert_and_take(&mut self) -> anyhow::Result<()> {
        let before = self.seen_by_others().await?;
        self.run("insert into host_rows values (1)").await?;
        self.take().await?;
        self.run("set transaction read write").await.expect_err("a transaction is open");
        assert_eq!(self.seen_by_others().await?, before);
        Ok(())
    }

    /// The isolation level of the next transaction, detected by what it locks and sees.
    async fn shown_level(&mut self) -> anyhow::Result<Isolation> {
        let others = self.scratch.db.pool.clone();
        self.run("start transaction").await?;
        let before = self.granted().await?;
        if others.run("select 1 from token_buckets where id = 'bucket' for update nowait").await.is_err() {
            self.run("rollback").await?;
            return Ok(Isolation::Serializable);
        }
        others.run("update token_buckets set granted = granted + 1 where id = 'bucket'").await?;
        let after = self.granted().await?;
        self.run("rollback").await?;
        Ok(if after == before { Isolation::RepeatableRead } else { Isolation::ReadCommitted })
    }

    /// The committed rows of the host, and the committed tokens taken.
    async fn seen_by_others(&self) -> anyhow::Result<(i64, i64)> {
        let AnyPool::MySql(pool) = &self.scratch.db.pool else { anyhow::bail!("MySQL is needed") };
        Ok(sqlx::query_as("select (select count(*) from host_rows), granted from token_buckets where id = 'bucket'")
            .fetch_one(pool)
            .await?)
    }

    async fn granted(&mut self) -> Result<i64, sqlx::Error> {
        sqlx::query_scalar("select granted from token_buckets where id = 'bucket'")
            .fetch_one(&mut *self.connection)
            .await
    }

    async fn rows(&mut self) -> Result<i64, sqlx::Error> {
        sqlx::query_scalar("select count(*) from host_rows").fetch_one(&mut *self.connection).await
    }

    /// All variables except those that every statement sets.
    async fn variables(&mut self) -> Result<Vec<(String, String)>, sqlx::Error> {
        let rows = sqlx::raw_sql("show session variables").fetch_all(&mut *self.connection).await?;
        let all: Result<Vec<(String, String)>, _> = rows.iter().map(FromRow::from_row).collect();
        Ok(all?.into_iter().filter(|(name, _)| !EVER_CHANGING.contains(&name.as_str())).collect())
    }
}

const EVER_CHANGING: &[&str] = &["error_count", "gtid_executed", "statement_id", "warning_count"];
