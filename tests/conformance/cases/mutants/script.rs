use std::time::Duration;

use common::fleet::checker::{Call, Fault};
use sqlx::Row;
use tokio::task::JoinSet;
use tollgate::Quota;

use crate::caller_sessions::CallerSessions;
use crate::engines::Kind;
use crate::pools::{Scratch, with_session};
use crate::test_db::{AnyPool, TestDb};
use crate::workers::faults;

/// A running schedule: a routine in its own database, its clock, and the sessions that wait for locks.
///
/// The clock stands still during calls, so its time is the time of each decision, regardless of the routine.
pub struct Script {
    pub calls: Vec<Call>,
    scratch: Scratch,
    sessions: CallerSessions,
    holder: TestDb,
    /// In nanoseconds, like the routine's clock.
    clock: i64,
    queue: JoinSet<anyhow::Result<Vec<bool>>>,
}

impl Script {
    pub async fn load(db: &TestDb, routine: &'static str) -> anyhow::Result<Self> {
        let scratch = Scratch::new(db).await?;
        scratch.db.pool.run(routine).await?;
        let sessions = CallerSessions::new(&scratch.db, 2).await?;
        let (holder, _) = with_session(&scratch.db, "select 1").await?;
        Ok(Self { calls: Vec::new(), scratch, sessions, holder, clock: 0, queue: JoinSet::new() })
    }

    /// Starts again with another routine.
    pub async fn reload(&mut self, routine: &'static str) -> anyhow::Result<()> {
        self.scratch
            .db
            .pool
            .run(match self.scratch.db.engine.kind {
                Kind::MySql => "drop procedure take; drop table clock, buckets",
                _ => "drop schema public cascade; create schema public",
            })
            .await?;
        self.scratch.db.pool.run(routine).await?;
        (self.calls, self.clock) = (Vec::new(), 0);
        Ok(())
    }

    /// Moves the routine's clock.
    pub async fn set_clock(&mut self, milliseconds: i64) -> anyhow::Result<()> {
        self.clock = milliseconds * 1_000_000;
        Ok(self.scratch.db.pool.run(format!("update clock set now = {}", self.clock)).await?)
    }

    /// Makes one call without any lock in the way.
    pub async fn take(&mut self) -> anyhow::Result<()> {
        let answers = call_mutant(&self.sessions.db.pool, TAKE).await?;
        self.answered(&answers);
        Ok(())
    }

    pub async fn take_twice_in_a_batch(&mut self) -> anyhow::Result<()> {
        let answers = call_mutant(&self.sessions.db.pool, TAKE_TWICE).await?;
        self.answered(&answers);
        Ok(())
    }

    /// Another session locks the bucket.
    pub async fn hold_bucket(&mut self) -> anyhow::Result<()> {
        Ok(self.holder.pool.run("begin; select 1 from buckets where id = 'bucket' for update").await?)
    }

    /// Deletes the bucket, and makes another session block its creation.
    pub async fn hold_absence(&mut self) -> anyhow::Result<()> {
        self.scratch.db.pool.run("truncate table buckets").await?;
        if self.holder.engine.kind == Kind::MySql {
            // Locks the gap of the missing row, which REPEATABLE READ does.
            self.holder.pool.run("set transaction isolation level repeatable read").await?;
            return self.hold_bucket().await;
        }
        // Inserts the row without a commit.
        Ok(self.holder.pool.run("begin; insert into buckets (id) values ('bucket')").await?)
    }

    /// Starts calls that wait for the lock.
    pub async fn queue(&mut self, callers: usize) -> anyhow::Result<()> {
        for _ in 0..callers {
            let pool = self.sessions.db.pool.clone();
            self.queue.spawn(async move { call_mutant(&pool, TAKE).await });
        }
        self.sessions.until_waiting(&self.scratch.db, callers).await
    }

    /// Releases the lock, so that all calls finish.
    pub async fn release(&mut self) -> anyhow::Result<()> {
        self.holder.pool.run("rollback").await?;
        while let Some(answers) = self.queue.join_next().await {
            self.answered(&answers??);
        }
        Ok(())
    }

    /// The faults that the checker finds in the calls.
    pub fn faults(&self) -> anyhow::Result<Vec<Fault>> {
        Ok(faults(&Quota::continuous(2, Duration::from_secs(2))?, 0, &self.calls))
    }

    fn answered(&mut self, answers: &[bool]) {
        let now = self.clock;
        let calls = answers.iter().map(|&granted| Call { sent: now, done: now, at: Some(now), cost: 1, granted });
        self.calls.extend(calls);
    }
}

/// Calls a routine. Returns whether each request was granted.
async fn call_mutant(pool: &AnyPool, routine: &'static str) -> anyhow::Result<Vec<bool>> {
    Ok(match pool {
        AnyPool::MySql(pool) => {
            let mut connection = pool.acquire().await?;
            let begin = "set transaction isolation level read committed; start transaction";
            sqlx::raw_sql(begin).execute(&mut *connection).await?;
            let rows = sqlx::query("call take()").fetch_all(&mut *connection).await?;
            sqlx::raw_sql("commit").execute(&mut *connection).await?;
            rows.iter().map(|row| Ok(row.try_get::<i64, _>(0)? == 1)).collect::<Result<_, sqlx::Error>>()?
        }
        AnyPool::Postgres(pool) => sqlx::query_scalar(routine).fetch_all(pool).await?,
        AnyPool::Sqlite(_) => anyhow::bail!("a file has no routines"),
    })
}

const TAKE: &str = "select take()";
const TAKE_TWICE: &str = "select * from take_many(array['bucket', 'bucket'])";
