use std::time::Duration;

use tokio::time::Instant;

/// How long small calls take, and so whether a call for each request is still no loss: of a store that has more to do than it
/// can, each of them makes all others slower, and a fuller one hardly takes longer.
#[derive(Debug)]
pub(super) struct Pace {
    /// As of late.
    usual: Duration,
    /// The least of this period, and of the one before it: another network may be slower for good.
    least: Duration,
    least_before: Duration,
    until: Instant,
}

impl Pace {
    pub(super) fn new() -> Self {
        let (least, least_before) = (Duration::MAX, Duration::MAX);
        Self { usual: Duration::ZERO, least, least_before, until: Instant::now() + PERIOD }
    }

    /// Whether they take about as long as when the store has little to do.
    pub(super) fn is_quick(&self) -> bool {
        self.usual <= self.least.min(self.least_before).saturating_mul(SLOWER)
    }

    /// After a small call.
    pub(super) fn took(&mut self, begun: Instant) {
        let now = Instant::now();
        let time = now - begun;
        if now >= self.until {
            self.least_before = std::mem::replace(&mut self.least, Duration::MAX);
            self.until = now + PERIOD;
        }
        self.least = self.least.min(time);
        // One that waits for somebody's lock says little of the others.
        let most = self.least.saturating_mul(SLOWER * SLOWER);
        self.usual = (self.usual * (WEIGHT - 1) + time.min(most)) / WEIGHT;
    }
}

/// On a store that is idle one call may take twice as long as another, and with a few beside it.
const SLOWER: u32 = 4;

/// Of so many calls the last one is as much as one.
const WEIGHT: u32 = 8;

const PERIOD: Duration = Duration::from_mins(1);

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    async fn took(pace: &mut Pace, micros: u64, calls: u32) {
        for _ in 0..calls {
            let begun = Instant::now();
            advance(Duration::from_micros(micros)).await;
            pace.took(begun);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn calls_that_take_four_times_as_long_as_the_least_are_slow_until_they_no_longer_do() {
        let mut pace = Pace::new();
        assert!(pace.is_quick(), "nothing is known");
        took(&mut pace, 300, 20).await;
        took(&mut pace, 1000, 100).await;
        assert!(pace.is_quick());
        took(&mut pace, 300, 20).await;
        took(&mut pace, 20_000_000, 1).await;
        assert!(pace.is_quick(), "one may wait for a lock");
        took(&mut pace, 20_000, 8).await;
        assert!(!pace.is_quick());
        took(&mut pace, 300, 20).await;
        assert!(pace.is_quick());
        took(&mut pace, 1300, 100).await;
        assert!(!pace.is_quick());
    }

    #[tokio::test(start_paused = true)]
    async fn what_takes_longer_for_minutes_is_how_long_it_takes() {
        let mut pace = Pace::new();
        took(&mut pace, 300, 20).await;
        took(&mut pace, 3000, 100).await;
        assert!(!pace.is_quick());
        advance(2 * PERIOD).await;
        took(&mut pace, 3000, 2).await;
        advance(2 * PERIOD).await;
        took(&mut pace, 3000, 2).await;
        assert!(pace.is_quick());
    }
}
