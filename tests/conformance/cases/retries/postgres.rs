//! Serialization failures of PostgreSQL.

use std::time::Duration;

use tollgate::{Error, Rule, Store, Take};

use super::{LONG, a_hundred_a_day, is_snapshot, take};
use crate::engines::Kind;
use crate::matrix::{Case, IsolationLevels, Setup, list};
use crate::pools::Scratch;
use crate::session::Session;
use crate::test_db::TestDb;

pub fn cases() -> Vec<Case> {
    list!(
        Setup {
            levels: IsolationLevels::Every,
            needs: |engine| engine.kind == Kind::Postgres,
            ..Setup::WITHOUT_LAYERS
        };
        a_concurrent_writer_costs_the_higher_levels_a_retry,
        concurrent_writer_costs_a_batch_one_retry_at_higher_levels,
        a_failure_at_commit_is_retried,
        a_failure_of_a_batch_at_commit_is_retried_as_a_whole,
        persistent_commit_failures_end_after_the_attempts,
        persistent_commit_failures_end_by_the_deadline,
        lost_prepared_statement_is_not_contention,
        yugabytes_errors_are_retried_only_if_nothing_was_taken,
    )
}

async fn a_concurrent_writer_costs_the_higher_levels_a_retry(db: TestDb) -> anyhow::Result<()> {
    // Uses a separate database: at SERIALIZABLE, others on the same pages can cause failures.
    let scratch = Scratch::migrated(&db).await?;
    let db = &scratch.db;
    let key = db.bucket(a_hundred_a_day()).await?;
    let lock_holder = Session::lock_bucket(db, &key).await?;
    let taking = take(db.store().deadline(LONG), &key);
    lock_holder.until_blocking(db).await?;
    lock_holder.commit().await?;

    let decision = taking.await??;
    assert!(decision.is_granted());
    assert_eq!(decision.attempts(), if is_snapshot(db.level) { 2 } else { 1 });
    assert_eq!(db.row(&key).await?.map(|row| row.granted), Some(2), "one of the other's, one of ours");
    Ok(())
}

async fn a_failure_at_commit_is_retried(db: TestDb) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&db).await?;
    let key = scratch.db.bucket(a_hundred_a_day()).await?;
    fail_commits(&scratch.db, "2", "40001").await?;

    let decision = scratch.db.take(&key).await?;
    assert!(decision.is_granted());
    assert_eq!((decision.attempts(), decision.remaining()), (3, Some(99)));
    assert_eq!(scratch.db.row(&key).await?.map(|row| row.granted), Some(1));
    Ok(())
}

/// Covers equal requests, different requests, and requests for several buckets: a different routine decides each kind.
async fn a_failure_of_a_batch_at_commit_is_retried_as_a_whole(db: TestDb) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&db).await?;
    let db = &scratch.db;
    fail_commits(db, "2", "40001").await?;
    for kind in 0..3 {
        db.pool.run("alter sequence failures restart").await?;
        let mut keys = Vec::new();
        for _ in 0..10 {
            keys.push(db.bucket(a_hundred_a_day()).await?);
        }
        let takes: Vec<Take> = match kind {
            0 => keys.iter().cloned().map(Take::from).collect(),
            1 => keys.iter().zip(1..).map(|(key, cost)| Take::from(key.clone()).cost(cost)).collect(),
            _ => {
                keys.chunks(2).map(|both| Take::from(both[0].clone()).and(both[1].clone(), Rule::Provisioned)).collect()
            }
        };
        for (take, outcome) in takes.iter().zip(db.store().take(&takes).await?) {
            let decision = outcome?;
            assert_eq!((decision.is_granted(), decision.attempts()), (true, 3), "{take:?}");
        }
        for (key, cost) in keys.iter().zip(1..) {
            assert_eq!(db.row(key).await?.map(|row| row.granted), Some(if kind == 1 { cost } else { 1 }));
        }
    }
    Ok(())
}

/// A request that waits for the lock can lose it, and is retried, too.
async fn concurrent_writer_costs_a_batch_one_retry_at_higher_levels(db: TestDb) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&db).await?;
    let db = &scratch.db;
    let mut takes = Vec::new();
    for _ in 0..10 {
        takes.push(Take::from(db.bucket(a_hundred_a_day()).await?));
    }
    let lock_holder = Session::lock_bucket(db, takes[5].key()).await?;
    let (store, requests) = (db.store().deadline(LONG), takes.clone());
    let taking = tokio::spawn(async move { store.take(&requests).await });
    lock_holder.until_blocking(db).await?;
    lock_holder.commit().await?;

    for outcome in taking.await?? {
        let decision = outcome?;
        assert!(decision.is_granted());
        assert!(decision.attempts() > 1 || !is_snapshot(db.level), "it saw what was written since it began");
    }
    for (place, take) in takes.iter().enumerate() {
        let others = i64::from(place == 5);
        assert_eq!(db.row(take.key()).await?.map(|row| row.granted), Some(1 + others), "{place}");
    }
    Ok(())
}

async fn persistent_commit_failures_end_after_the_attempts(db: TestDb) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&db).await?;
    let key = scratch.db.bucket(a_hundred_a_day()).await?;
    fail_commits(&scratch.db, "1000000", "40001").await?;

    let error = take(scratch.db.store().max_attempts(3).deadline(LONG), &key).await?.expect_err("no commit succeeds");
    assert!(matches!(error, Error::Contended { attempts: 3, .. }), "{error:?}");
    assert!(!error.is_outcome_unknown());
    assert_eq!(scratch.db.row(&key).await?.map(|row| row.granted), Some(0));
    Ok(())
}

async fn persistent_commit_failures_end_by_the_deadline(db: TestDb) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&db).await?;
    let key = scratch.db.bucket(a_hundred_a_day()).await?;
    fail_commits(&scratch.db, "1000000", "40001").await?;

    let store = scratch.db.store().max_attempts(u32::MAX).deadline(Duration::from_secs(1));
    match take(store, &key).await?.expect_err("no commit succeeds") {
        Error::Contended { attempts, .. } => assert!(attempts > 1, "{attempts} attempts"),
        // The deadline can be reached during an attempt, whose outcome is then unknown.
        error => assert!(matches!(error, Error::DeadlineExceeded(_)), "{error:?}"),
    }
    assert_eq!(scratch.db.row(&key).await?.map(|row| row.granted), Some(0));
    Ok(())
}

/// A pooler without prepared statements answers these codes to any statement.
async fn lost_prepared_statement_is_not_contention(db: TestDb) -> anyhow::Result<()> {
    for code in ["42P05", "26000"] {
        let scratch = Scratch::migrated(&db).await?;
        let key = scratch.db.bucket(a_hundred_a_day()).await?;
        fail_commits(&scratch.db, "2", code).await?;
        let error = take(scratch.db.store().max_attempts(2).deadline(LONG), &key).await?.expect_err("two commits fail");
        assert!(matches!(error, Error::Database(_)) && !error.is_outcome_unknown(), "{code}: {error:?}");
        assert!(scratch.db.take(&key).await?.is_granted(), "{code}: the next attempt succeeds");
        assert_eq!(scratch.db.row(&key).await?.map(|row| row.granted), Some(1), "{code}");
    }
    Ok(())
}

/// Many errors of YugabyteDB share a code, and only their texts differ.
async fn yugabytes_errors_are_retried_only_if_nothing_was_taken(db: TestDb) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&db).await?;
    for (code, text) in [
        ("40001", "could not serialize access due to concurrent update"),
        ("40001", "current transaction is expired or aborted"),
        ("40001", "schema version mismatch for table token_buckets: expected 2, got 1"),
        ("40P01", "deadlock detected"),
        ("72000", "Snapshot too old"),
        ("XX000", "Restart read required at: { read: { days: 19000 } }"),
        ("XX000", "Operation expired: Heartbeat: Transaction 4f expired or aborted by a conflict: 40001"),
        ("XX000", "Internal error: Transaction 4f was aborted while waiting for locks"),
        ("XX000", "Catalog Version Mismatch: A DDL occurred while processing this query. Try again."),
    ] {
        let key = scratch.db.bucket(a_hundred_a_day()).await?;
        fail_commits_with(&scratch.db, "2", code, text).await?;
        let decision = scratch.db.take(&key).await?;
        assert_eq!((decision.is_granted(), decision.attempts()), (true, 3), "{code} {text}");
        assert_eq!(scratch.db.row(&key).await?.map(|row| row.granted), Some(1), "{code} {text}");
    }
    for (code, text) in [
        ("XX000", "Timed out: Read(tablet: 3b, num_ops: 1) to tserver failed: Not the leader"),
        ("XX000", "UpdateTransaction RPC to 127.0.0.1:9100 timed out after 120.000s"),
        ("XX000", "Service unavailable: Leader not yet replicated NoOp to be ready to serve requests"),
        ("XX000", "Network error: recvmsg got EOF from remote"),
        ("57P01", "terminating connection due to administrator command"),
        ("08006", "server closed the connection unexpectedly"),
    ] {
        let key = scratch.db.bucket(a_hundred_a_day()).await?;
        fail_commits_with(&scratch.db, "1", code, text).await?;
        let error = take(scratch.db.store().deadline(LONG), &key).await?.expect_err("the commit fails");
        assert!(error.is_outcome_unknown(), "{code} {text}: {error:?}");
    }
    Ok(())
}

/// Makes the next `n` grants fail at commit, with this code.
async fn fail_commits(db: &TestDb, n: &str, code: &str) -> Result<(), sqlx::Error> {
    fail_commits_with(db, n, code, "provoked at commit").await
}

async fn fail_commits_with(db: &TestDb, n: &str, code: &str, text: &str) -> Result<(), sqlx::Error> {
    db.pool
        .run(format!(
            "drop sequence if exists failures;
             create sequence failures;
             create or replace function fail_at_commit() returns trigger language plpgsql as $$
             begin
               if nextval('public.failures') <= {n} then
                 raise exception '{text}' using errcode = '{code}';
               end if;
               return null;
             end $$;
             drop trigger if exists fail_at_commit on tollgate.token_buckets;
             create constraint trigger fail_at_commit after update on tollgate.token_buckets
               deferrable initially deferred for each row execute function fail_at_commit();"
        ))
        .await
}
