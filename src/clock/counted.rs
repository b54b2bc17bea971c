use std::cell::Cell;
use std::sync::LazyLock;

/// What a thread last heard from the system, and what the processor's counter showed right after that.
#[derive(Clone, Copy)]
struct Heard {
    now: i64,
    ticks: u64,
}

/// The time of day, within a microsecond, by the processor's counter: the system, whose answer takes three times as long, is
/// asked every millisecond.
#[inline]
pub(super) fn now(system: impl FnOnce() -> i64) -> i64 {
    let ticks = COUNTER.raw();
    HEARD.with(|heard| {
        if let Some(Heard { now, ticks: then }) = heard.get() {
            let later = since(then, ticks);
            if later < GOOD_NS {
                return now.saturating_add_unsigned(later);
            }
        }
        let (now, then) = (system(), COUNTER.raw());
        // A thread that was interrupted meanwhile does not know how old the answer is.
        heard.set((since(ticks, then) < PROMPT_NS).then_some(Heard { now, ticks: then }));
        now
    })
}

/// In nanoseconds; a counter that was set back is far ahead.
#[inline]
fn since(then: u64, ticks: u64) -> u64 {
    COUNTER.delta_as_nanos(0, ticks.wrapping_sub(then))
}

static COUNTER: LazyLock<quanta::Clock> = LazyLock::new(quanta::Clock::new);

thread_local! {
    static HEARD: Cell<Option<Heard>> = const { Cell::new(None) };
}

/// For how long an answer is good: neither a clock that is set nor a counter whose rate changes makes a difference.
const GOOD_NS: u64 = 1_000_000;
const PROMPT_NS: u64 = 1_000;

#[cfg(test)]
mod tests {
    #[test]
    fn the_system_is_asked_once_for_many_times_of_day() {
        let (mut asked, mut shown) = (0_usize, Vec::new());
        for _ in 0..100_000 {
            shown.push(super::now(|| {
                asked += 1;
                0
            }));
        }
        shown.dedup();
        assert!(shown.len() > asked, "asked {asked} times for {} times of day", shown.len());
    }
}
