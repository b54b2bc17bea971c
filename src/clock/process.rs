use std::cell::Cell;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};

use super::{Clock, SystemClock};
use crate::quota::SECOND_NS;

/// The host's clock, at most ten microseconds old: for what one process decides, under a lock, as
/// [`MemoryStore`](crate::MemoryStore) and [`LocalBucket`](crate::LocalBucket) do.
///
/// Tokens come so much later, and never sooner. It takes a third of the time of [`SystemClock`], as only the processor's counter is
/// read as long as that says that what a thread last heard of the system is new enough.
#[derive(Clone, Copy, Debug)]
pub struct ProcessClock(());

impl Default for ProcessClock {
    /// Finds out how fast the counter runs, which takes a millisecond or more, once.
    fn default() -> Self {
        LazyLock::force(&COUNTER);
        Self(())
    }
}

impl Clock for ProcessClock {
    #[inline]
    fn now(&self) -> i64 {
        now(|| SystemClock.now())
    }
}

/// What a thread last heard from the system.
#[derive(Clone, Copy)]
struct Heard {
    now: i64,
    /// What the counter showed before.
    ticks: u64,
    /// How often the clock had been set; 0: nothing was heard yet.
    set: u32,
}

/// The first thread that hears of a clock that was set has all others ask again: where the time is read under the lock of
/// what it is for, none of them undoes what that one wrote.
#[inline]
fn now(system: impl FnOnce() -> i64) -> i64 {
    let Counter { clock, good } = &*COUNTER;
    let ticks = clock.raw();
    HEARD.with(|last| {
        let heard = last.get();
        // A counter that was set back is far ahead.
        let later = ticks.wrapping_sub(heard.ticks);
        if later < *good && heard.set == SET.load(Ordering::Relaxed) {
            return heard.now;
        }
        let now = system();
        let later = i64::try_from(clock.delta_as_nanos(0, later)).unwrap_or(i64::MAX);
        // By more than no bucket minds, and than the counter may be wrong; or nothing was heard before.
        if heard.now.saturating_add(later).abs_diff(now) > (SECOND_NS / 2 + later / 64).unsigned_abs() {
            SET.fetch_add(1, Ordering::Relaxed);
        }
        last.set(Heard { now, ticks, set: SET.load(Ordering::Relaxed) });
        now
    })
}

/// The processor's counter, and for how much of it an answer of the system's is good.
struct Counter {
    clock: quanta::Clock,
    good: u64,
}

impl Default for Counter {
    fn default() -> Self {
        let clock = quanta::Clock::new();
        let good = (GOOD_NS << 32) / clock.delta_as_nanos(0, 1 << 32).max(1);
        Self { clock, good }
    }
}

static COUNTER: LazyLock<Counter> = LazyLock::new(Counter::default);
static SET: AtomicU32 = AtomicU32::new(1);

thread_local! {
    static HEARD: Cell<Heard> = const { Cell::new(Heard { now: 0, ticks: 0, set: 0 }) };
}

const GOOD_NS: u64 = 10_000;

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicI64, Ordering};
    use std::thread;

    use crate::quota::SECOND_NS;

    #[test]
    fn the_system_is_asked_once_for_many_times_of_day() {
        let mut asked = 0;
        for _ in 0..100_000 {
            super::now(|| {
                asked += 1;
                0
            });
        }
        assert!(asked < 100_000);
    }

    #[test]
    fn no_thread_goes_back_to_before_the_clock_was_set() {
        let (system, latest) = (AtomicI64::new(0), Mutex::new(0));
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200_000 {
                        let mut latest = latest.lock().expect("no thread panics");
                        let now = super::now(|| system.load(Ordering::SeqCst));
                        assert!(now >= *latest, "{now} after {latest}");
                        *latest = now;
                    }
                });
            }
            for hour in 1..=1000 {
                system.store(hour * 3600 * SECOND_NS, Ordering::SeqCst);
                thread::yield_now();
            }
        });
    }
}
