//! Callers that cancel, refund or settle one receipt at once.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tollgate::{Adjusted, Adjustment, Receipt, Store};

use crate::caller_sessions::CallerSessions;
use crate::matrix::{Case, IsolationLevels, Setup, list};
use crate::store::AnyStore;
use crate::taken::{COST, ScheduledTime, Taken, drain, rules};
use crate::test_db::TestDb;

pub fn cases() -> Vec<Case> {
    list!(
        Setup { levels: IsolationLevels::Every, ..Setup::LAYERED_EVERYWHERE };
        only_one_of_many_settlements_of_a_receipt_succeeds,
        only_one_of_many_refunds_of_a_receipt_succeeds,
        only_one_of_many_cancellations_of_a_receipt_succeeds,
        only_one_of_many_mixed_changes_of_a_receipt_succeeds,
    )
}

async fn only_one_of_many_settlements_of_a_receipt_succeeds(db: TestDb) -> anyhow::Result<()> {
    one_does(&db, ScheduledTime::Past, true, &[|receipt| receipt.settle(COST - 3)]).await
}

/// The request had no id: the first adjustment stores the receipt.
async fn only_one_of_many_refunds_of_a_receipt_succeeds(db: TestDb) -> anyhow::Result<()> {
    one_does(&db, ScheduledTime::Past, false, &[|receipt| receipt.refund(3)]).await
}

async fn only_one_of_many_cancellations_of_a_receipt_succeeds(db: TestDb) -> anyhow::Result<()> {
    one_does(&db, ScheduledTime::Future, false, &[Receipt::cancel]).await
}

async fn only_one_of_many_mixed_changes_of_a_receipt_succeeds(db: TestDb) -> anyhow::Result<()> {
    let each: [Adjust; 3] = [Receipt::cancel, |receipt| receipt.refund(3), |receipt| receipt.settle(COST - 2)];
    one_does(&db, ScheduledTime::Future, true, &each).await
}

type Adjust = fn(Receipt) -> Adjustment;

/// Adjusts a bucket and a sliding window. Other requests get exactly the tokens given back.
async fn one_does(db: &TestDb, scheduled_time: ScheduledTime, has_id: bool, each: &[Adjust]) -> anyhow::Result<()> {
    let sessions = CallerSessions::new(db, CALLERS).await?;
    let store = sessions.db.store().max_attempts(u32::MAX).deadline(Duration::from_mins(1));
    for rule in rules()? {
        for round in 0..ROUNDS {
            let Taken { receipt, another, .. } = Taken::new(db, &rule, scheduled_time, has_id).await?;
            let callers = each.iter().cycle().take(usize::try_from(CALLERS)?);
            let answers = race(&store, callers.map(|adjust| adjust(receipt.clone())).collect()).await?;
            let (done, others): (Vec<_>, Vec<_>) =
                answers.iter().copied().partition(|it| matches!(it, Adjusted::Done(_)));
            let [Adjusted::Done(given_back)] = done[..] else {
                anyhow::bail!("{answers:?} in round {round} of {rule:?}")
            };
            assert!(others.iter().all(|it| *it == Adjusted::Repeated), "{answers:?} in round {round} of {rule:?}");
            assert_eq!(drain(db, &another).await?, given_back, "{answers:?} in round {round} of {rule:?}");
        }
    }
    Ok(())
}

/// Starts all adjustments at once, and returns their answers.
async fn race(store: &AnyStore, adjustments: Vec<Adjustment>) -> anyhow::Result<Vec<Adjusted>> {
    let start = Arc::new(Barrier::new(adjustments.len()));
    let mut callers = JoinSet::new();
    for adjustment in adjustments {
        let (store, start) = (store.clone(), Arc::clone(&start));
        callers.spawn(async move {
            start.wait().await;
            anyhow::Ok(store.adjust(&[adjustment]).await?.remove(0)?)
        });
    }
    callers.join_all().await.into_iter().collect()
}

const CALLERS: u32 = 16;
const ROUNDS: u32 = 2;
