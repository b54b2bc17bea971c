//! Comparison of an engine's answers with the in-memory store's.

use std::fmt::Debug;
use std::time::Duration;

use anyhow::ensure;
use chrono::{DateTime, TimeDelta, Utc};
use tollgate::{
    Decision, Error, Quota,
    admin::{BucketLevel, Explanation},
    model::{Outcome, WindowLevel},
};

/// The outcome of the request, unless there is no answer at all.
pub(super) fn outcome(answer: Result<&Decision, &Error>) -> anyhow::Result<Outcome> {
    match answer {
        Ok(decision) => Ok(Ok(decision.clone())),
        Err(Error::Take(refused)) => Ok(Err(refused.clone())),
        Err(error) => Err(error.clone().into()),
    }
}

pub(super) fn agree(expected: &Outcome, found: &Outcome) -> anyhow::Result<()> {
    let shown = |decision: &Decision| {
        (
            (decision.is_granted(), decision.remaining(), decision.limit_index(), decision.mode(), decision.source()),
            (decision.wait(), decision.retry_after(), decision.reset_after()),
        )
    };
    let agreed = match (expected, found) {
        // A decision after a retry differs in the number of attempts.
        (Ok(expected), Ok(found)) if found.attempts() > 1 => shown(expected) == shown(found),
        _ => expected == found,
    };
    ensure!(agreed, "the answer is {found:?}\nand not {expected:?}");
    Ok(())
}

pub(super) fn same<T: Debug + PartialEq>(what: &str, expected: &T, found: &T) -> anyhow::Result<()> {
    ensure!(expected == found, "{what} is answered {found:?}\nand not {expected:?}");
    Ok(())
}

/// Databases give instants to a microsecond or two. They compute the limits of an override that was changed since from the
/// bucket's state.
pub(super) fn same_level(expected: Option<&BucketLevel>, found: Option<&BucketLevel>) -> anyhow::Result<()> {
    let near = |one: Option<DateTime<Utc>>, other: Option<DateTime<Utc>>| match (one, other) {
        (Some(one), Some(other)) => (one - other).abs() <= TimeDelta::microseconds(2),
        (one, other) => one == other,
    };
    let exact = |level: &BucketLevel| {
        let origin = (level.is_provisioned(), level.is_overridden());
        (level.key().clone(), level.plan().cloned(), origin, level.available(), level.granted())
    };
    let agree = match (expected, found) {
        (Some(one), Some(other)) => {
            let capacity = |level: &BucketLevel| level.is_overridden().then(|| level.quota().capacity());
            let is_recomputed = capacity(one).is_some() && capacity(one) == capacity(other);
            exact(one) == exact(other)
                && (one.quota() == other.quota() || is_recomputed)
                && near(one.full_at(), other.full_at())
                && near(one.next_refill_at(), other.next_refill_at())
        }
        (one, other) => one == other,
    };
    ensure!(agree, "a peek is answered {found:?}\nand not {expected:?}");
    Ok(())
}

pub(super) fn same_window(expected: Option<&WindowLevel>, found: Option<&WindowLevel>) -> anyhow::Result<()> {
    let coarse = |level: &WindowLevel| {
        let counts = (level.counted(), level.granted());
        (level.key().clone(), level.window(), counts, milliseconds(level.retry_after()))
    };
    same("a peek at a window", &expected.map(coarse), &found.map(coarse))
}

/// A database computes with the limits of the bucket's last request, until the next request converts the bucket to the
/// effective limits.
pub(super) fn same_explanation(
    mut expected: Explanation,
    mut found: Explanation,
    last: Option<Quota>,
) -> anyhow::Result<()> {
    if last.is_some_and(|last| expected.quota != Some(last)) {
        (expected.available, expected.expected_outcome) = (found.available, found.expected_outcome);
        expected.retry_after = found.retry_after;
    }
    for explanation in [&mut expected, &mut found] {
        explanation.retry_after = explanation.retry_after.map(milliseconds);
    }
    same("an explanation", &expected, &found)
}

/// Rounds up, as the routines do for waits in milliseconds.
fn milliseconds(span: Duration) -> Duration {
    match u64::try_from(span.as_nanos().div_ceil(1_000_000)) {
        Ok(ms) if span != Duration::MAX => Duration::from_millis(ms),
        _ => Duration::MAX,
    }
}
