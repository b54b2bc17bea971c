use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::Error;
use crate::error::Cause;

/// Who asks a store that does not answer: after some failures in a row one request at a time, so that the others need not
/// wait for what they will hardly get.
///
/// Nothing depends on the order in which threads see its parts: at worst a request more or less asks.
#[derive(Debug)]
pub(super) struct Breaker {
    /// How many failed since one was answered.
    failed: AtomicU32,
    /// When one was answered last, as a tick.
    answered: AtomicU64,
    since: Instant,
    rest: Mutex<Rest>,
}

#[derive(Debug, Default)]
struct Rest {
    /// Since when somebody asks meanwhile.
    probed: Option<Instant>,
    /// Why there was no answer, the last time.
    why: Option<Cause>,
}

/// Somebody who asks. Dropped without an answer, it has found out nothing.
#[derive(Debug)]
pub(super) struct Asking<'a> {
    breaker: &'a Breaker,
    since: Instant,
    alone: bool,
}

impl Breaker {
    pub(super) fn new() -> Self {
        Self { failed: AtomicU32::new(0), answered: AtomicU64::new(0), since: Instant::now(), rest: Mutex::default() }
    }

    /// Whether this request may ask; if not, it is [`Error::NotAsked`].
    pub(super) fn ask(&self) -> Result<Asking<'_>, Error> {
        let (now, alone) = (Instant::now(), self.failed.load(Ordering::Relaxed) >= IN_A_ROW);
        if alone {
            let mut rest = self.rest.lock();
            let left = rest.probed.map_or(Duration::ZERO, |probed| LONGEST.saturating_sub(now - probed));
            if let Some(source) = rest.why.clone().filter(|_| !left.is_zero()) {
                return Err(Error::NotAsked { retry_after: left, source });
            }
            rest.probed = Some(now);
        }
        Ok(Asking { breaker: self, since: now, alone })
    }

    /// Tenths of a second, from 1: so often at most all threads have to be told that there was an answer.
    fn tick(&self, instant: Instant) -> u64 {
        let tenths = (instant - self.since).as_millis() / 100;
        u64::try_from(tenths).unwrap_or(u64::MAX - 1) + 1
    }
}

impl Asking<'_> {
    pub(super) fn answered(self) {
        let breaker = self.breaker;
        let tick = breaker.tick(Instant::now());
        // Written only where it changes: all threads read it, for each decision.
        if breaker.answered.load(Ordering::Relaxed) != tick {
            breaker.answered.store(tick, Ordering::Relaxed);
        }
        if breaker.failed.load(Ordering::Relaxed) > 0 {
            breaker.failed.store(0, Ordering::Relaxed);
        }
    }

    pub(super) fn failed(self, error: &Error) {
        let breaker = self.breaker;
        // Others were answered while it waited: it is its bucket that somebody holds, or the line before it.
        if breaker.answered.load(Ordering::Relaxed) > breaker.tick(self.since) {
            return;
        }
        breaker.rest.lock().why = Some(Arc::new(error.clone()));
        if !self.alone {
            breaker.failed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How long it has waited for its answer.
    pub(super) fn waited(&self) -> Duration {
        self.since.elapsed()
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        if self.alone {
            self.breaker.rest.lock().probed = None;
        }
    }
}

/// Fewer may be those of one call that came to nothing.
const IN_A_ROW: u32 = 16;

/// Who asks for longer may be held by somebody who does not look at it any more: then another one does.
const LONGEST: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    fn failure() -> Error {
        Error::DeadlineExceeded(Duration::from_secs(5))
    }

    fn fail(breaker: &Breaker, times: u32) {
        for _ in 0..times {
            breaker.ask().expect("not yet").failed(&failure());
        }
    }

    #[test]
    fn after_failures_in_a_row_one_asks_at_a_time_until_one_is_answered() {
        let breaker = Breaker::new();
        fail(&breaker, IN_A_ROW);
        let probe = breaker.ask().expect("one may");
        let Err(Error::NotAsked { retry_after, source }) = breaker.ask() else { panic!("nobody else may") };
        assert!(retry_after <= LONGEST);
        assert_eq!(source.to_string(), failure().to_string());
        probe.failed(&failure());
        let given_up = breaker.ask().expect("the next one may");
        drop(given_up);
        breaker.ask().expect("and the next").answered();
        let (first, second) = (breaker.ask(), breaker.ask());
        assert!(first.is_ok() && second.is_ok(), "all may");
    }

    #[tokio::test(start_paused = true)]
    async fn who_asks_and_is_not_polled_any_more_keeps_the_others_from_it_for_a_while_only() {
        let breaker = Breaker::new();
        fail(&breaker, IN_A_ROW);
        let _stuck = breaker.ask().expect("one may");
        assert!(breaker.ask().is_err());
        advance(LONGEST).await;
        let another = breaker.ask().expect("another one may");
        assert!(breaker.ask().is_err());
        another.answered();
        assert!(breaker.ask().is_ok());
    }

    #[test]
    fn an_answer_between_failures_begins_a_new_row() {
        let breaker = Breaker::new();
        for request in 0..10 * IN_A_ROW {
            let asking = breaker.ask().expect("no row is so long");
            if request % IN_A_ROW == 0 {
                asking.answered();
            } else {
                asking.failed(&failure());
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_in_vain_while_others_are_answered_is_no_failure_of_the_store() {
        let breaker = Breaker::new();
        for is_answered in [true, false] {
            let waiting: Vec<_> = (0..2 * IN_A_ROW).map(|_| breaker.ask().expect("not yet")).collect();
            advance(Duration::from_secs(1)).await;
            if is_answered {
                breaker.ask().expect("not yet").answered();
            }
            advance(Duration::from_secs(4)).await;
            for waiting in waiting {
                waiting.failed(&failure());
            }
            let (_probe, other) = (breaker.ask().expect("one may in any case"), breaker.ask());
            assert_eq!(other.is_ok(), is_answered);
        }
    }
}
