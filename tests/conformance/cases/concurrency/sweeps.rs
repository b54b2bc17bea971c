//! Sweeps during requests for buckets that are full and empty in turn.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
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
    let (swept, over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let mut sweepers = JoinSet::new();
    for _ in 0..SWEEPERS {
        sweepers.spawn(sweep(store.clone(), Arc::clone(&swept), Arc::clone(&over)));
    }

    let mut histories = vec![Vec::new(); keys.len()];
    while swept.load(Ordering::Relaxed) < SWEPT {
        db.until(db.now().await? + nanoseconds(REFILL)).await?;
        age_buckets(db).await?;
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
        for (history, calls) in histories.iter_mut().zip(round) {
            ensure!(granted(&calls) >= i64::try_from(CAPACITY)?, "{} of a full bucket", granted(&calls));
            history.extend(calls);
        }
    }
    over.store(true, Ordering::Relaxed);
    for sweeper in sweepers.join_all().await {
        sweeper?;
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

async fn sweep(store: AnyStore, swept: Arc<AtomicU64>, over: Arc<AtomicBool>) -> anyhow::Result<()> {
    while !over.load(Ordering::Relaxed) {
        swept.fetch_add(store.sweep(1000).await?.deleted, Ordering::Relaxed);
    }
    Ok(())
}

const CAPACITY: u64 = 20;
const REFILL: Duration = Duration::from_millis(200);
const KEYS: usize = 2;
const TAKERS: usize = 6;
const SWEEPERS: usize = 2;
/// The number of buckets that are swept.
const SWEPT: u64 = 8;
