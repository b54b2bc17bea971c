//! Checks the history of one bucket: reports every window in which it granted too much, and every denial for which it had
//! the tokens.

use std::fmt;

use serde::{Deserialize, Serialize};
use tollgate::model::bucket::BucketQuota;

/// A request for tokens and its answer. Times are in nanoseconds since 1970.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub struct Call {
    /// When the caller sent the request, by its own clock.
    pub sent: i64,
    /// When the caller had the answer, by its own clock.
    pub done: i64,
    /// When the request was decided, by the database's clock, if the answer states it.
    pub at: Option<i64>,
    pub cost: i64,
    pub granted: bool,
}

/// The limit of the bucket.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    pub quota: BucketQuota,
    /// The start of the bucket's clock.
    pub anchor: i64,
}

/// A deviation of the bucket from its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    TooManyByDatabase(Window),
    TooManyByCallers(Window),
    LostToDenial { at: i64 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    pub from: i64,
    pub to: i64,
    pub granted: i64,
    pub allowed: i64,
}

impl Limit {
    pub fn faults(&self, calls: &[Call]) -> Vec<Fault> {
        let mut faults: Vec<Fault> = self.over_by_callers(calls).into_iter().map(Fault::TooManyByCallers).collect();
        if calls.iter().all(|call| call.at.is_some()) {
            faults.extend(self.over_by_database(calls).into_iter().map(Fault::TooManyByDatabase));
            faults.extend(self.lost_to_denials(calls).into_iter().map(|at| Fault::LostToDenial { at }));
        }
        faults
    }

    /// The windows that hold too many tokens by the database's time. A window can hold the burst and the tokens that are
    /// refilled within it. A period of an interval quota can hold the capacity.
    ///
    /// Checks all windows in one pass, by virtual scheduling. The debt after a grant is the largest excess over the rate of
    /// all windows that end with the grant. The debt must not exceed the burst.
    fn over_by_database(&self, calls: &[Call]) -> Vec<Window> {
        let mut faults = Vec::new();
        let mut full_at = i64::MIN;
        let mut window = Window { from: 0, to: 0, granted: 0, allowed: 0 };
        for (at, cost) in grants(calls) {
            let clock = self.clock(at);
            if full_at <= clock {
                full_at = clock;
                window = Window { from: at, granted: 0, ..window };
            }
            full_at += cost * self.quota.token_ticks;
            window.granted += cost;
            let excess = full_at - clock - self.quota.burst();
            if excess > 0 {
                let tokens = (excess + self.quota.token_ticks - 1) / self.quota.token_ticks;
                faults.push(Window { to: at, allowed: window.granted - tokens, ..window });
                // These tokens are reported, so the next fault does not include them.
                full_at -= tokens * self.quota.token_ticks;
                window.granted -= tokens;
            }
        }
        faults
    }

    /// The windows that hold too many tokens by the callers' clocks. A call was decided at some instant between its request
    /// and its answer. So the calls that lie entirely in a window must not exceed the most tokens of any window of that
    /// length.
    fn over_by_callers(&self, calls: &[Call]) -> Vec<Window> {
        let mut granted: Vec<&Call> = calls.iter().filter(|call| call.granted).collect();
        granted.sort_unstable_by_key(|call| call.done);
        let mut starts: Vec<i64> = granted.iter().map(|call| call.sent).collect();
        starts.sort_unstable();
        starts.dedup();
        let worst = |from: i64| {
            let mut sum = 0;
            let windows = granted.iter().filter(|call| call.sent >= from).map(|call| {
                sum += call.cost;
                Window { from, to: call.done, granted: sum, allowed: self.most_in(call.done - from) }
            });
            windows
                .filter(|window| window.granted > window.allowed)
                .max_by_key(|window| window.granted - window.allowed)
        };
        starts.into_iter().filter_map(worst).collect()
    }

    /// The most tokens that a window of this length can hold, including both of its ends.
    fn most_in(&self, length: i64) -> i64 {
        let BucketQuota { step_ns, step_ticks, token_ticks, .. } = self.quota;
        (self.quota.burst() + (length / step_ns + 1) * step_ticks) / token_ticks
    }

    /// The denials for which the bucket had the tokens at the time of the denial.
    ///
    /// Grants within [`STALE`] after a denial also count, because a database can read its clock that long before it reads
    /// the bucket. For the same reason, grants that are so close can have been made in any order, even the last one first.
    fn lost_to_denials(&self, calls: &[Call]) -> Vec<i64> {
        let grants = grants(calls);
        let (mut next, mut latest) = (0, 0);
        let mut denials: Vec<(i64, i64)> =
            calls.iter().filter(|call| !call.granted).filter_map(|call| Some((call.at?, call.cost))).collect();
        denials.sort_unstable();
        let mut full_at = i64::MIN;
        denials.retain(|&(at, cost)| {
            while let Some(&(granted_at, cost)) = grants.get(next).filter(|grant| grant.0 <= at + STALE) {
                while grants.get(latest + 1).is_some_and(|grant| grant.0 <= granted_at + STALE) {
                    latest += 1;
                }
                full_at = full_at.max(self.clock(grants[latest].0)) + cost * self.quota.token_ticks;
                next += 1;
            }
            full_at.max(self.clock(at)) + cost * self.quota.token_ticks - self.quota.burst() <= self.clock(at)
        });
        denials.into_iter().map(|(at, _)| at).collect()
    }

    fn clock(&self, at: i64) -> i64 {
        (at - self.anchor).div_euclid(self.quota.step_ns) * self.quota.step_ticks
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Window { from, to, granted, allowed }, clock) = match self {
            Self::LostToDenial { at } => return write!(f, "denied at {at}, although the tokens were there"),
            Self::TooManyByDatabase(window) => (window, "the database's time"),
            Self::TooManyByCallers(window) => (window, "the callers' clocks"),
        };
        write!(f, "by {clock}, {granted} tokens granted in the {} ns from {from}, and {allowed} allowed", to - from)
    }
}

/// The instants and costs of the grants, by the database's time, in its order.
fn grants(calls: &[Call]) -> Vec<(i64, i64)> {
    let granted = calls.iter().filter(|call| call.granted);
    let mut grants: Vec<(i64, i64)> = granted.filter_map(|call| Some((call.at?, call.cost))).collect();
    grants.sort_unstable();
    grants
}

/// The longest time from reading the clock to taking the lock, in nanoseconds.
const STALE: i64 = 3_000_000;
