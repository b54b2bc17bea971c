use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Who asks a store that does not answer: after some failures in a row one request at a time, so that the others need not
/// wait for what they will hardly get.
///
/// Nothing depends on the order in which threads see the two: at worst a request more or less asks.
#[derive(Debug, Default)]
pub(super) struct Breaker {
    /// How many failed since one was answered.
    failed: AtomicU32,
    /// Since when somebody asks meanwhile.
    probed: Mutex<Option<Instant>>,
}

/// Somebody who asks. Dropped without an answer, it has found out nothing.
#[derive(Debug)]
pub(super) struct Asking<'a> {
    breaker: &'a Breaker,
    alone: bool,
}

/// Why a store was not asked.
#[derive(Debug, thiserror::Error)]
#[error("{IN_A_ROW} requests in a row had no answer: until there is one, they are sent one at a time")]
pub(super) struct Resting;

impl Breaker {
    /// Whether this request may ask.
    pub(super) fn ask(&self) -> Result<Asking<'_>, Resting> {
        let alone = self.failed.load(Ordering::Relaxed) >= IN_A_ROW;
        if alone {
            let mut probed = self.probed.lock();
            if probed.is_some_and(|since| since.elapsed() < LONGEST) {
                return Err(Resting);
            }
            *probed = Some(Instant::now());
        }
        Ok(Asking { breaker: self, alone })
    }
}

impl Asking<'_> {
    pub(super) fn has(self, answer: bool) {
        let failed = &self.breaker.failed;
        // Written only where it changes: all threads read it, for each decision.
        if answer && failed.load(Ordering::Relaxed) > 0 {
            failed.store(0, Ordering::Relaxed);
        } else if !answer && !self.alone {
            failed.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        if self.alone {
            *self.breaker.probed.lock() = None;
        }
    }
}

/// One bucket that somebody holds does not come to that while others are answered.
const IN_A_ROW: u32 = 16;

/// Who asks for longer may be held by somebody who does not look at it any more: then another one does.
const LONGEST: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_failures_in_a_row_one_asks_at_a_time_until_one_is_answered() {
        let breaker = Breaker::default();
        for _ in 0..IN_A_ROW {
            breaker.ask().expect("not yet").has(false);
        }
        let probe = breaker.ask().expect("one may");
        assert!(breaker.ask().is_err());
        probe.has(false);
        let given_up = breaker.ask().expect("the next one may");
        drop(given_up);
        breaker.ask().expect("and the next").has(true);
        let (first, second) = (breaker.ask(), breaker.ask());
        assert!(first.is_ok() && second.is_ok(), "all may");
    }

    #[tokio::test(start_paused = true)]
    async fn who_asks_and_is_not_polled_any_more_keeps_the_others_from_it_for_a_while_only() {
        let breaker = Breaker::default();
        for _ in 0..IN_A_ROW {
            breaker.ask().expect("not yet").has(false);
        }
        let _stuck = breaker.ask().expect("one may");
        assert!(breaker.ask().is_err());
        tokio::time::advance(LONGEST).await;
        let another = breaker.ask().expect("another one may");
        assert!(breaker.ask().is_err());
        another.has(true);
        assert!(breaker.ask().is_ok());
    }

    #[test]
    fn an_answer_between_failures_begins_a_new_row() {
        let breaker = Breaker::default();
        for request in 0..10 * IN_A_ROW {
            breaker.ask().expect("no row is so long").has(request % IN_A_ROW == 0);
        }
    }
}
