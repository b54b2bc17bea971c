//! Decisions for one key are linearizable: one order of all answers is consistent with real time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;
use tollgate::{Quota, Rule, Store, Take};

use crate::matrix::{Case, IsolationLevels, Setup, list};
use crate::store::AnyStore;
use crate::test_db::TestDb;

pub fn cases() -> Vec<Case> {
    list!(
        Setup { levels: IsolationLevels::Every, ..Setup::LAYERED_EVERYWHERE };
        answers_have_one_order_consistent_with_real_time,
    )
}

/// I2. No token comes back, so the remaining tokens give the position of a grant.
async fn answers_have_one_order_consistent_with_real_time(db: TestDb) -> anyhow::Result<()> {
    let store = db.store().max_attempts(u32::MAX).deadline(Duration::from_mins(1));
    let take = Take::from(db.key()).rule(Rule::Quota(Quota::once(TOKENS)?));
    let (steps, mut callers) = (Arc::new(AtomicU64::new(0)), JoinSet::new());
    for _ in 0..CALLERS {
        callers.spawn(send_requests(store.clone(), take.clone(), Arc::clone(&steps)));
    }
    let mut answers = Vec::new();
    for caller in callers.join_all().await {
        answers.extend(caller?);
    }

    // Denials come last: no token was left after the last grant.
    answers.sort_unstable_by_key(|answer| answer.left.map_or(TOKENS, |left| TOKENS - 1 - left));
    let left: Vec<u64> = answers.iter().map_while(|answer| answer.left).collect();
    assert!(left.iter().copied().eq((0..TOKENS).rev()), "each number of tokens left is reported once: {left:?}");
    let mut latest_sent = 0;
    for answer in &answers {
        assert!(latest_sent < answer.done, "{answer:?} was answered before an earlier decision was requested");
        // Denials change nothing, so they can have any order among themselves.
        latest_sent = answer.left.map_or(latest_sent, |_| latest_sent.max(answer.sent));
    }
    Ok(())
}

/// An answer with the times of its request and its arrival, as steps of a clock that all callers share.
#[derive(Debug)]
struct Answer {
    sent: u64,
    done: u64,
    left: Option<u64>,
}

async fn send_requests(store: AnyStore, take: Take, steps: Arc<AtomicU64>) -> anyhow::Result<Vec<Answer>> {
    let step = || steps.fetch_add(1, Ordering::SeqCst);
    let mut answers = Vec::new();
    loop {
        let sent = step();
        let decision = store.take_one(&take).await??;
        let left = decision.remaining().filter(|_| decision.is_granted());
        answers.push(Answer { sent, done: step(), left });
        if left.is_none() {
            return Ok(answers);
        }
    }
}

const CALLERS: u32 = 8;
const TOKENS: u64 = 100;
