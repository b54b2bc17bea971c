//! Tokens that were taken, and the tokens left in their bucket or window.

use std::time::Duration;

use tollgate::{Quota, Receipt, Reservation, Rule, Store, Take, Window};
use tollgate_tests::scenarios::World;
use uuid::Uuid;

use crate::store::AnyStore;
use crate::test_db::TestDb;

/// [`COST`] tokens of a bucket or sliding window that no other case uses, and which is empty.
pub struct Taken {
    pub reservation: Reservation<AnyStore>,
    pub receipt: Receipt,
    /// A request for one more token.
    pub another: Take,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScheduledTime {
    /// The tokens can be used now.
    Past,
    /// The tokens come in a day, together with as many for others.
    Future,
}

/// The rules of a bucket and of a sliding window, which gain no token while a case runs.
pub fn rules() -> anyhow::Result<[Rule; 2]> {
    let window = Window::new(2 * COST, DAY, Duration::from_hours(1))?;
    Ok([Rule::Quota(Quota::interval(2 * COST, DAY)?), Rule::Window(window)])
}

impl Taken {
    pub async fn new(db: &TestDb, rule: &Rule, scheduled_time: ScheduledTime, has_id: bool) -> anyhow::Result<Self> {
        let mut another = match rule {
            // The bucket's days start at its creation, and not at midnight.
            Rule::Quota(quota) => Take::from(db.bucket(*quota).await?),
            rule => Take::from(db.key()).rule(rule.clone()),
        };
        if scheduled_time == ScheduledTime::Future {
            anyhow::ensure!(db.decide(another.clone().cost(2 * COST)).await?.is_granted(), "no other test uses it");
            another = another.max_wait(DAY * 3 / 2);
        }
        anyhow::ensure!(db.decide(another.clone().cost(COST)).await?.is_granted(), "no other test uses it");
        let mut take = another.clone().cost(COST);
        if has_id {
            take = take.id(Uuid::new_v4(), DAY);
        }
        let reservation = db.limiter_builder().build(rule.clone())?.reserve_request(&take).await?;
        anyhow::ensure!(reservation.is_granted(), "no other test uses it");
        let receipt = reservation.receipts()[0].clone();
        Ok(Self { reservation, receipt, another })
    }
}

/// Takes the tokens that were given back, and returns their number.
pub async fn drain(db: &TestDb, another: &Take) -> anyhow::Result<i64> {
    let (store, mut tokens) = (db.store(), 0);
    while store.take_one(another).await??.is_granted() {
        tokens += 1;
    }
    Ok(tokens)
}

/// The cost of each request.
pub const COST: u64 = 5;
const DAY: Duration = Duration::from_hours(24);
