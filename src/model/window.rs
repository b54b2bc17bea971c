use std::time::Duration;

use crate::model::QuotaError;
use crate::model::quota::span::nanoseconds;

mod counted;
mod level;
mod ring;
mod row;
mod text;

pub use counted::Counted;
pub use level::WindowLevel;
pub(crate) use ring::{Counts, Ring};
pub(crate) use row::{WindowRow, decide};

/// A sliding window: at most so many requests in any interval, whenever it begins.
///
/// When that many were granted, requests are denied until the earliest of them are an interval ago. The interval is
/// counted in sub-intervals, and one that is just leaving is counted in full: so no interval ever sees more than the
/// maximum, and a request may be denied up to one `resolution` longer than need be. A wait is denied if its turn would begin
/// a sub-interval beyond the thousandth ahead.
///
/// A window is a [`Rule`](crate::Rule), with the same verbs as a quota. It is decided in a call of its own: not in one
/// with other limits.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Limiter, MemoryStore, Window};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tollgate::Error> {
/// let window = Window::new(100, Duration::from_secs(60), Duration::from_secs(5))?;
/// assert_eq!(window, "100 in 60s at 5s".parse()?);
/// let limiter = Limiter::new(MemoryStore::new(), window)?;
/// assert_eq!(limiter.allow("/search").await?.remaining(), 99);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Window {
    most: i64,
    interval_ns: i64,
    resolution_ns: i64,
}

impl Window {
    /// At most `max_requests` in any `interval`, counted in sub-intervals of `resolution`.
    ///
    /// # Errors
    ///
    /// If no request may pass, the interval is above a year, or it is not 1 to 1000 times the resolution, which is a
    /// microsecond or more.
    pub fn new(max_requests: u64, interval: Duration, resolution: Duration) -> Result<Self, QuotaError> {
        let most = i64::try_from(max_requests).ok().filter(|most| *most <= MOST_REQUESTS);
        let most = most.ok_or(QuotaError::CapacityTooLarge(max_requests))?;
        if most < 1 {
            return Err(QuotaError::NoCapacity);
        }
        let (interval_ns, resolution_ns) = (nanoseconds(interval), nanoseconds(resolution));
        let fits = interval_ns <= LONGEST_INTERVAL_NS
            && resolution_ns >= LEAST_RESOLUTION_NS
            && resolution_ns <= interval_ns
            && interval_ns.unsigned_abs().div_ceil(resolution_ns.unsigned_abs()) <= MOST_SUB_INTERVALS;
        if !fits {
            return Err(QuotaError::NoWindow { interval, resolution });
        }
        Ok(Self { most, interval_ns, resolution_ns })
    }

    /// How many requests pass at most in any interval.
    #[must_use]
    pub fn max_requests(&self) -> u64 {
        self.most.unsigned_abs()
    }

    /// The interval.
    #[must_use]
    pub fn interval(&self) -> Duration {
        Duration::from_nanos(self.interval_ns.unsigned_abs())
    }

    /// The sub-intervals that it is counted in.
    #[must_use]
    pub fn resolution(&self) -> Duration {
        Duration::from_nanos(self.resolution_ns.unsigned_abs())
    }

    /// The terms that a row of a store's states.
    pub(crate) fn stored(most: i64, interval_ns: i64, resolution_ns: i64) -> Self {
        Self { most, interval_ns, resolution_ns }
    }

    pub(crate) fn most(&self) -> i64 {
        self.most
    }

    #[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
    pub(crate) fn interval_ns(&self) -> i64 {
        self.interval_ns
    }

    pub(crate) fn resolution_ns(&self) -> i64 {
        self.resolution_ns
    }
}

/// Sums of so many in each of so many sub-intervals stay within the range.
pub(crate) const MOST_REQUESTS: i64 = 1_000_000_000_000;
const LONGEST_INTERVAL_NS: i64 = 366 * 86_400_000_000_000;
const LEAST_RESOLUTION_NS: i64 = 1000;
const MOST_SUB_INTERVALS: u64 = 1000;
