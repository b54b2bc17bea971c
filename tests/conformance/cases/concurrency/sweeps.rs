//! Sweeps during requests for buckets that are full and empty in turn.

use std::time::Duration;

use anyhow::ensure;
use common::fleet::checker::Call;
use tokio::task::JoinSet;
use tollgate::{
    Key, Quota, Rule, Store, Take,
    clock::{Clock, SystemClock},
    store::Maintenance,
};

use super::granted;
use crate::cases::sweeping::age_buckets;
use crate::matrix::{Case, IsolationLevels, Setup, list};
use crate::pools::Scratch;
use crate::store::AnyStore;
use crate::test_db::TestDb;
use crate::workers::{faults, nanoseconds};

pub fn cases() -> Vec<Case> {
    list!(Setup { levels: IsolationLevels::Every, ..Setup::LAYERED_EVERYWHERE }; sweep_deletes_only_full_buckets)
}

/// I12. In each round, the buckets start full and are used until they deny. They grant their capacity and the refill in the
/// meantime, with or without a sweep between two requests.
async fn sweep_deletes_only_full_buckets(db: TestDb) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&db).await?;
    let db = &scratch.db;
    let store = db.store().max_attempts(u32::MAX).deadline(Duration::from_mins(1));
    let quota = Quota::continuous(CAPACITY, REFILL)?;
    let keys: Vec<Key> = (0..KEYS).map(|_| db.key()).collect();
    let mut histories = vec![Vec::new(); keys.len()];
    let mut swept = 0;
    while swept < SWEPT {
        db.until(db.now().await? + nanoseconds(REFILL)).await?;
        age_buckets(db).await?;
        let mut sweepers = JoinSet::new();
        for _ in 0..SWEEPERS {
            let store = store.clone();
            sweepers.spawn(async move { store.sweep(1000).await });
        }
        let mut takers = JoinSet::new();
        for taker in 0..TAKERS {
            let place = taker % keys.len();
            let take = Take::from(keys[place].clone()).rule(Rule::Quota(quota));
            let store = store.clone();
            takers.spawn(async move { anyhow::Ok((place, empty(&store, &take).await?)) });
        }
        let mut round = vec![Vec::new(); keys.len()];
        for taker in takers.join_all().await {
            let (place, calls) = taker?;
            round[place].extend(calls);
        }
        for sweep in sweepers.join_all().await {
            swept += sweep?.deleted;
        }
        for (history, calls) in histories.iter_mut().zip(round) {
            ensure!(granted(&calls) >= i64::try_from(CAPACITY)?, "{} of a full bucket", granted(&calls));
            history.extend(calls);
        }
    }
    for history in &histories {
        let faults = faults(&quota, 0, history);
        assert!(faults.is_empty(), "{} faults, the first: {}", faults.len(), faults[0]);
    }
    Ok(())
}

/// Takes tokens until there are none.
async fn empty(store: &AnyStore, take: &Take) -> anyhow::Result<Vec<Call>> {
    let mut calls: Vec<Call> = Vec::new();
    while calls.last().is_none_or(|call| call.granted) {
        let sent = SystemClock.now();
        let granted = store.take_one(take).await??.is_granted();
        calls.push(Call { sent, done: SystemClock.now(), at: None, cost: 1, granted });
    }
    Ok(calls)
}

const CAPACITY: u64 = 20;
const REFILL: Duration = Duration::from_millis(200);
const KEYS: usize = 2;
const TAKERS: usize = 6;
const SWEEPERS: usize = 3;
/// The number of buckets that are swept.
const SWEPT: u64 = 4;
