//! PostgreSQL batches that create their buckets, possibly at the same time as other sessions.

use std::time::Duration;

use anyhow::{Context, ensure};
use tokio::task::JoinHandle;
use tollgate::{Error, Key, Quota, Rule, Store, Take, model::Outcome};

use super::super::MS;
use crate::engines::Kind;
use crate::matrix::{Case, Setup, list};
use crate::session::Session;
use crate::test_db::TestDb;

pub(crate) fn cases() -> Vec<Case> {
    list!(
        Setup { needs: |engine| engine.kind == Kind::Postgres && engine.has_sessions, ..Setup::WITHOUT_LAYERS };
        new_bucket_named_twice_grants_its_tokens_once,
        invalid_id_in_a_batch_creates_no_bucket,
        new_bucket_counts_from_its_creation,
        concurrently_made_bucket_is_taken_from_as_it_is,
        waiter_for_a_new_bucket_locks_no_later_bucket,
    )
}

async fn new_bucket_named_twice_grants_its_tokens_once(db: TestDb) -> anyhow::Result<()> {
    let key = db.key();
    let id = db.literal(&key);
    let answers = db.sql(alike(&id, &id)).await?;
    let granted = answers.iter().filter(|row| row.text("outcome").is_ok_and(|outcome| outcome == Some("granted")));
    ensure!(granted.count() > 0, "{answers:?}");
    assert_eq!(db.row(&key).await?.context("made")?.granted, 3);
    Ok(())
}

async fn invalid_id_in_a_batch_creates_no_bucket(db: TestDb) -> anyhow::Result<()> {
    let (existing, new) = (db.bucket(Quota::once(3)?).await?, db.key());
    for id in ["''", "chr(1) || 'window'"] {
        for key in [&existing, &new] {
            let refusal = db.refusal(alike(id, &db.literal(key))).await?;
            assert_eq!(refusal.sqlstate, "23514", "{refusal:?}");
        }
    }
    assert_eq!(db.row(&new).await?, None);
    Ok(())
}

/// Four requests for each of two buckets, in their order. A bucket holds three tokens.
fn alike(one: &str, other: &str) -> String {
    format!(
        "select * from tollgate.take_batch_v1(array[{one}, {other}], array[4, 4], array[1, 1], array[0, 0], array[1, 1], array[3],
                array[60], array['once'], array[null])"
    )
}

async fn new_bucket_counts_from_its_creation(db: TestDb) -> anyhow::Result<()> {
    let (mut maker, key, waiting) = made_meanwhile(&db, Quota::continuous(10, Duration::from_mins(1))?).await?;
    let before = db.now().await?;
    db.until(before + 20 * MS).await?;
    let released = db.now().await?;
    maker.run("rollback").await?;
    ensure!(waiting.await??.into_iter().all(|outcome| outcome.is_ok_and(|taken| taken.is_granted())));
    let row = db.row(&key).await?.context("made")?;
    // A token comes back in six seconds.
    ensure!(row.granted == 1 && row.full_at >= released + 6000 * MS, "{row:?} when released at {released}");
    Ok(())
}

async fn concurrently_made_bucket_is_taken_from_as_it_is(db: TestDb) -> anyhow::Result<()> {
    let (maker, key, waiting) = made_meanwhile(&db, Quota::once(10)?).await?;
    maker.commit().await?;
    let granted = waiting.await??.into_iter().map(|outcome| Ok(outcome?.is_granted()));
    assert_eq!(granted.collect::<anyhow::Result<Vec<bool>>>()?, [true, false, true]);
    assert_eq!(db.row(&key).await?.context("made")?.granted, 10);
    Ok(())
}

/// Another session creates and empties a bucket without committing. A batch requests this bucket, and missing buckets before
/// and after it.
async fn made_meanwhile(
    db: &TestDb,
    quota: Quota,
) -> anyhow::Result<(Session, Key, JoinHandle<Result<Vec<Outcome>, Error>>)> {
    let mut keys = [db.key(), db.key(), db.key()];
    keys.sort();
    let mut maker = Session::begin(db).await?;
    maker
        .run(format!(
            "insert into tollgate.token_buckets (id, capacity, refill_seconds, refill, provisioned, anchor, full_at, granted)
             values ({}, 10, 0, 'once', false, 0, 10, 10)",
            db.literal(&keys[1])
        ))
        .await?;
    let takes = keys.clone().map(|key| Take::from(key).rule(quota.into()));
    let store = db.store().max_attempts(u32::MAX).deadline(Duration::from_mins(1));
    let waiting = tokio::spawn(async move { store.take(&takes).await });
    maker.until_blocking(db).await?;
    let [_, key, _] = keys;
    Ok((maker, key, waiting))
}

/// Covers batches that can create all buckets, and batches with a bucket that must exist.
async fn waiter_for_a_new_bucket_locks_no_later_bucket(db: TestDb) -> anyhow::Result<()> {
    let quota = Quota::once(10)?;
    for rule in [Rule::Quota(quota), Rule::Provisioned] {
        let mut keys = [db.key(), db.key(), db.key()];
        keys.sort();
        let [first, later, last] = keys;
        db.create(&later, quota).await?;
        let mut maker = Session::begin(&db).await?;
        let columns = "id, capacity, refill_seconds, refill, provisioned, anchor";
        maker
            .run(format!(
                "insert into tollgate.token_buckets ({columns}) values ({}, 10, 1, 'once', false, 0)",
                db.literal(&first)
            ))
            .await?;
        // Not in id order.
        let several = |key: &Key| Take::from(later.clone()).rule(rule.clone()).and(key.clone(), quota.into());
        let takes = [several(&last), several(&first)];
        let store = db.store().max_attempts(u32::MAX).deadline(Duration::from_mins(1));
        let waiting = tokio::spawn(async move { store.take(&takes).await });
        maker.until_blocking(&db).await?;
        let lock = format!("select from tollgate.token_buckets where id = {}", db.literal(&later));
        maker.run(format!("{lock} for no key update nowait")).await.context("the waiter locks it")?;
        maker.commit().await?;
        for outcome in waiting.await?? {
            ensure!(outcome?.is_granted(), "each has room for both");
        }
    }
    Ok(())
}
