//! Many callers request far more than the limits allow, through a limiter's default layers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::ensure;
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tollgate::{
    Adjusted, Adjustment, Error, Key, Limiter, Quota, Rule, Store, Take, TakeError, model::Outcome,
    store::Capabilities, store::TestStore,
};

use crate::matrix::{Case, Setup, list};
use crate::store::AnyStore;
use crate::test_db::TestDb;
use crate::workers::nanoseconds;

pub fn cases() -> Vec<Case> {
    // Without layers: the case builds a limiter with these layers, and counts its calls.
    list!(
        Setup { needs: |engine| engine.has_sessions, ..Setup::WITHOUT_LAYERS };
        denied_flood_costs_one_call_per_key_and_second,
    )
}

async fn denied_flood_costs_one_call_per_key_and_second(db: TestDb) -> anyhow::Result<()> {
    let mut keys = Vec::new();
    // Some keys gain tokens now and then, and the others have one token only.
    for (count, quota) in [(5, Quota::continuous(4, Duration::from_secs(1))?), (20, Quota::once(1)?)] {
        for _ in 0..count {
            keys.push(db.bucket(quota).await?);
        }
    }
    let calls = Arc::new(Mutex::new(Calls::new()));
    let limiter = Limiter::new(Counting { store: db.store(), calls: Arc::clone(&calls) }, Rule::Provisioned)?;
    let (start, is_over) = (db.now().await?, Arc::new(AtomicBool::new(false)));
    let mut callers = JoinSet::new();
    for place in 0..CALLERS {
        let (limiter, mut keys, is_over) = (limiter.clone(), keys.clone(), Arc::clone(&is_over));
        let first = place % keys.len();
        keys.rotate_left(first);
        callers.spawn(async move {
            let mut granted = BTreeMap::<Key, u64>::new();
            let mut sent = 0_u64;
            while !is_over.load(Ordering::Relaxed) {
                for key in &keys {
                    let decision = limiter.allow(key).await?;
                    *granted.entry(key.clone()).or_default() += u64::from(decision.is_granted());
                    sent += 1;
                }
                // Lets other tasks run between two rounds.
                tokio::task::yield_now().await;
            }
            anyhow::Ok((granted, sent))
        });
    }
    db.until(start + nanoseconds(Duration::from_millis(1500))).await?;
    is_over.store(true, Ordering::Relaxed);
    let (mut granted, mut sent) = (BTreeMap::<Key, u64>::new(), 0);
    while let Some(caller) = callers.join_next().await {
        let (of_caller, by_caller) = caller??;
        sent += by_caller;
        for (key, grants) in of_caller {
            *granted.entry(key).or_default() += grants;
        }
    }
    // Includes the started second. A caller between a denial and its caching makes one more call.
    let seconds = u64::try_from((db.now().await? - start) / nanoseconds(Duration::from_secs(1)))? + 2;
    let calls = calls.lock();
    let (mut all, mut slow) = (0, 0);
    for call in calls.values() {
        all += call.all;
        slow += call.slow;
    }
    let grants: u64 = granted.values().sum();
    let most = seconds * u64::try_from(keys.len())? + 2 * grants + 2 * slow;
    ensure!(
        all <= most,
        "{all} of {most} calls for {} keys in {seconds} s and {grants} grants; {slow} were slow",
        keys.len()
    );
    ensure!(sent > 20 * all, "{sent} requests for {all} calls are not an attack");
    Ok(())
}

/// Store calls for each key.
type Calls = BTreeMap<Key, Call>;

#[derive(Clone, Copy, Default)]
struct Call {
    all: u64,
    /// Calls so slow that other callers stop waiting for the answer and make one more call, coalesced.
    slow: u64,
}

struct Counting {
    store: AnyStore,
    calls: Arc<Mutex<Calls>>,
}

impl TestStore for Counting {
    fn capabilities(&self) -> Capabilities {
        Store::capabilities(&self.store)
    }

    async fn take(&self, takes: &[Take]) -> Result<Vec<Outcome>, Error> {
        let began = Instant::now();
        let answer = Store::take(&self.store, takes).await;
        let is_slow = began.elapsed() > SLOW;
        let mut calls = self.calls.lock();
        let mut keys: Vec<&Key> = takes.iter().map(Take::key).collect();
        keys.sort();
        keys.dedup();
        for key in keys {
            let call = calls.entry(key.clone()).or_default();
            call.all += 1;
            call.slow += u64::from(is_slow);
        }
        answer
    }

    async fn adjust(&self, adjustments: &[Adjustment]) -> Result<Vec<Result<Adjusted, TakeError>>, Error> {
        Store::adjust(&self.store, adjustments).await
    }
}

const CALLERS: usize = 40;
/// Shorter than the time that a caller waits for another caller's answer.
const SLOW: Duration = Duration::from_millis(50);
