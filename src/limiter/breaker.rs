use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::model::error::Cause;
use crate::model::{Error, Key};

/// Who asks a store that does not answer: after some failures in a row one request at a time, so that the others need not
/// wait for what they will hardly get. If all that failed were for one bucket, it may be that somebody holds it: then one more
/// asks, for any other.
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
    /// Since when somebody asks meanwhile; and somebody for another bucket than the only one that fails.
    probed: [Option<Instant>; 2],
    /// Why there was no answer, the last time.
    why: Option<Cause>,
    /// The bucket that all that failed in a row were for, if it is one.
    only: Option<Key>,
}

impl Rest {
    /// In which place those stand that take turns with a request for this bucket.
    fn turn(&self, key: &Key) -> usize {
        usize::from(self.only.as_ref().is_some_and(|only| only != key))
    }
}

/// Somebody who asks. Dropped without an answer, it has found out nothing.
#[derive(Debug)]
pub(super) struct Asking<'a> {
    breaker: &'a Breaker,
    since: Instant,
    /// With whom it takes turns, if it asks alone.
    turn: Option<usize>,
}

impl Breaker {
    pub(super) fn new() -> Self {
        Self { failed: AtomicU32::new(0), answered: AtomicU64::new(0), since: Instant::now(), rest: Mutex::default() }
    }

    /// Whether this request may ask; if not, it is [`Error::NotAsked`].
    pub(super) fn ask(&self, key: &Key) -> Result<Asking<'_>, Error> {
        let (now, mut asking) = (Instant::now(), None);
        if self.failed.load(Ordering::Relaxed) >= IN_A_ROW {
            let mut rest = self.rest.lock();
            let turn = rest.turn(key);
            let left = rest.probed[turn].map_or(Duration::ZERO, |probed| LONGEST.saturating_sub(now - probed));
            if let Some(source) = rest.why.clone().filter(|_| !left.is_zero()) {
                return Err(Error::NotAsked { retry_after: left, source });
            }
            rest.probed[turn] = Some(now);
            asking = Some(turn);
        }
        Ok(Asking { breaker: self, since: now, turn: asking })
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

    pub(super) fn failed(self, key: &Key, error: &Error) {
        let breaker = self.breaker;
        // Others were answered while it waited: it is its bucket that somebody holds, or the line before it.
        if breaker.answered.load(Ordering::Relaxed) > breaker.tick(self.since) {
            return;
        }
        let mut rest = breaker.rest.lock();
        rest.why = Some(Arc::new(error.clone()));
        if breaker.failed.load(Ordering::Relaxed) == 0 {
            rest.only = Some(key.clone());
        } else if rest.turn(key) > 0 {
            rest.only = None;
        }
        drop(rest);
        if self.turn.is_none() {
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
        if let Some(turn) = self.turn {
            self.breaker.rest.lock().probed[turn] = None;
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

    fn key(number: u32) -> Key {
        Key::try_from(format!("user:{number}")).expect("a key")
    }

    /// Of a bucket each.
    fn fail(breaker: &Breaker, times: u32) {
        for number in 0..times {
            breaker.ask(&key(number)).expect("not yet").failed(&key(number), &failure());
        }
    }

    #[test]
    fn while_all_that_fail_are_for_one_bucket_one_more_asks_for_any_other() {
        let (breaker, [held, one, another]) = (Breaker::new(), [0, 1, 2].map(key));
        for _ in 0..IN_A_ROW {
            breaker.ask(&held).expect("not yet").failed(&held, &failure());
        }
        let probe = breaker.ask(&held).expect("one may");
        assert!(breaker.ask(&held).is_err());
        let other = breaker.ask(&one).expect("one for another may");
        assert!(breaker.ask(&another).is_err() && breaker.ask(&held).is_err());
        probe.failed(&held, &failure());
        let probe = breaker.ask(&held).expect("the next one may");
        other.failed(&one, &failure());
        assert!(breaker.ask(&another).is_err() && breaker.ask(&held).is_err(), "it is not the one bucket");
        drop(probe);
        let _another = breaker.ask(&another).expect("one may");
        assert!(breaker.ask(&held).is_err() && breaker.ask(&one).is_err());
    }

    #[test]
    fn that_another_bucket_is_answered_lets_all_ask() {
        let (breaker, [held, one]) = (Breaker::new(), [0, 1].map(key));
        for _ in 0..IN_A_ROW {
            breaker.ask(&held).expect("not yet").failed(&held, &failure());
        }
        let _probe = breaker.ask(&held).expect("one may");
        breaker.ask(&one).expect("one for another may").answered();
        let all = [&held, &held, &one, &one].map(|key| breaker.ask(key));
        assert!(all.iter().all(Result::is_ok));
    }

    #[test]
    fn after_failures_in_a_row_one_asks_at_a_time_until_one_is_answered() {
        let breaker = Breaker::new();
        fail(&breaker, IN_A_ROW);
        let probe = breaker.ask(&key(0)).expect("one may");
        let Err(Error::NotAsked { retry_after, source }) = breaker.ask(&key(0)) else { panic!("nobody else may") };
        assert!(retry_after <= LONGEST);
        assert_eq!(source.to_string(), failure().to_string());
        probe.failed(&key(0), &failure());
        let given_up = breaker.ask(&key(0)).expect("the next one may");
        drop(given_up);
        breaker.ask(&key(0)).expect("and the next").answered();
        let (first, second) = (breaker.ask(&key(0)), breaker.ask(&key(0)));
        assert!(first.is_ok() && second.is_ok(), "all may");
    }

    #[tokio::test(start_paused = true)]
    async fn who_asks_and_is_not_polled_any_more_keeps_the_others_from_it_for_a_while_only() {
        let breaker = Breaker::new();
        fail(&breaker, IN_A_ROW);
        let _stuck = breaker.ask(&key(0)).expect("one may");
        assert!(breaker.ask(&key(0)).is_err());
        advance(LONGEST).await;
        let another = breaker.ask(&key(0)).expect("another one may");
        assert!(breaker.ask(&key(0)).is_err());
        another.answered();
        assert!(breaker.ask(&key(0)).is_ok());
    }

    #[test]
    fn an_answer_between_failures_begins_a_new_row() {
        let breaker = Breaker::new();
        for request in 0..10 * IN_A_ROW {
            let asking = breaker.ask(&key(0)).expect("no row is so long");
            if request % IN_A_ROW == 0 {
                asking.answered();
            } else {
                asking.failed(&key(0), &failure());
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_in_vain_while_others_are_answered_is_no_failure_of_the_store() {
        let breaker = Breaker::new();
        for is_answered in [true, false] {
            let waiting: Vec<_> = (0..2 * IN_A_ROW).map(|_| breaker.ask(&key(0)).expect("not yet")).collect();
            advance(Duration::from_secs(1)).await;
            if is_answered {
                breaker.ask(&key(0)).expect("not yet").answered();
            }
            advance(Duration::from_secs(4)).await;
            for waiting in waiting {
                waiting.failed(&key(0), &failure());
            }
            let (_probe, other) = (breaker.ask(&key(0)).expect("one may in any case"), breaker.ask(&key(0)));
            assert_eq!(other.is_ok(), is_answered);
        }
    }
}
