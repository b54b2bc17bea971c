//! Buckets locked by another transaction, requested through a limiter: only requests for these buckets wait.

use std::time::Duration;

use anyhow::ensure;
use tokio::task::JoinSet;
use tollgate::{Decision, Error, Key, Limiter, Quota, Rule, Store};

use crate::crowd::Crowd;
use crate::engines::Kind;
use crate::held::Held;
use crate::matrix::{Case, Levels, Time, list};
use crate::rig::Rig;

pub fn cases() -> Vec<Case> {
    // A lock on a file holds all buckets in it.
    list!(Levels::Pools, Time::Real, |engine| engine.has_sessions && engine.kind != Kind::Sqlite;
        locked_buckets_do_not_block_others_and_are_answered_later)
    .into()
}

async fn locked_buckets_do_not_block_others_and_are_answered_later(rig: Rig) -> anyhow::Result<()> {
    let mut keys = Vec::new();
    for _ in 0..2 + OTHERS {
        keys.push(rig.bucket(Quota::interval(100, Duration::from_hours(24))?).await?);
    }
    let (locked, others) = keys.split_at(2);
    let mut held = Held::bucket(&rig, &locked[0]).await?;
    held.take(&rig, &locked[1]).await?;

    let crowd = Crowd::new(&rig, 10).await?;
    let limiter = Limiter::new(crowd.rig.store().deadline(LONG), Rule::Provisioned)?;
    let mut behind = JoinSet::new();
    ask(&mut behind, &limiter, &locked[0]);
    crowd.wait(&rig, 1).await?;
    for round in 0..ROUNDS {
        let mut asked = JoinSet::new();
        for (place, other) in others.iter().enumerate() {
            // Sent in the middle, so that it shares a call with some of the others.
            if place == OTHERS / 2 {
                ask(&mut behind, &limiter, &locked[1]);
            }
            ask(&mut asked, &limiter, other);
        }
        while let Some(answered) = asked.join_next().await {
            ensure!(answered??.is_granted(), "in round {round}");
        }
        ensure!(behind.try_join_next().is_none(), "who asked for a bucket that is locked was answered");
    }
    held.commit().await?;
    while let Some(answered) = behind.join_next().await {
        ensure!(answered??.is_granted());
    }
    let mut granted = Vec::new();
    for key in &keys {
        granted.push(rig.row(key).await?.map(|row| row.granted));
    }
    // The holder took one token of each locked bucket.
    let mut expected = vec![Some(ROUNDS); 2 + OTHERS];
    (expected[0], expected[1]) = (Some(2), Some(1 + ROUNDS));
    assert_eq!(granted, expected);
    Ok(())
}

fn ask<S: Store>(callers: &mut JoinSet<Result<Decision, Error>>, limiter: &Limiter<S>, key: &Key) {
    let (limiter, key) = (limiter.clone(), key.clone());
    callers.spawn(async move { limiter.allow(&key).await });
}

const OTHERS: usize = 60;
const ROUNDS: i64 = 5;
/// A deadline that is only reached if the others wait for the locked buckets.
const LONG: Duration = Duration::from_secs(45);
