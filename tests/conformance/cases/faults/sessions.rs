//! How many sessions of the server the calls of a store use.

use tokio::task::JoinSet;
use tollgate::Error;

use super::{SHORT, a_hundred_a_day, has_server, take};
use crate::cases::privileges::Login;
use crate::engines::Kind;
use crate::held::Held;
use crate::matrix::{Case, Levels, Time, list};
use crate::pools::{Scratch, all_given_back, through_proxy};
use crate::rig::{AnyPool, Rig};

pub(super) fn cases() -> Vec<Case> {
    [
        list!(Levels::Pools, Time::Real, has_server; calls_for_locked_bucket_end_on_the_server),
        list!(Levels::Pools, Time::Real, |engine| has_server(engine) && engine.has_sessions;
            hung_calls_use_no_more_sessions_than_the_pool),
        list!(Levels::Pools, Time::Real, |engine| has_server(engine) && engine.has_roles;
            pool_above_the_servers_limit_shares_connections),
    ]
    .concat()
}

async fn calls_for_locked_bucket_end_on_the_server(rig: Rig) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&rig).await?;
    let key = scratch.rig.bucket(a_hundred_a_day()).await?;
    let (small, _proxy) = through_proxy(&scratch.rig, POOL).await?;
    let held = Held::bucket(&scratch.rig, &key).await?;
    for _ in 0..3 * POOL {
        let error = take(&small.store().deadline(SHORT), &key).await.expect_err("the bucket is locked");
        assert!(
            matches!(error, Error::Contended { .. } | Error::DeadlineExceeded(_) | Error::Unavailable(_)),
            "{error:?}"
        );
    }
    // Before the lock is released, each call has ended, and its connection is free.
    all_given_back(&small.pool).await;
    assert_eq!(working(&scratch.rig).await?, Vec::<i64>::new());
    held.commit().await?;
    assert_eq!(scratch.rig.row(&key).await?.map(|row| row.granted), Some(1), "the holder's alone");
    assert!(small.take(&key).await?.is_granted());
    Ok(())
}

async fn hung_calls_use_no_more_sessions_than_the_pool(rig: Rig) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&rig).await?;
    let key = scratch.rig.bucket(a_hundred_a_day()).await?;
    let (small, _proxy) = through_proxy(&scratch.rig, POOL).await?;
    let hang = match rig.engine.kind {
        Kind::MySql => "create trigger hang before update on token_buckets for each row do sleep(60)",
        _ => {
            "create function hang() returns trigger language plpgsql as 'begin perform pg_sleep(60); return new; end';
             create trigger hang before update on tollgate.token_buckets for each row execute function hang()"
        }
    };
    scratch.rig.pool.run(hang).await?;
    for _ in 0..4 * POOL {
        let error = take(&small.store().deadline(SHORT), &key).await.expect_err("the call hangs");
        assert!(
            matches!(error, Error::Contended { .. } | Error::DeadlineExceeded(_) | Error::Unavailable(_)),
            "{error:?}"
        );
        assert!(working(&scratch.rig).await?.len() <= POOL as usize);
    }

    // The sessions end, and the pool is free again.
    for id in working(&scratch.rig).await? {
        let end = if rig.engine.kind == Kind::MySql { "kill" } else { "select pg_terminate_backend" };
        scratch.rig.pool.run(format!("{end} ({id})")).await?;
    }
    all_given_back(&small.pool).await;
    Ok(())
}

async fn pool_above_the_servers_limit_shares_connections(rig: Rig) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&rig).await?;
    let key = scratch.rig.bucket(a_hundred_a_day()).await?;
    let login = Login::with_sessions(&scratch.rig, Some("tollgate_app"), 8).await?;
    let limit = match rig.engine.kind {
        Kind::MySql => format!("alter user {}@'%' with max_user_connections {POOL}", login.name),
        _ => format!("alter role {} connection limit {POOL}", login.name),
    };
    scratch.rig.pool.run(limit).await?;
    let mut callers = JoinSet::new();
    for _ in 0..16 {
        let (store, key) = (login.rig.store(), key.clone());
        callers.spawn(async move {
            for _ in 0..5 {
                anyhow::ensure!(take(&store, &key).await?.is_granted());
            }
            anyhow::Ok(())
        });
    }
    while let Some(asked) = callers.join_next().await {
        asked??;
    }
    assert_eq!(scratch.rig.row(&key).await?.map(|row| row.granted), Some(80));
    login.remove().await
}

/// The other sessions that work on a statement in the database.
async fn working(rig: &Rig) -> anyhow::Result<Vec<i64>> {
    Ok(match &rig.pool {
        AnyPool::MySql(pool) => {
            sqlx::query_scalar(
                "select cast(id as signed) from information_schema.processlist
                  where db = database() and id <> connection_id() and command in ('Query', 'Execute')",
            )
            .fetch_all(pool)
            .await?
        }
        AnyPool::Postgres(pool) => {
            sqlx::query_scalar(
                "select pid::bigint from pg_stat_activity
                  where datname = current_database() and pid <> pg_backend_pid() and state = 'active'",
            )
            .fetch_all(pool)
            .await?
        }
        AnyPool::Sqlite(_) => anyhow::bail!("a file has no sessions"),
    })
}

const POOL: u32 = 2;
