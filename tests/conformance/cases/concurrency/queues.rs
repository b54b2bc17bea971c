//! I9: queues of waiters in several processes, for one key. Each queue is served in order, and all queues together get the
//! bucket's tokens, to the token.

use std::time::Duration;

use common::fleet::checker::Call;
use tollgate::model::bucket::BucketQuota;
use tollgate::{Quota, Rule, Store, Throttle};

use super::{check, granted};
use crate::matrix::{Case, Setup, list};
use crate::test_db::TestDb;
use crate::workers::{Callers, Course, MAX_WAIT, PROCESSES, WAITERS_PER_PROCESS};

pub fn cases() -> Vec<Case> {
    list!(
        Setup::LAYERED_EVERYWHERE;
        queued_waiters_are_served_in_order_and_at_the_rate,
        queued_waiters_get_consecutive_scheduled_times,
    )
}

async fn queued_waiters_are_served_in_order_and_at_the_rate(db: TestDb) -> anyhow::Result<()> {
    let quota = Quota::continuous(5, Duration::from_millis(50))?;
    let key = db.bucket(quota).await?;
    let processes = Callers::new(&db, std::slice::from_ref(&key), quota).start_waiters().await?;
    let queues: Vec<Vec<Call>> = processes.run(&BEGIN).await?;
    assert_eq!(queues.len(), PROCESSES);
    for queue in &queues {
        assert!(queue.is_sorted_by_key(|call| call.sent), "they came in this order");
        assert!(queue.is_sorted_by_key(|call| call.done), "a waiter was overtaken: {queue:?}");
    }
    let calls = queues.concat();
    assert_eq!(usize::try_from(granted(&calls))?, ALL, "a wait was in vain");
    // At the time of each grant, the grants never exceed what the bucket gave since the waiters came.
    check(&db, &key, &quota, 0, &calls).await
}

/// The waiters also get no less. If all came before the first token, the bucket's row shows that the last scheduled time is as
/// many tokens later as there are waiters. Then the processes are killed.
async fn queued_waiters_get_consecutive_scheduled_times(db: TestDb) -> anyhow::Result<()> {
    let quota = Quota::continuous(5, Duration::from_millis(50))?;
    let key = db.bucket(quota).await?;
    let processes = Callers::new(&db, std::slice::from_ref(&key), quota).start_waiters().await?;
    // Long enough for all waiters to arrive, and short enough for all of them to wait.
    let for_all = Throttle::retry_after(MAX_WAIT / 2);
    assert!(db.store().throttle(&key, &Rule::Provisioned, for_all).await?);
    let before = db.row(&key).await?.expect("it was made");

    let all = i64::try_from(ALL)?;
    let all_are_queued = async {
        loop {
            match db.row(&key).await? {
                Some(row) if row.granted >= all => return anyhow::Ok(row),
                _ => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    };
    let row = tokio::select! {
        row = all_are_queued => row?,
        served = processes.run::<Vec<Call>>(&BEGIN) => anyhow::bail!("served before the first token: {served:?}"),
    };
    assert_eq!((row.granted, row.full_at - before.full_at), (all, all * BucketQuota::at(&quota, 0).token_ticks));
    Ok(())
}

const BEGIN: Course = Course { anchor: 0, end: 0 };
const ALL: usize = PROCESSES * WAITERS_PER_PROCESS;
