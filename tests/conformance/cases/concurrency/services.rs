//! Processes with different limits, and processes that die.

use std::time::Duration;

use common::fleet::checker::Call;
use tollgate::{
    Limiter, Quota, Rule,
    clock::{Clock, SystemClock},
};

use super::{check, granted};
use crate::matrix::{Case, Setup, list};
use crate::test_db::TestDb;
use crate::workers::{Callers, Course, nanoseconds};

pub fn cases() -> Vec<Case> {
    list!(
        Setup::LAYERED_EVERYWHERE;
        alternating_quotas_exceed_no_window_of_the_larger,
        reservation_of_a_killed_process_stays_taken,
    )
}

/// Each service applies its own limits to the bucket, every ten milliseconds. `scenarios::plans` tests it in injected time.
async fn alternating_quotas_exceed_no_window_of_the_larger(db: TestDb) -> anyhow::Result<()> {
    let key = db.key();
    let quotas = [Quota::per_second(10).burst(20).build()?, Quota::per_second(50).burst(5).build()?];
    let services = quotas.map(|quota| Callers::new(&db, std::slice::from_ref(&key), quota));
    let processes = Callers::start_services(&services).await?;
    let end = SystemClock.now() + nanoseconds(Duration::from_secs(1));
    let calls: Vec<Vec<Call>> = processes.run(&Course { anchor: 0, end }).await?;
    assert!(calls.iter().all(|calls| calls.len() > 10), "both sent requests");
    let calls = calls.concat();
    assert!(granted(&calls) >= 20, "the bucket was full");
    let larger = Quota::per_second(50).burst(20).build()?;
    check(&db, &key, &larger, 0, &calls).await
}

async fn reservation_of_a_killed_process_stays_taken(db: TestDb) -> anyhow::Result<()> {
    let quota = Quota::continuous(2, Duration::from_hours(200))?;
    let key = db.bucket(quota).await?;
    let holder = Callers::new(&db, std::slice::from_ref(&key), quota).start_holder().await?;
    holder.kill().await?;
    let limiter = Limiter::builder(db.store()).max_wait(quota.refill_time() * 4).build(Rule::Provisioned)?;
    assert!(!limiter.allow(&key).await?.is_granted(), "two were to be used at once");
    let next = limiter.reserve(&key).await?;
    let hours = next.decision().wait().as_secs().div_ceil(3600);
    assert_eq!(hours, 300, "two more were promised");
    assert_eq!(db.row(&key).await?.map(|row| row.granted), Some(5));
    Ok(())
}
