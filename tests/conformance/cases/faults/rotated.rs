//! Credentials that rotate while a store has connections.

use std::sync::Arc;

use anyhow::ensure;
use parking_lot::Mutex;
use sqlx::{Connection, Database, Pool};
use tollgate::store::{Dialect, Durability};
use tollgate::{Error, Key, Limiter, Quota, Rule, SqlStore};

use crate::cases::privileges::Login;
use crate::matrix::{Case, Setup, list};
use crate::pools::Scratch;
use crate::test_db::{AnyPool, TestDb};

pub fn cases() -> Vec<Case> {
    list!(
        Setup { needs: |engine| engine.has_roles && !engine.is_pooled(), ..Setup::WITHOUT_LAYERS };
        new_connections_use_the_latest_credentials,
    )
}

/// The login of a store's connections is replaced, and its sessions end.
async fn new_connections_use_the_latest_credentials(db: TestDb) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&db).await?;
    let owner = &scratch.db;
    let before = Login::with_sessions(owner, Some("tollgate_app"), 1).await?;
    let after = Login::with_sessions(owner, Some("tollgate_app"), 1).await?;
    let key = owner.bucket(Quota::once(100)?).await?;
    match (&before.db.pool, &after.db.pool, &owner.pool) {
        (AnyPool::Postgres(old), AnyPool::Postgres(new), AnyPool::Postgres(admin)) => {
            let retire = async || {
                admin_run(admin, format!("alter role {} nologin", before.name)).await?;
                let end = "select pg_terminate_backend(pid) from pg_stat_activity where usename = $1";
                sqlx::query(end).bind(&before.name).execute(admin).await?;
                Ok(())
            };
            rotate(old, new, &key, retire).await?;
        }
        (AnyPool::MySql(old), AnyPool::MySql(new), AnyPool::MySql(admin)) => {
            let retire = async || {
                admin_run(admin, format!("alter user {}@'%' account lock", before.name)).await?;
                let sessions = "select cast(id as signed) from information_schema.processlist where user = ?";
                let sessions: Vec<i64> = sqlx::query_scalar(sessions).bind(&before.name).fetch_all(admin).await?;
                for session in sessions {
                    admin_run(admin, format!("kill {session}")).await?;
                }
                Ok(())
            };
            rotate(old, new, &key, retire).await?;
        }
        _ => anyhow::bail!("a file has no users"),
    }
    before.remove().await?;
    after.remove().await
}

async fn rotate<DB: Dialect>(
    old: &Pool<DB>,
    new: &Pool<DB>,
    key: &Key,
    retire: impl AsyncFnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let current = Arc::new(Mutex::new(old.connect_options()));
    let supplied = Arc::clone(&current);
    let store = SqlStore::<DB>::connect_with(move || Ok((**supplied.lock()).clone()), Durability::Asynchronous)?
        .max_connections(2);
    let limiter = Limiter::builder(store).without_sweep().build(Rule::Provisioned)?;
    ensure!(limiter.allow(key).await?.is_granted(), "the first login");
    *current.lock() = new.connect_options();
    retire().await?;
    // The pool's connections are broken, and a call can notice it late.
    let mut failures: Vec<Error> = Vec::new();
    while failures.len() < MAX_FAILURES {
        match limiter.allow(key).await {
            Ok(decision) => {
                ensure!(decision.is_granted(), "{decision:?}");
                limiter.store().pool().close().await;
                return Ok(());
            }
            Err(error) => failures.push(error),
        }
    }
    anyhow::bail!("no answer under the second login: {failures:?}")
}

async fn admin_run<DB: Database>(admin: &Pool<DB>, sql: String) -> anyhow::Result<()>
where
    for<'c> &'c mut DB::Connection: sqlx::Executor<'c, Database = DB>,
{
    let mut connection = admin.acquire().await?;
    sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&mut *connection).await?;
    connection.ping().await?;
    Ok(())
}

/// One for each connection of the pool, and one for each that was opening meanwhile.
const MAX_FAILURES: usize = 4;
