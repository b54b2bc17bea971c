//! Sliding windows: their rule, and their level for operators.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::model::quota::{InUnits, nanoseconds, parse_span};
use crate::model::{Key, QuotaError};

mod ring;
mod row;
mod usage;

pub(crate) use ring::{Counts, Ring};
pub(crate) use row::{WindowRow, decide};
pub use usage::WindowUsage;

/// A sliding window: at most a maximum of requests in any interval, whenever the interval begins.
///
/// When the maximum is reached, requests are denied until the earliest grants are an interval ago. The window counts grants
/// in sub-intervals, and counts a sub-interval that is just leaving in full. So no interval ever sees more than the maximum,
/// and a denial can last up to one `resolution` longer than necessary. A wait is denied if it would begin a sub-interval
/// beyond the thousandth ahead.
///
/// A window is a [`Rule`](crate::Rule), with the same methods as a quota. A request cannot combine a window with other limits.
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
/// assert_eq!(limiter.allow("/search").await?.remaining(), Some(99));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Window {
    max_requests: i64,
    interval_ns: i64,
    resolution_ns: i64,
}

impl Window {
    /// Grants at most `max_requests` in any `interval`, counted in sub-intervals of `resolution`.
    ///
    /// # Errors
    ///
    /// Returns an error if `max_requests` is 0 or above 10¹², or if the interval is above 366 days. Also if the resolution is
    /// below a microsecond, or if the interval is not 1 to 1000 times the resolution.
    pub fn new(max_requests: u64, interval: Duration, resolution: Duration) -> Result<Self, QuotaError> {
        let too_large = QuotaError::CapacityTooLarge(max_requests);
        let max_requests = i64::try_from(max_requests).ok().filter(|max| *max <= MAX_REQUESTS).ok_or(too_large)?;
        if max_requests < 1 {
            return Err(QuotaError::ZeroCapacity);
        }
        let (interval_ns, resolution_ns) = (nanoseconds(interval), nanoseconds(resolution));
        let fits = interval_ns <= MAX_INTERVAL_NS
            && resolution_ns >= MIN_RESOLUTION_NS
            && resolution_ns <= interval_ns
            && interval_ns.unsigned_abs().div_ceil(resolution_ns.unsigned_abs()) <= MAX_SUB_INTERVALS;
        if !fits {
            return Err(QuotaError::InvalidWindow { interval, resolution });
        }
        Ok(Self { max_requests, interval_ns, resolution_ns })
    }

    /// Returns the maximum of requests in any interval.
    #[must_use]
    pub fn max_requests(&self) -> u64 {
        self.max_requests.unsigned_abs()
    }

    /// Returns the interval.
    #[must_use]
    pub fn interval(&self) -> Duration {
        Duration::from_nanos(self.interval_ns.unsigned_abs())
    }

    /// Returns the length of the sub-intervals.
    #[must_use]
    pub fn resolution(&self) -> Duration {
        Duration::from_nanos(self.resolution_ns.unsigned_abs())
    }

    /// The window of a stored row, unchecked.
    pub(crate) fn stored(max_requests: i64, interval_ns: i64, resolution_ns: i64) -> Self {
        Self { max_requests, interval_ns, resolution_ns }
    }

    pub(crate) fn signed_max_requests(&self) -> i64 {
        self.max_requests
    }

    #[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
    pub(crate) fn interval_ns(&self) -> i64 {
        self.interval_ns
    }

    pub(crate) fn resolution_ns(&self) -> i64 {
        self.resolution_ns
    }
}

/// Keeps the sums over all sub-intervals within an `i64`.
pub(crate) const MAX_REQUESTS: i64 = 1_000_000_000_000;
const MAX_INTERVAL_NS: i64 = 366 * 86_400_000_000_000;
const MIN_RESOLUTION_NS: i64 = 1000;
const MAX_SUB_INTERVALS: u64 = 1000;

impl fmt::Display for Window {
    /// Writes the shortest text that [`parse`](str::parse) converts to the same window.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in {} at {}", self.max_requests, InUnits(self.interval()), InUnits(self.resolution()))
    }
}

impl FromStr for Window {
    type Err = QuotaError;

    fn from_str(text: &str) -> Result<Self, QuotaError> {
        let not_one = || QuotaError::InvalidWindowText(text.chars().take(60).collect());
        let span = |words: &[&str]| parse_span(words).filter(|span| *span != Duration::MAX).ok_or_else(not_one);
        let words: Vec<&str> = text.split_whitespace().collect();
        let [max_requests, "in", spans @ ..] = &words[..] else { return Err(not_one()) };
        let at = spans.iter().position(|word| *word == "at").ok_or_else(not_one)?;
        Self::new(max_requests.parse().map_err(|_| not_one())?, span(&spans[..at])?, span(&spans[at + 1..])?)
    }
}

/// The counts of a sliding window, at the instant when the store read it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WindowLevel {
    pub(crate) key: Key,
    pub(crate) window: Window,
    pub(crate) counted: u64,
    pub(crate) granted: u64,
    pub(crate) retry_after: Duration,
}

impl WindowLevel {
    /// Returns the key of the window.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// Returns the limits that it was last counted under. After several limits, the interval is the longest since it was
    /// empty.
    #[must_use]
    pub fn window(&self) -> Window {
        self.window
    }

    /// Returns the requests that count now. The part above the maximum is promised to requests that wait.
    #[must_use]
    pub fn counted(&self) -> u64 {
        self.counted
    }

    /// Returns all requests that were ever granted.
    #[must_use]
    pub fn granted(&self) -> u64 {
        self.granted
    }

    /// Returns the time until the counts admit one more request. Zero: now. A [mode](crate::Mode) can decide otherwise.
    #[must_use]
    pub fn retry_after(&self) -> Duration {
        self.retry_after
    }

    /// Returns how many more requests pass now. A negative number is promised to requests that wait.
    #[must_use]
    pub fn available(&self) -> i64 {
        self.window.max_requests - i64::try_from(self.counted).unwrap_or(i64::MAX)
    }

    /// The level of an unused window.
    pub(crate) fn unused(key: Key, window: Window) -> Self {
        Self { key, window, counted: 0, granted: 0, retry_after: Duration::ZERO }
    }

    /// The level of a row of a store that decides in this process, if the row ever counted a request.
    pub(crate) fn new(key: &Key, mut row: WindowRow, now: i64) -> Option<Self> {
        let window = row.limits();
        let ring = &mut row.ring;
        ring.step_back(now);
        (ring.granted > 0).then(|| Self {
            key: key.clone(),
            window,
            counted: ring.counted(&window, now).unsigned_abs(),
            granted: ring.granted.unsigned_abs(),
            retry_after: Duration::from_nanos(
                (ring.earliest(&window, window.max_requests - 1, now) - now).unsigned_abs(),
            ),
        })
    }
}
