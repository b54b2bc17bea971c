//! Buckets that are full again at the end of each period.

use std::time::Duration;

use tollgate::Quota;

use crate::matrix::{Case, IsolationLevels, Setup, Time, list};
use crate::test_db::TestDb;

pub fn cases() -> Vec<Case> {
    list!(
        Setup { levels: IsolationLevels::Every, time: Time::Injected, ..Setup::DEFAULT };
        two_a_second_grants_two_in_each_second,
    )
}

async fn two_a_second_grants_two_in_each_second(db: TestDb) -> anyhow::Result<()> {
    let start = 1_800_000_000_123_456_789;
    db.at(start).await?;
    let key = db.bucket(Quota::interval(2, Duration::from_secs(1))?).await?;
    for second in 0..3 {
        for task in 0..5 {
            db.at(start + second * 1_000_000_000 + task * 199_000_000).await?;
            assert_eq!(db.take(&key).await?.is_granted(), task < 2, "second {second}, task {task}");
        }
    }
    Ok(())
}
