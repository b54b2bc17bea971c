use super::HostClock;
use crate::clock::{Clock, SystemClock};

/// What the clock showed before the database was asked, which may have to be waited for.
#[derive(Clone, Copy)]
pub(super) struct Reading {
    pub(super) now: i64,
    /// When that was by the host's clock, in milliseconds since 1970.
    pub(super) at_ms: i64,
    /// How many milliseconds later it may still be decided as of then, or of what has passed since.
    pub(super) good_for_ms: i64,
}

impl From<&HostClock> for Reading {
    fn from(clock: &HostClock) -> Self {
        if clock.is_the_hosts {
            let now = clock.now();
            return Self { now, at_ms: milliseconds(now), good_for_ms: LONGEST_MS };
        }
        // Before the clock of somebody's own, which may stand still or go as it will.
        let at_ms = milliseconds(SystemClock.now());
        Self { now: clock.now(), at_ms, good_for_ms: NOTHING_PASSES_MS }
    }
}

fn milliseconds(nanoseconds: i64) -> i64 {
    nanoseconds / 1_000_000
}

/// Longer than a statement waits for the database.
const LONGEST_MS: i64 = 60_000;

/// What the statements take for no time at all.
const NOTHING_PASSES_MS: i64 = 2;
