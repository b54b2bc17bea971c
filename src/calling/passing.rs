use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;

use super::refusals::Refusals;
use super::ticket::Held;
use crate::{Limiter, Store};

/// What clients have seen of answers, their clones too.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) refusals: Refusals,
    pub(super) missed: AtomicU64,
}

/// Tells the store what an answer says, of all limits at once, and says whether it knows now why the request was refused.
pub(super) async fn pass_on<S: Store>(
    limiter: Limiter<S>,
    seen: Arc<Seen>,
    held: Vec<Held>,
    longest: Duration,
) -> bool {
    let mut passing = JoinSet::new();
    for held in held {
        passing.spawn(pass_on_one(limiter.clone(), Arc::clone(&seen), held, longest));
    }
    let (mut all, mut of_refusal) = (true, true);
    while let Some(passed_on) = passing.join_next().await {
        let (passed_on, refused) = passed_on.unwrap_or((false, true));
        all &= passed_on;
        of_refusal &= passed_on || !refused;
    }
    if !all {
        seen.missed.fetch_add(1, Ordering::Relaxed);
    }
    of_refusal
}

/// Says whether the store knows now, and whether the request was refused because of this limit.
async fn pass_on_one<S: Store>(limiter: Limiter<S>, seen: Arc<Seen>, held: Held, longest: Duration) -> (bool, bool) {
    let Held { key, rule, local, hold, refused, .. } = held;
    let refusal = || {
        if refused {
            seen.refusals.add(&key);
        }
    };
    refusal();
    let passed_on = limiter.hold_back_limit(&key, rule.as_ref(), local.as_deref(), hold.longest(longest)).await.is_ok();
    // Those who were given a turn in between ask again, too.
    refusal();
    (passed_on, refused)
}
