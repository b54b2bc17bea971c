//! Storage that takes milliseconds for each read of a routine, as over a network: no request is decided again because of time.

use std::collections::HashSet;
use std::time::Duration;

use anyhow::{Context, ensure};
use tollgate::{Quota, Receipt, Rule, Store, Take, Throttle, Window};
use uuid::Uuid;

use crate::engines::Kind;
use crate::matrix::{Case, Setup, list};
use crate::pools::{Scratch, slow_clock, with_session};
use crate::test_db::TestDb;

pub fn cases() -> Vec<Case> {
    // Without layers: the case counts attempts, and how often a session reads the clock.
    list!(
        Setup { needs: |engine| engine.has_routines && engine.has_sessions, ..Setup::WITHOUT_LAYERS };
        slow_storage_decides_each_request_once,
    )
}

async fn slow_storage_decides_each_request_once(db: TestDb) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&db).await?;
    for delay in [1, 3, 10, 50].map(Duration::from_millis) {
        slow_clock(&scratch.db.pool, delay).await?;
        let (session, _) = with_session(&scratch.db, "select 1").await?;
        for (name, takes) in requests(&session).await? {
            let before = reads(&session).await?;
            let outcomes = session.store().deadline(LONG).take(&takes).await;
            for outcome in outcomes.with_context(|| format!("{name}, {delay:?}"))? {
                assert_eq!(outcome?.attempts(), 1, "{name}, {delay:?}");
            }
            let reads = reads(&session).await? - before;
            let keys: HashSet<_> = takes.iter().flat_map(Take::keys).collect();
            let at_most = READS + 2 * i64::try_from(keys.len())?;
            ensure!(reads <= at_most, "{name}, {delay:?}: {reads} reads of the clock");
        }
        for (name, reads) in adjusted(&session).await? {
            ensure!(reads <= READS, "{name}, {delay:?}: {reads} reads of the clock");
        }
    }
    Ok(())
}

/// Requests of each kind. Their buckets get new tokens while a call reads the clock.
async fn requests(db: &TestDb) -> anyhow::Result<Vec<(&'static str, Vec<Take>)>> {
    let quota = Quota::continuous(20, Duration::from_millis(20))?;
    let window = Window::new(10, Duration::from_millis(100), Duration::from_millis(10))?;
    let [one, two] = [db.bucket(quota).await?, db.bucket(quota).await?];
    let id = Uuid::new_v4();
    let take = Take::from(one.clone());
    let first = || Take::from(db.key()).rule(Rule::Quota(quota));
    let both = take.clone().and(two, Rule::Provisioned);
    let counted = Take::from(db.key()).rule(window.into());
    let each = (0..10).map(|_| first()).collect::<Vec<_>>();
    Ok(vec![
        ("a request", vec![take.clone()]),
        ("a request that waits", vec![take.clone().max_wait(A_MINUTE)]),
        ("a request with an id", vec![take.clone().id(id, A_MINUTE)]),
        ("its retry", vec![take.clone().id(id, A_MINUTE)]),
        ("a first request", vec![first()]),
        ("a first request with an id", vec![first().id(id, A_MINUTE)]),
        ("equal requests", vec![take.clone(); 100]),
        ("first equal requests", vec![first(); 100]),
        ("a batch of first requests", each.clone()),
        ("a batch", [each.clone(), vec![each[3].clone(); 99]].concat()),
        ("a batch of other costs", each.iter().cloned().zip(1..).map(|(take, cost)| take.cost(cost)).collect()),
        ("a request for two buckets", vec![both.clone()]),
        ("a request for two buckets with an id", vec![both.clone().id(id, A_MINUTE)]),
        ("requests for two buckets", vec![both; 2]),
        ("a request in a window", vec![counted.clone()]),
        ("a request in a window with an id", vec![counted.id(id, A_MINUTE)]),
    ])
}

/// The number of reads of the clock by each kind of adjustment.
async fn adjusted(db: &TestDb) -> anyhow::Result<Vec<(&'static str, i64)>> {
    let key = db.bucket(Quota::interval(10, Duration::from_hours(1))?).await?;
    let mut counts = Vec::new();
    for kind in ["cancel", "refund", "settle"] {
        let id = Uuid::new_v4();
        ensure!(db.decide(Take::from(key.clone()).cost(2).id(id, A_MINUTE)).await?.is_granted());
        let receipt = Receipt::new(id, key.clone(), 2);
        let adjustment = match kind {
            "cancel" => receipt.cancel(),
            "refund" => receipt.refund(1),
            _ => receipt.settle(1),
        };
        let before = reads(db).await?;
        let adjusted = db.store().deadline(LONG).adjust(&[adjustment]).await?;
        ensure!(adjusted[0].is_ok(), "{kind}: {adjusted:?}");
        counts.push((kind, reads(db).await? - before));
    }
    let before = reads(db).await?;
    db.store().deadline(LONG).throttle(&key, &Rule::Provisioned, Throttle::retry_after(A_MINUTE)).await?;
    counts.push(("throttle", reads(db).await? - before));
    Ok(counts)
}

/// How often the session has read the slow clock.
async fn reads(db: &TestDb) -> anyhow::Result<i64> {
    let reads = match db.engine.kind {
        Kind::Postgres => "select coalesce(nullif(current_setting('tollgate_test.reads', true), ''), '0')::bigint as n",
        _ => "select coalesce(@tollgate_test_reads, 0) as n",
    };
    db.sql(reads).await?[0].number("n")
}

const A_MINUTE: Duration = Duration::from_mins(1);
/// A deadline that no case reaches.
const LONG: Duration = Duration::from_secs(120);
/// More than a call needs that decides each of its rows once, besides two reads for each row of a batch.
const READS: i64 = 10;
