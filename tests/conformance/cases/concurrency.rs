//! Many processes share one limit. Together they are granted exactly the limit, and every denial is correct.

use std::time::Duration;

use common::fleet::checker::Call;
use tollgate::{
    Key, Quota,
    clock::{Clock, SystemClock},
};

use crate::matrix::{Case, IsolationLevels, Setup, list};
use crate::test_db::TestDb;
use crate::workers::{Callers, Course, Histories, faults, merge, nanoseconds};

mod adjustments;
mod batches;
mod order;
mod queues;
mod receipts;
mod services;
mod several;
mod sweeps;
mod waiters;
mod windows;

pub fn cases() -> Vec<Case> {
    [
        list!(
            Setup { levels: IsolationLevels::Every, runs_alone: true, is_random: true, ..Setup::LAYERED_EVERYWHERE };
            eight_processes_share_a_bucket,
            eight_processes_share_sixteen_buckets,
        ),
        list!(
            Setup { levels: IsolationLevels::Every, is_random: true, ..Setup::LAYERED_EVERYWHERE };
            first_requests_make_each_bucket_once,
        ),
        adjustments::cases(),
        batches::cases(),
        queues::cases(),
        order::cases(),
        receipts::cases(),
        services::cases(),
        several::cases(),
        sweeps::cases(),
        waiters::cases(),
        windows::cases(),
    ]
    .concat()
}

async fn eight_processes_share_a_bucket(db: TestDb) -> anyhow::Result<()> {
    across_a_boundary(&db, 1, 40, 1).await
}

/// A call takes from up to three of the buckets, and other calls take from them in another order.
async fn eight_processes_share_sixteen_buckets(db: TestDb) -> anyhow::Result<()> {
    across_a_boundary(&db, 16, 6, 3).await
}

/// Takes all tokens of the buckets in one period, and continues until the next period is used up, too.
async fn across_a_boundary(db: &TestDb, buckets: usize, capacity: u64, batch: usize) -> anyhow::Result<()> {
    let period = Duration::from_mins(1);
    let quota = Quota::interval(capacity, period)?;
    let mut keys = Vec::new();
    for _ in 0..buckets {
        keys.push(db.bucket(quota).await?);
    }
    let processes = Callers::new(db, &keys, quota).batch(batch).start().await?;

    let end = SystemClock.now() + nanoseconds(Duration::from_secs(1));
    let anchor = end - nanoseconds(period);
    for key in &keys {
        db.pool.run(format!("update {} set anchor = {anchor} where id = {}", db.table(), db.literal(key))).await?;
    }
    let histories = gather(processes.run(&Course { anchor, end }).await?);
    for (place, key) in keys.iter().enumerate() {
        let calls = &histories[&place];
        check(db, key, &quota, anchor, calls).await?;
        let (before, after): (Vec<Call>, Vec<Call>) = calls.iter().partition(|call| call.at < Some(end));
        assert!(granted(&before) > 0, "nothing was asked before the boundary");
        assert_eq!(granted(&after), i64::try_from(capacity)?, "after the boundary");
    }
    Ok(())
}

async fn first_requests_make_each_bucket_once(db: TestDb) -> anyhow::Result<()> {
    // The century that started in 1970 ends after this test.
    let quota = Quota::interval(5, Duration::from_hours(36_525 * 24))?;
    let keys: Vec<Key> = (0..8).map(|_| db.key()).collect();
    let processes = Callers::new(&db, &keys, quota).first_use().start().await?;
    let histories = gather(processes.run(&Course { anchor: 0, end: 0 }).await?);
    for (place, key) in keys.iter().enumerate() {
        check(&db, key, &quota, 0, &histories[&place]).await?;
        assert_eq!(granted(&histories[&place]), 5, "{key}");
    }
    Ok(())
}

async fn check(db: &TestDb, key: &Key, quota: &Quota, anchor: i64, calls: &[Call]) -> anyhow::Result<()> {
    let faults = faults(quota, anchor, calls);
    assert!(faults.is_empty(), "{} faults, the first: {}", faults.len(), faults[0]);
    assert_eq!(db.row(key).await?.map(|row| row.granted), Some(granted(calls)), "what is debited was granted");
    Ok(())
}

fn granted(calls: &[Call]) -> i64 {
    calls.iter().filter(|call| call.granted).map(|call| call.cost).sum()
}

fn gather(reports: Vec<Histories>) -> Histories {
    let mut all = Histories::new();
    for report in reports {
        merge(&mut all, report);
    }
    all
}
