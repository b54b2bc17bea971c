//! Where a process gets its time from.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

#[cfg(any(target_os = "android", target_os = "linux"))]
use nix::time::ClockId;
use tokio::time::Instant;

#[cfg(any(target_os = "android", target_os = "linux"))]
use crate::model::quota::SECOND_NS;
use crate::model::quota::span::nanoseconds;

mod process;

pub use process::ProcessClock;

/// Where a store without a server of its own reads the time: [`MemoryStore`](crate::MemoryStore),
/// [`LocalBucket`](crate::requester::LocalBucket) and SQLite. And what a [`Lease`](crate::layers::Lease) measures time with: for that any
/// beginning will do.
///
/// Stores on a database server never use one: their clock is the server's.
pub trait Clock: Send + Sync + 'static {
    /// Nanoseconds since 1970.
    fn now(&self) -> i64;
}

/// The host's clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[inline]
    fn now(&self) -> i64 {
        nanoseconds(std::time::UNIX_EPOCH.elapsed().unwrap_or_default())
    }
}

/// What a clock of the system shows, in nanoseconds.
#[inline]
#[cfg(any(target_os = "android", target_os = "linux"))]
#[allow(clippy::useless_conversion, reason = "elsewhere than here they are 32 bits")]
pub(crate) fn read(clock: ClockId) -> i64 {
    // As the standard library has no such clock.
    let time = clock.now().expect("every system of these has this clock");
    i64::from(time.tv_sec()).saturating_mul(SECOND_NS).saturating_add(i64::from(time.tv_nsec()))
}

/// A clock that stands still until it is told to move: for tests, which need not sleep then.
///
/// Clones show the same time.
///
/// ```
/// use std::time::Duration;
/// use tollgate::clock::{Clock, ManualClock};
///
/// let clock = ManualClock::default();
/// clock.advance(Duration::from_millis(300));
/// assert_eq!(clock.now(), 300_000_000);
/// ```
#[derive(Clone, Debug, Default)]
pub struct ManualClock(Arc<AtomicI64>);

impl ManualClock {
    /// Moves the clock forwards.
    pub fn advance(&self, by: Duration) {
        self.0.fetch_add(i64::try_from(by.as_nanos()).unwrap_or(i64::MAX), Ordering::SeqCst);
    }

    /// Sets the clock, backwards too, to nanoseconds since 1970.
    pub fn set(&self, now: i64) {
        self.0.store(now, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> i64 {
        self.0.load(Ordering::SeqCst)
    }
}

/// The time of tokio's runtime: a test that pauses it (`tokio::time::pause`) or moves it takes the buckets along, and those who
/// wait.
///
/// It begins in 2001 whenever it is made, so each test makes its own, and buckets outlive it in memory only. Outside a runtime it
/// shows real time. Pausing needs tokio's feature `test-util`.
///
/// ```
/// use tollgate::{clock::RuntimeClock, Error, Limiter, MemoryStore};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Error> {
/// let limiter = Limiter::new(MemoryStore::with_clock(RuntimeClock::default()), "1/s")?;
/// for _ in 0..3 {
///     assert!(limiter.wait("a").await?.is_granted()); // the test lasts for no time, and not for two seconds
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct RuntimeClock(Instant);

impl Default for RuntimeClock {
    fn default() -> Self {
        Self(Instant::now())
    }
}

impl Clock for RuntimeClock {
    fn now(&self) -> i64 {
        nanoseconds(self.0.elapsed()).saturating_add(BEGINNING)
    }
}

/// Nanoseconds since 1970.
const BEGINNING: i64 = 1_000_000_000_000_000_000;
