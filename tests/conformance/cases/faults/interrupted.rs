//! Interruptions of a session with a request, or of all sessions, by an operator.

use std::time::Duration;

use tollgate::{Decision, Error, Key, Store};

use super::{a_hundred_a_day, has_server, take};
use crate::engines::Kind;
use crate::matrix::{Case, IsolationLevels, Setup, list};
use crate::pools::{Acquisitions, Scratch, all_given_back, with_session};
use crate::session::Session;
use crate::test_db::{AnyPool, TestDb};

pub fn cases() -> Vec<Case> {
    [
        list!(
            Setup {
                levels: IsolationLevels::Every,
                needs: |engine| has_server(engine) && engine.has_sessions,
                ..Setup::LAYERED_EVERYWHERE
            };
            request_of_a_terminated_session_is_unknown,
            cancelled_statement_is_retried_only_if_rolled_back,
        ),
        list!(
            Setup { needs: |engine| has_server(engine) && engine.has_sessions, ..Setup::LAYERED_EVERYWHERE };
            read_only_session_takes_nothing,
        ),
    ]
    .concat()
}

async fn request_of_a_terminated_session_is_unknown(db: TestDb) -> anyhow::Result<()> {
    let interrupted = Interrupted::new(&db).await?;
    let end = if db.engine.kind == Kind::Postgres { "select pg_terminate_backend" } else { "kill" };
    let error = interrupted.request_while(end).await?.expect_err("its session was ended");
    interrupted.is_unknown(&error).await
}

/// PostgreSQL rolls back everything that a cancelled request did, so a retry is safe. MySQL can roll back only a part.
async fn cancelled_statement_is_retried_only_if_rolled_back(db: TestDb) -> anyhow::Result<()> {
    let interrupted = Interrupted::new(&db).await?;
    if db.engine.kind != Kind::Postgres {
        let error = interrupted.request_while("kill query").await?.expect_err("it was cancelled");
        return interrupted.is_unknown(&error).await;
    }
    let decision = interrupted.request_while("select pg_cancel_backend").await??;
    assert!(decision.is_granted() && decision.attempts() > 1, "{decision:?}");
    assert_eq!(interrupted.granted().await?, Some(2), "one of the other's, one of ours");
    Ok(())
}

/// A server that became a replica has such sessions on existing connections: they are not used again.
async fn read_only_session_takes_nothing(db: TestDb) -> anyhow::Result<()> {
    let key = db.bucket(a_hundred_a_day()).await?;
    let (read_only, session) = match db.engine.kind {
        Kind::Postgres => ("set default_transaction_read_only = on", "select pg_backend_pid() as session"),
        _ => ("set session transaction read only", "select connection_id() as session"),
    };
    let (reader, acquisitions) = with_session(&db, read_only).await?;
    let (before, mut sessions) = (acquisitions.count(), std::collections::HashSet::new());
    for first_use in [false, true] {
        let rows = reader.sql(session).await?;
        assert!(sessions.insert(rows[0].number("session")?), "a session is used again");
        let rule = if first_use { tollgate::Rule::Quota(a_hundred_a_day()) } else { tollgate::Rule::Provisioned };
        let key = if first_use { db.key() } else { key.clone() };
        let error = reader.store().take(&[tollgate::Take::from(key).rule(rule)]).await.expect_err("it may not write");
        assert!(matches!(error, Error::ReadOnly(_)), "{error:?}");
        assert!(!error.is_outcome_unknown());
    }
    assert!(acquisitions.count() <= before + 4, "neither was repeated");
    assert_eq!(db.row(&key).await?.map(|row| row.granted), Some(0));
    Ok(())
}

/// A request that waits for a bucket locked by another transaction, until an operator interrupts its session.
struct Interrupted {
    scratch: Scratch,
    key: Key,
    session: TestDb,
    acquisitions: Acquisitions,
}

impl Interrupted {
    async fn new(db: &TestDb) -> anyhow::Result<Self> {
        let scratch = Scratch::migrated(db).await?;
        let key = scratch.db.bucket(a_hundred_a_day()).await?;
        let (session, acquisitions) = with_session(&scratch.db, "select 1").await?;
        Ok(Self { scratch, key, session, acquisitions })
    }

    /// Sends a request and interrupts its session. The bucket is released once the request has ended or is retried.
    async fn request_while(&self, operator_does: &str) -> anyhow::Result<Result<Decision, Error>> {
        let db = &self.scratch.db;
        let id: i64 = match &self.session.pool {
            AnyPool::MySql(pool) => {
                sqlx::query_scalar("select cast(connection_id() as signed)").fetch_one(pool).await?
            }
            AnyPool::Postgres(pool) => sqlx::query_scalar("select pg_backend_pid()::bigint").fetch_one(pool).await?,
            AnyPool::Sqlite(_) => anyhow::bail!("a file has no sessions"),
        };
        all_given_back(&self.session.pool).await;
        let lock_holder = Session::lock_bucket(db, &self.key).await?;
        let before = self.acquisitions.count();
        let (store, key) = (self.session.store(), self.key.clone());
        let taking = tokio::spawn(async move { take(&store, &key).await });
        lock_holder.until_blocking(db).await?;
        db.pool.run(format!("{operator_does} ({id})")).await?;
        // The request has ended or is retried.
        while !taking.is_finished() && self.acquisitions.count() == before + 1 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        lock_holder.commit().await?;
        Ok(taking.await?)
    }

    /// Checks that nothing was taken, nothing was retried, and the next request succeeds.
    async fn is_unknown(&self, error: &Error) -> anyhow::Result<()> {
        assert!(matches!(error, Error::OutcomeUnknown(_)), "{error:?}");
        assert_eq!(self.acquisitions.count(), 2, "once for who it is, and once to ask");
        assert_eq!(self.granted().await?, Some(1), "the other's alone");
        assert!(self.session.take(&self.key).await?.is_granted(), "on a new connection");
        Ok(())
    }

    async fn granted(&self) -> anyhow::Result<Option<i64>> {
        Ok(self.scratch.db.row(&self.key).await?.map(|row| row.granted))
    }
}
