use std::time::Duration;

use tokio::time::Instant;

/// The store's clock, as a process sees it that only hears when an answer was decided.
///
/// An answer is older than it seems by the time it was on its way, and a long one by more. So each is placed by the quickest
/// one before it, as network time is: those who wait for a call of a thousand do not all start later by its length.
#[derive(Debug, Default)]
pub(super) struct StoreClock(Option<(Instant, i64)>);

impl StoreClock {
    /// When something happened here that happened then, in nanoseconds, by the store's clock; it was asked for and answered
    /// between the two instants given, which holds whatever the clock does.
    pub(super) fn here(&mut self, then: i64, asked: Instant, answered: Instant) -> Instant {
        let expected = self.0.and_then(|(here, before)| {
            let passed = then.checked_sub(before)?;
            let duration = Duration::from_nanos(passed.unsigned_abs());
            // The answer to an earlier call may come later.
            if passed < 0 { here.checked_sub(duration) } else { here.checked_add(duration + duration / DRIFT) }
        });
        let here = expected.filter(|here| (asked..answered).contains(here)).unwrap_or(answered);
        self.0 = Some((here, then));
        here
    }
}

/// One part in so many: clocks that agree with their network differ by less. While one is set right it may be by more;
/// then a decision is placed earlier than it was made, but not before it was asked for.
const DRIFT: u32 = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    const MS: i64 = 1_000_000;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_slow_answer_is_placed_by_a_quick_one_before_it() {
        let (mut clock, start) = (StoreClock::default(), Instant::now());
        assert_eq!(clock.here(0, start, start + ms(2)), start + ms(2), "nothing is known before");
        let here = clock.here(10 * MS, start + ms(10), start + ms(60));
        assert!(here >= start + ms(12) && here < start + ms(13), "{:?}", here - start);
    }

    #[test]
    fn answers_that_overtake_each_other_are_placed_alike() {
        let (mut clock, start) = (StoreClock::default(), Instant::now());
        clock.here(0, start, start + ms(2));
        assert!(clock.here(20 * MS, start + ms(20), start + ms(30)) < start + ms(23));
        let earlier = clock.here(10 * MS, start + ms(10), start + ms(60));
        assert!(earlier >= start + ms(12) && earlier < start + ms(13), "{:?}", earlier - start);
    }

    #[test]
    fn a_quicker_answer_than_any_before_is_believed() {
        let (mut clock, start) = (StoreClock::default(), Instant::now());
        assert_eq!(clock.here(0, start, start + ms(50)), start + ms(50));
        assert_eq!(clock.here(60 * MS, start + ms(60), start + ms(61)), start + ms(61));
        assert!(clock.here(70 * MS, start + ms(70), start + ms(90)) < start + ms(72));
    }

    #[test]
    fn a_clock_that_is_set_makes_nothing_earlier_than_it_was_asked_for() {
        let (mut clock, start) = (StoreClock::default(), Instant::now());
        clock.here(3_600_000 * MS, start, start + ms(1));
        // Back by an hour, on by an hour, and beyond what can be told.
        for then in [10 * MS, 3_600_000 * MS, i64::MIN, i64::MAX] {
            assert_eq!(clock.here(then, start + ms(10), start + ms(20)), start + ms(20));
        }
    }
}
