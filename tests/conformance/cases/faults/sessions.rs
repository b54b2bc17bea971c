//! How many sessions of the server the calls of a store use.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;
use tollgate::{Error, Quota};

use super::{SHORT, a_hundred_a_day, has_server, take};
use crate::cases::privileges::Login;
use crate::engines::Kind;
use crate::matrix::{Case, Setup, list};
use crate::pools::{Scratch, all_given_back, through_proxy};
use crate::session::Session;
use crate::test_db::{AnyPool, TestDb};

pub(super) fn cases() -> Vec<Case> {
    [
        list!(Setup { needs: has_server, ..Setup::LAYERED_EVERYWHERE }; calls_for_locked_bucket_end_on_the_server),
        list!(
            Setup { needs: |engine| has_server(engine) && engine.has_sessions, ..Setup::LAYERED_EVERYWHERE };
            hung_calls_use_no_more_sessions_than_the_pool,
        ),
        list!(
            Setup { needs: |engine| has_server(engine) && engine.has_roles, ..Setup::LAYERED_EVERYWHERE };
            pool_above_the_servers_limit_shares_connections,
        ),
    ]
    .concat()
}

async fn calls_for_locked_bucket_end_on_the_server(db: TestDb) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&db).await?;
    let key = scratch.db.bucket(a_hundred_a_day()).await?;
    let (small, _proxy) = through_proxy(&scratch.db, POOL).await?;
    let lock_holder = Session::lock_bucket(&scratch.db, &key).await?;
    for _ in 0..3 * POOL {
        let error = take(&small.store().deadline(SHORT), &key).await.expect_err("the bucket is locked");
        assert!(
            matches!(error, Error::Contended { .. } | Error::DeadlineExceeded(_) | Error::Unavailable(_)),
            "{error:?}"
        );
    }
    // Before the lock is released, each call has ended, and its connection is free.
    all_given_back(&small.pool).await;
    assert_eq!(working(&scratch.db).await?, Vec::<i64>::new());
    lock_holder.commit().await?;
    assert_eq!(scratch.db.row(&key).await?.map(|row| row.granted), Some(1), "the holder's alone");
    assert!(small.take(&key).await?.is_granted());
    Ok(())
}

async fn hung_calls_use_no_more_sessions_than_the_pool(db: TestDb) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&db).await?;
    let key = scratch.db.bucket(a_hundred_a_day()).await?;
    let (small, _proxy) = through_proxy(&scratch.db, POOL).await?;
    let hang = match db.engine.kind {
        Kind::MySql => "create trigger hang before update on token_buckets for each row do sleep(60)",
        _ => {
            "create function hang() returns trigger language plpgsql as 'begin perform pg_sleep(60); return new; end';
             create trigger hang before update on tollgate.token_buckets for each row execute function hang()"
        }
    };
    scratch.db.pool.run(hang).await?;
    for _ in 0..16 * POOL {
        let error = take(&small.store().deadline(SHORT), &key).await.expect_err("the call hangs");
        assert!(
            matches!(error, Error::Contended { .. } | Error::DeadlineExceeded(_) | Error::Unavailable(_)),
            "{error:?}"
        );
        assert!(working(&scratch.db).await?.len() <= POOL as usize);
    }

    // The sessions end, and the pool is free again.
    for id in working(&scratch.db).await? {
        let end = if db.engine.kind == Kind::MySql { "kill" } else { "select pg_terminate_backend" };
        scratch.db.pool.run(format!("{end} ({id})")).await?;
    }
    all_given_back(&small.pool).await;
    Ok(())
}

async fn pool_above_the_servers_limit_shares_connections(db: TestDb) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&db).await?;
    let key = scratch.db.bucket(Quota::interval(1_000_000, Duration::from_hours(24))?).await?;
    let login = Login::with_sessions(&scratch.db, Some("tollgate_app"), 8).await?;
    let limit = match db.engine.kind {
        Kind::MySql => format!("alter user {}@'%' with max_user_connections {POOL}", login.name),
        _ => format!("alter role {} connection limit {POOL}", login.name),
    };
    scratch.db.pool.run(limit).await?;
    // Each asks until all have been answered, so that the open connections are always busy.
    let (answered, mut callers) = (Arc::new(AtomicUsize::new(0)), JoinSet::new());
    for _ in 0..CALLERS {
        let (store, key, answered) = (login.db.store(), key.clone(), Arc::clone(&answered));
        callers.spawn(async move {
            let mut is_first = true;
            while is_first || answered.load(Ordering::Relaxed) < CALLERS {
                anyhow::ensure!(take(&store, &key).await?.is_granted());
                answered.fetch_add(usize::from(std::mem::take(&mut is_first)), Ordering::Relaxed);
            }
            anyhow::Ok(())
        });
    }
    while let Some(ended) = callers.join_next().await {
        ended??;
    }
    login.remove().await
}

/// The other sessions that work on a statement in the database, and do not only check for such sessions.
async fn working(db: &TestDb) -> anyhow::Result<Vec<i64>> {
    Ok(match &db.pool {
        AnyPool::MySql(pool) => {
            sqlx::query_scalar(
                "select cast(id as signed) from information_schema.processlist
                  where db = database() and id <> connection_id() and command in ('Query', 'Execute')
                    and locate('processlist', info) = 0",
            )
            .fetch_all(pool)
            .await?
        }
        AnyPool::Postgres(pool) => {
            sqlx::query_scalar(
                "select pid::bigint from pg_stat_activity
                  where datname = current_database() and pid <> pg_backend_pid() and state = 'active'
                    and query not like '%pg_stat_activity%'",
            )
            .fetch_all(pool)
            .await?
        }
        AnyPool::Sqlite(_) => anyhow::bail!("a file has no sessions"),
    })
}

const POOL: u32 = 2;
const CALLERS: usize = 16;
