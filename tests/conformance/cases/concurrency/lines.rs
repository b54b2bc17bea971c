//! I9: lines of waiters in several processes, for one key. Each line is served in its order, and all of them together get
//! what the bucket gives, to the token.

use std::time::Duration;

use tollgate::Quota;

use super::{check, granted};
use crate::checker::Call;
use crate::matrix::{Case, Levels, Time, list};
use crate::rig::Rig;
use crate::workers::{Callers, Course, IN_LINE, PROCESSES};

pub fn cases() -> Vec<Case> {
    list!(Levels::Pools, Time::Real, |_| true; lines_of_waiters_are_served_in_order_and_at_the_rate).into()
}

async fn lines_of_waiters_are_served_in_order_and_at_the_rate(rig: Rig) -> anyhow::Result<()> {
    let quota = Quota::continuous(5, Duration::from_millis(50))?;
    let key = rig.bucket(quota).await?;
    let processes = Callers::new(&rig, std::slice::from_ref(&key), quota).start_waiters().await?;
    let lines: Vec<Vec<Call>> = processes.go(&Course { anchor: 0, end: 0 }).await?;
    assert_eq!(lines.len(), PROCESSES);
    for line in &lines {
        assert!(line.is_sorted_by_key(|call| call.sent), "they came in this order");
        assert!(line.is_sorted_by_key(|call| call.done), "somebody was overtaken: {line:?}");
    }
    let calls = lines.concat();
    assert_eq!(usize::try_from(granted(&calls))?, PROCESSES * IN_LINE, "nobody's wait was in vain");
    // By the time that each was served, never more than the bucket had given since they came.
    check(&rig, &key, &quota, 0, &calls).await
}
