//! Buckets locked by another transaction, requested through a limiter: only requests for these buckets wait.

use std::time::Duration;

use anyhow::ensure;
use tokio::task::JoinSet;
use tollgate::{Decision, Error, Key, Limiter, Quota, Rule, Store};

use crate::caller_sessions::CallerSessions;
use crate::engines::Kind;
use crate::matrix::{Case, Setup, list};
use crate::session::Session;
use crate::test_db::TestDb;

pub fn cases() -> Vec<Case> {
    // Without layers: the case builds a limiter with these layers.
    // A lock on a file holds all buckets in it.
    list!(
        Setup { needs: |engine| engine.has_sessions && engine.kind != Kind::Sqlite, ..Setup::WITHOUT_LAYERS };
        locked_buckets_do_not_block_others_and_are_answered_later,
    )
}

async fn locked_buckets_do_not_block_others_and_are_answered_later(db: TestDb) -> anyhow::Result<()> {
    let mut keys = Vec::new();
    for _ in 0..2 + OTHERS {
        keys.push(db.bucket(Quota::interval(100, Duration::from_hours(24))?).await?);
    }
    let (locked, others) = keys.split_at(2);
    let mut lock_holder = Session::lock_bucket(&db, &locked[0]).await?;
    lock_holder.take(&db, &locked[1]).await?;

    let sessions = CallerSessions::new(&db, 10).await?;
    let limiter = Limiter::new(sessions.db.store().deadline(LONG), Rule::Provisioned)?;
    let mut behind = JoinSet::new();
    spawn_request(&mut behind, &limiter, &locked[0]);
    sessions.until_waiting(&db, 1).await?;
    for round in 0..ROUNDS {
        let mut requests = JoinSet::new();
        for (place, other) in others.iter().enumerate() {
            // Sent in the middle, so that it shares a call with some of the others.
            if place == OTHERS / 2 {
                spawn_request(&mut behind, &limiter, &locked[1]);
            }
            spawn_request(&mut requests, &limiter, other);
        }
        while let Some(answered) = requests.join_next().await {
            ensure!(answered??.is_granted(), "in round {round}");
        }
        ensure!(behind.try_join_next().is_none(), "a request for a locked bucket was answered");
    }
    lock_holder.commit().await?;
    while let Some(answered) = behind.join_next().await {
        ensure!(answered??.is_granted());
    }
    let mut granted = Vec::new();
    for key in &keys {
        granted.push(db.row(key).await?.map(|row| row.granted));
    }
    // The holder took one token of each locked bucket.
    let mut expected = vec![Some(ROUNDS); 2 + OTHERS];
    (expected[0], expected[1]) = (Some(2), Some(1 + ROUNDS));
    assert_eq!(granted, expected);
    Ok(())
}

fn spawn_request<S: Store>(callers: &mut JoinSet<Result<Decision, Error>>, limiter: &Limiter<S>, key: &Key) {
    let (limiter, key) = (limiter.clone(), key.clone());
    callers.spawn(async move { limiter.allow(&key).await });
}

const OTHERS: usize = 60;
const ROUNDS: i64 = 5;
/// A deadline that is only reached if the others wait for the locked buckets.
const LONG: Duration = Duration::from_secs(45);
