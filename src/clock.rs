//! Sources of time in a process.

use std::cell::Cell;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

#[cfg(any(target_os = "android", target_os = "linux"))]
use nix::time::ClockId;
use tokio::time::Instant;

use crate::model::quota::{SECOND_NS, nanoseconds};

/// The time of stores without a server: [`MemoryStore`](crate::MemoryStore), [`LocalBucket`](crate::LocalBucket) and
/// SQLite. Also the time of a [`Lease`](crate::layers::Lease), which can begin anywhere.
///
/// Stores on a database server use the server's clock instead.
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

/// Reads a clock of the system, in nanoseconds.
#[inline]
#[cfg(any(target_os = "android", target_os = "linux"))]
#[allow(clippy::useless_conversion, reason = "they are 32 bits on other targets")]
pub(crate) fn read(clock: ClockId) -> i64 {
    // The standard library has no such clock.
    let time = clock.now().expect("every system of these has this clock");
    i64::from(time.tv_sec()).saturating_mul(SECOND_NS).saturating_add(i64::from(time.tv_nsec()))
}

/// A clock that stands still until a test moves it, so that the test need not sleep. Starts at 1970.
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

    /// Sets the clock to nanoseconds since 1970. Can also set it back.
    pub fn set(&self, now: i64) {
        self.0.store(now, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> i64 {
        self.0.load(Ordering::SeqCst)
    }
}

/// The time of tokio's runtime. A test that pauses the runtime's time (`tokio::time::pause`) or advances it also moves the
/// buckets and the waiting requests.
///
/// Each clock begins in 2001 when it is created. So create a clock for each test, and only for buckets in memory. Outside a
/// runtime, the clock shows real time. Pausing needs tokio's feature `test-util`.
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
        nanoseconds(self.0.elapsed()).saturating_add(START_NS)
    }
}

/// Nanoseconds since 1970.
const START_NS: i64 = 1_000_000_000_000_000_000;

/// The host's clock, at most ten microseconds old: for stores that decide in one process under a lock, as
/// [`MemoryStore`](crate::MemoryStore) and [`LocalBucket`](crate::LocalBucket) do.
///
/// So tokens come at most ten microseconds later, and never earlier. A read takes a third of the time of [`SystemClock`]: while
/// the thread's last reading of the system clock is recent, it reads only the processor's counter.
#[derive(Clone, Copy, Debug)]
pub struct ProcessClock(());

impl Default for ProcessClock {
    /// Creates the clock. The first call in a process measures the speed of the counter, which takes a millisecond or more.
    fn default() -> Self {
        LazyLock::force(&COUNTER);
        Self(())
    }
}

impl Clock for ProcessClock {
    #[inline]
    fn now(&self) -> i64 {
        CACHED.with(|last| read_system_clock(last, &SET, COUNTER.clock.raw(), || SystemClock.now()))
    }
}

/// A thread's last reading of the system clock.
#[derive(Clone, Copy)]
struct CachedTime {
    now: i64,
    /// The counter before the reading.
    ticks: u64,
    /// How often the clock had been set. 0: there was no reading yet.
    set: u32,
}

/// The first thread that notices a clock change makes all others read again. Since the time is read under the bucket's lock, no
/// other thread undoes the first one's write.
#[inline]
fn read_system_clock(last: &Cell<CachedTime>, set: &AtomicU32, ticks: u64, system: impl FnOnce() -> i64) -> i64 {
    let read_system_clock = last.get();
    // If the counter was set back, the difference wraps to a large number.
    let later = ticks.wrapping_sub(read_system_clock.ticks);
    if later < COUNTER.good && read_system_clock.set == set.load(Ordering::Relaxed) {
        return read_system_clock.now;
    }
    let now = system();
    let later = i64::try_from(COUNTER.clock.delta_as_nanos(0, later)).unwrap_or(i64::MAX);
    // The clock was set by more than buckets tolerate and the counter can drift, or this is the first reading.
    if read_system_clock.now.saturating_add(later).abs_diff(now) > (SECOND_NS / 2 + later / 64).unsigned_abs() {
        set.fetch_add(1, Ordering::Relaxed);
    }
    last.set(CachedTime { now, ticks, set: set.load(Ordering::Relaxed) });
    now
}

/// The processor's counter, and the ticks for which a reading stays valid.
struct Counter {
    clock: quanta::Clock,
    good: u64,
}

impl Default for Counter {
    fn default() -> Self {
        let clock = quanta::Clock::new();
        let good = (MAX_AGE_NS << 32) / clock.delta_as_nanos(0, 1 << 32).max(1);
        Self { clock, good }
    }
}

static COUNTER: LazyLock<Counter> = LazyLock::new(Counter::default);
static SET: AtomicU32 = AtomicU32::new(1);

thread_local! {
    static CACHED: Cell<CachedTime> = const { Cell::new(NOTHING) };
}

const NOTHING: CachedTime = CachedTime { now: 0, ticks: 0, set: 0 };
const MAX_AGE_NS: u64 = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: i64 = 3600 * SECOND_NS;

    #[test]
    fn old_reading_reads_the_system_clock_again() {
        let (last, set, good) = (Cell::new(NOTHING), AtomicU32::new(1), COUNTER.good);
        let shown = |ticks, system| read_system_clock(&last, &set, ticks, || system);
        assert_eq!([shown(7, HOUR), shown(6 + good, HOUR + 1), shown(7 + good, HOUR + 2)], [HOUR, HOUR, HOUR + 2]);
        // The counter was set back.
        assert_eq!(shown(6, HOUR + 3), HOUR + 3);
    }

    #[test]
    fn clock_change_makes_every_thread_read_again() {
        let (set, good) = (AtomicU32::new(1), COUNTER.good);
        let [one, other] = [NOTHING; 2].map(Cell::new);
        let begun = 10 * good;
        read_system_clock(&one, &set, begun, || HOUR);
        read_system_clock(&other, &set, begun + good / 2, || HOUR);
        // Forwards and back: the first thread notices the change while the reading of the other is still recent.
        for (ticks, now) in [(begun + good, 2 * HOUR), (begun + 2 * good, HOUR)] {
            assert_eq!(read_system_clock(&one, &set, ticks, || now), now);
            assert_eq!(read_system_clock(&other, &set, ticks + good / 4, || now), now);
        }
    }
}
