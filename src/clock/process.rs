use std::cell::Cell;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};

use super::{Clock, SystemClock};
use crate::model::quota::SECOND_NS;

/// The host's clock, at most ten microseconds old: for what one process decides, under a lock, as
/// [`MemoryStore`](crate::MemoryStore) and [`LocalBucket`](crate::requester::LocalBucket) do.
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
        HEARD.with(|last| heard(last, &SET, COUNTER.clock.raw(), || SystemClock.now()))
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
fn heard(last: &Cell<Heard>, set: &AtomicU32, ticks: u64, system: impl FnOnce() -> i64) -> i64 {
    let heard = last.get();
    // A counter that was set back is far ahead.
    let later = ticks.wrapping_sub(heard.ticks);
    if later < COUNTER.good && heard.set == set.load(Ordering::Relaxed) {
        return heard.now;
    }
    let now = system();
    let later = i64::try_from(COUNTER.clock.delta_as_nanos(0, later)).unwrap_or(i64::MAX);
    // By more than no bucket minds, and than the counter may be wrong; or nothing was heard before.
    if heard.now.saturating_add(later).abs_diff(now) > (SECOND_NS / 2 + later / 64).unsigned_abs() {
        set.fetch_add(1, Ordering::Relaxed);
    }
    last.set(Heard { now, ticks, set: set.load(Ordering::Relaxed) });
    now
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
    static HEARD: Cell<Heard> = const { Cell::new(NOTHING) };
}

const NOTHING: Heard = Heard { now: 0, ticks: 0, set: 0 };
const GOOD_NS: u64 = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: i64 = 3600 * SECOND_NS;

    #[test]
    fn the_system_is_asked_again_when_what_it_said_is_old() {
        let (last, set, good) = (Cell::new(NOTHING), AtomicU32::new(1), COUNTER.good);
        let shown = |ticks, system| heard(&last, &set, ticks, || system);
        assert_eq!([shown(7, HOUR), shown(6 + good, HOUR + 1), shown(7 + good, HOUR + 2)], [HOUR, HOUR, HOUR + 2]);
        // The counter was set back.
        assert_eq!(shown(6, HOUR + 3), HOUR + 3);
    }

    #[test]
    fn who_has_not_heard_that_the_clock_was_set_asks_again() {
        let (set, good) = (AtomicU32::new(1), COUNTER.good);
        let [one, other] = [NOTHING; 2].map(Cell::new);
        let begun = 10 * good;
        heard(&one, &set, begun, || HOUR);
        heard(&other, &set, begun + good / 2, || HOUR);
        // Forwards and back: the first one hears of it, and what the other heard would be good for a while.
        for (ticks, now) in [(begun + good, 2 * HOUR), (begun + 2 * good, HOUR)] {
            assert_eq!(heard(&one, &set, ticks, || now), now);
            assert_eq!(heard(&other, &set, ticks + good / 4, || now), now);
        }
    }
}
