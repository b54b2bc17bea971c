//! Callers that take from the same limits at once, each in another order.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tollgate::{Key, Quota, Rule, Store, Take};

use crate::caller_sessions::CallerSessions;
use crate::layers::Layers;
use crate::matrix::{Case, IsolationLevels, Setup, list};
use crate::test_db::TestDb;

pub fn cases() -> Vec<Case> {
    list!(
        Setup { levels: IsolationLevels::Every, is_random: true, ..Setup::LAYERED_EVERYWHERE };
        limits_named_in_any_order_are_taken_all_or_none,
    )
}

/// In each round, every other bucket exists already, and the first request creates each of the others.
async fn limits_named_in_any_order_are_taken_all_or_none(db: TestDb) -> anyhow::Result<()> {
    let sessions = CallerSessions::new(&db, CALLERS).await?;
    for round in 0..ROUNDS {
        let mut limits = Vec::new();
        for (place, quota) in QUOTAS.into_iter().enumerate() {
            let quota: Quota = quota.parse()?;
            let is_made = (round + place).is_multiple_of(2);
            limits.push(if is_made {
                (db.bucket(quota).await?, Rule::Provisioned)
            } else {
                (db.key(), Rule::Quota(quota))
            });
        }
        let (granted, attempts) = race(&sessions, &limits).await?;
        // With an isolation level of its own, a request is retried if others created or changed a bucket in the meantime. If
        // the database's routine is the whole transaction, it only waits.
        if db.level.is_none() && db.layers == Layers::None {
            assert_eq!(attempts, 1, "a call met a deadlock in round {round}");
        }
        assert_eq!(granted, LEAST, "what the smallest of them holds, in round {round}");
        for (key, rule) in &limits {
            let debited = db.row(key).await?.map(|row| row.granted);
            assert_eq!(debited, Some(granted), "of {rule:?} in round {round}");
        }
    }
    Ok(())
}

/// Starts all requests at once and waits for their answers. Returns the number of grants and the largest number of attempts of
/// a request.
async fn race(sessions: &CallerSessions, limits: &[(Key, Rule)]) -> anyhow::Result<(i64, u32)> {
    let store = sessions.db.store().max_attempts(u32::MAX).deadline(Duration::from_mins(1));
    let start = Arc::new(Barrier::new(usize::try_from(CALLERS)?));
    let mut callers = JoinSet::new();
    for order in ORDERS.into_iter().cycle().take(usize::try_from(CALLERS)?) {
        let [first, second, third] = order.map(|place| limits[place].clone());
        let take = Take::from(first.0).rule(first.1).and(second.0, second.1).and(third.0, third.1);
        let (store, start) = (store.clone(), Arc::clone(&start));
        callers.spawn(async move {
            start.wait().await;
            let (mut granted, mut attempts) = (0, 0);
            for _ in 0..EACH {
                let decision = store.take_one(&take).await??;
                granted += i64::from(decision.is_granted());
                attempts = attempts.max(decision.attempts());
            }
            anyhow::Ok((granted, attempts))
        });
    }
    let (mut granted, mut attempts) = (0, 0);
    while let Some(caller) = callers.join_next().await {
        let (of_caller, most) = caller??;
        granted += of_caller;
        attempts = attempts.max(most);
    }
    Ok((granted, attempts))
}

const CALLERS: u32 = 12;
const ROUNDS: usize = 8;
/// The total exceeds what the smallest bucket holds.
const EACH: usize = 3;
const QUOTAS: [&str; 3] = ["40 once", "25 once", "30 once"];
const LEAST: i64 = 25;
const ORDERS: [[usize; 3]; 6] = [[0, 1, 2], [2, 1, 0], [1, 2, 0], [0, 2, 1], [2, 0, 1], [1, 0, 2]];
