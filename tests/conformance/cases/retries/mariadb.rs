//! MariaDB's error 1020: a record changed after the transaction's snapshot. A batch takes its locks first.

use tollgate::{Error, Store, Take};

use super::{LONG, in_order};
use crate::engines::Kind;
use crate::matrix::{Case, IsolationLevels, Setup, list};
use crate::pools::{Scratch, with_session};
use crate::session::Session;
use crate::test_db::{AnyPool, TestDb};

pub fn cases() -> Vec<Case> {
    [
        list!(
            Setup {
                levels: IsolationLevels::Every,
                needs: |engine| engine.has_snapshot_conflicts,
                ..Setup::WITHOUT_LAYERS
            };
            a_batch_has_its_locks_before_its_snapshot,
        ),
        list!(
            Setup { needs: |engine| engine.kind == Kind::MySql && engine.has_statement_timeout, ..Setup::WITHOUT_LAYERS };
            batch_that_times_out_restores_the_session_settings,
        ),
    ]
    .concat()
}

async fn a_batch_has_its_locks_before_its_snapshot(db: TestDb) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&db).await?;
    let db = &scratch.db;
    let (first, second) = in_order(db).await?;
    // A trigger of the host blocks the batch, and another session requests the second bucket.
    let gate = format!("gate_{}", first.as_str());
    db.pool
        .run(format!(
            "create trigger host_trigger after update on token_buckets for each row
             if new.id = {} then do get_lock('{gate}', 60), release_lock('{gate}'); end if",
            db.literal(&first)
        ))
        .await?;

    let (gatekeeper, _) = with_session(db, "do 0").await?;
    gatekeeper.pool.run(format!("do get_lock('{gate}', 60)")).await?;
    let (strict, _) = with_session(db, "set innodb_snapshot_isolation = on").await?;
    let store = strict.store().deadline(LONG);
    let batch = [Take::from(first.clone()), Take::from(second.clone())];
    let taking = tokio::spawn(async move { store.take(&batch).await });
    at_the_gate(db).await?;
    let other = super::take(db.store().deadline(LONG), &second);
    gatekeeper.pool.run(format!("do release_lock('{gate}')")).await?;

    let outcomes = taking.await??;
    for outcome in outcomes {
        let decision = outcome?;
        assert!(decision.is_granted());
        assert_eq!(decision.attempts(), 1);
    }
    assert!(other.await??.is_granted());
    assert_eq!(db.row(&first).await?.map(|row| row.granted), Some(1));
    assert_eq!(db.row(&second).await?.map(|row| row.granted), Some(2));
    Ok(())
}

async fn batch_that_times_out_restores_the_session_settings(db: TestDb) -> anyhow::Result<()> {
    let (first, second) = in_order(&db).await?;
    let mut lock_holder = Session::lock_bucket(&db, &second).await?;
    let (hasty, _) = with_session(&db, "set max_statement_time = 0.2").await?;
    let settings = || async {
        let AnyPool::MySql(pool) = &hasty.pool else { anyhow::bail!("MariaDB is needed") };
        let settings: (u64, bool) =
            sqlx::query_as("select @@innodb_lock_wait_timeout, @@sql_safe_updates").fetch_one(pool).await?;
        Ok(settings)
    };
    let before = settings().await?;
    let batch = [Take::from(first), Take::from(second)];
    let error = hasty.store().max_attempts(1).take(&batch).await.expect_err("a bucket is locked");
    assert!(matches!(error, Error::Contended { .. }), "{error}");
    assert_eq!(settings().await?, before);
    lock_holder.run("rollback").await?;
    Ok(())
}

/// Returns once the trigger waits.
async fn at_the_gate(db: &TestDb) -> anyhow::Result<()> {
    let AnyPool::MySql(pool) = &db.pool else { anyhow::bail!("MariaDB is needed") };
    loop {
        let waiting: i64 = sqlx::query_scalar(
            "select count(*) from information_schema.processlist where state = 'User lock' and db = database()",
        )
        .fetch_one(pool)
        .await?;
        if waiting > 0 {
            return Ok(());
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}
