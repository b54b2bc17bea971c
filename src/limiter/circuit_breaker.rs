use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::model::error::Cause;
use crate::model::{Error, Key};

/// Opens after several failures in a row. One request at a time then tests the store, so that the others need not wait for an
/// answer that is unlikely. If all failures were for one bucket, another transaction may have locked only that bucket: then one
/// request for another bucket also tests the store.
///
/// The parts are updated without order. At worst, one request more or less calls the store.
#[derive(Debug)]
pub(super) struct CircuitBreaker {
    /// The failures since the last answer.
    failed: AtomicU32,
    /// The tick of the last answer.
    answered: AtomicU64,
    since: Instant,
    rest: Mutex<ProbeState>,
}

#[derive(Debug, Default)]
struct ProbeState {
    /// When each of the two probes began. The second probe is for other buckets than `only`.
    probed: [Option<Instant>; 2],
    /// The last failure.
    why: Option<Cause>,
    /// The bucket of all failures in a row, if they were for one bucket.
    only: Option<Key>,
}

impl ProbeState {
    /// The probe that a request for this bucket would be: its place in `probed`.
    fn turn(&self, key: &Key) -> usize {
        usize::from(self.only.as_ref().is_some_and(|only| only != key))
    }
}

/// A request that calls the store. If it is dropped without an answer, the circuit breaker stays as it is.
#[derive(Debug)]
pub(super) struct Attempt<'a> {
    circuit_breaker: &'a CircuitBreaker,
    since: Instant,
    /// The place of the probe, if the request is one.
    turn: Option<usize>,
}

impl CircuitBreaker {
    pub(super) fn new() -> Self {
        Self { failed: AtomicU32::new(0), answered: AtomicU64::new(0), since: Instant::now(), rest: Mutex::default() }
    }

    /// Admits the request to the store, or returns [`Error::CircuitOpen`].
    pub(super) fn ask(&self, key: &Key) -> Result<Attempt<'_>, Error> {
        let (now, mut asking) = (Instant::now(), None);
        if self.failed.load(Ordering::Relaxed) >= FAILURE_THRESHOLD {
            let mut rest = self.rest.lock();
            let turn = rest.turn(key);
            let left = rest.probed[turn].map_or(Duration::ZERO, |probed| PROBE_TIMEOUT.saturating_sub(now - probed));
            if let Some(source) = rest.why.clone().filter(|_| !left.is_zero()) {
                return Err(Error::CircuitOpen { retry_after: left, source });
            }
            rest.probed[turn] = Some(now);
            asking = Some(turn);
        }
        Ok(Attempt { circuit_breaker: self, since: now, turn: asking })
    }

    /// The tenths of a second since the start, from 1. Coarse, so that answers write the shared tick ten times a second at
    /// most.
    fn tick(&self, instant: Instant) -> u64 {
        let tenths = (instant - self.since).as_millis() / 100;
        u64::try_from(tenths).unwrap_or(u64::MAX - 1) + 1
    }
}

impl Attempt<'_> {
    pub(super) fn answered(self) {
        let circuit_breaker = self.circuit_breaker;
        let tick = circuit_breaker.tick(Instant::now());
        // Written only if it changes, because all threads read it for each decision.
        if circuit_breaker.answered.load(Ordering::Relaxed) != tick {
            circuit_breaker.answered.store(tick, Ordering::Relaxed);
        }
        if circuit_breaker.failed.load(Ordering::Relaxed) > 0 {
            circuit_breaker.failed.store(0, Ordering::Relaxed);
        }
    }

    pub(super) fn failed(self, key: &Key, error: &Error) {
        let circuit_breaker = self.circuit_breaker;
        // The store answered other requests meanwhile, so the delay is a lock of this bucket or the queue.
        if circuit_breaker.answered.load(Ordering::Relaxed) > circuit_breaker.tick(self.since) {
            return;
        }
        let mut rest = circuit_breaker.rest.lock();
        rest.why = Some(Arc::new(error.clone()));
        if circuit_breaker.failed.load(Ordering::Relaxed) == 0 {
            rest.only = Some(key.clone());
        } else if rest.turn(key) > 0 {
            rest.only = None;
        }
        drop(rest);
        if self.turn.is_none() {
            circuit_breaker.failed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How long the request has waited for its answer.
    pub(super) fn waited(&self) -> Duration {
        self.since.elapsed()
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if let Some(turn) = self.turn {
            self.circuit_breaker.rest.lock().probed[turn] = None;
        }
    }
}

/// Failures in a row that open the circuit breaker. Fewer can come from one failed call with several requests.
const FAILURE_THRESHOLD: u32 = 16;

/// After this time another request tests the store, because the caller of a probe may have stopped polling it.
const PROBE_TIMEOUT: Duration = Duration::from_secs(10);

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

    /// Fails requests for different buckets.
    fn fail(circuit_breaker: &CircuitBreaker, times: u32) {
        for number in 0..times {
            circuit_breaker.ask(&key(number)).expect("not yet").failed(&key(number), &failure());
        }
    }

    #[test]
    fn failures_of_one_bucket_allow_one_probe_for_others() {
        let (circuit_breaker, [held, one, another]) = (CircuitBreaker::new(), [0, 1, 2].map(key));
        for _ in 0..FAILURE_THRESHOLD {
            circuit_breaker.ask(&held).expect("not yet").failed(&held, &failure());
        }
        let probe = circuit_breaker.ask(&held).expect("one may");
        assert!(circuit_breaker.ask(&held).is_err());
        let other = circuit_breaker.ask(&one).expect("one for another may");
        assert!(circuit_breaker.ask(&another).is_err() && circuit_breaker.ask(&held).is_err());
        probe.failed(&held, &failure());
        let probe = circuit_breaker.ask(&held).expect("the next one may");
        other.failed(&one, &failure());
        assert!(
            circuit_breaker.ask(&another).is_err() && circuit_breaker.ask(&held).is_err(),
            "it is not the one bucket"
        );
        drop(probe);
        let _another = circuit_breaker.ask(&another).expect("one may");
        assert!(circuit_breaker.ask(&held).is_err() && circuit_breaker.ask(&one).is_err());
    }

    #[test]
    fn answer_for_another_bucket_closes_the_circuit() {
        let (circuit_breaker, [held, one]) = (CircuitBreaker::new(), [0, 1].map(key));
        for _ in 0..FAILURE_THRESHOLD {
            circuit_breaker.ask(&held).expect("not yet").failed(&held, &failure());
        }
        let _probe = circuit_breaker.ask(&held).expect("one may");
        circuit_breaker.ask(&one).expect("one for another may").answered();
        let all = [&held, &held, &one, &one].map(|key| circuit_breaker.ask(key));
        assert!(all.iter().all(Result::is_ok));
    }

    #[test]
    fn open_circuit_probes_one_at_a_time_until_an_answer() {
        let circuit_breaker = CircuitBreaker::new();
        fail(&circuit_breaker, FAILURE_THRESHOLD);
        let probe = circuit_breaker.ask(&key(0)).expect("one may");
        let Err(Error::CircuitOpen { retry_after, source }) = circuit_breaker.ask(&key(0)) else {
            panic!("a second probe")
        };
        assert!(retry_after <= PROBE_TIMEOUT);
        assert_eq!(source.to_string(), failure().to_string());
        probe.failed(&key(0), &failure());
        let given_up = circuit_breaker.ask(&key(0)).expect("the next one may");
        drop(given_up);
        circuit_breaker.ask(&key(0)).expect("and the next").answered();
        let (first, second) = (circuit_breaker.ask(&key(0)), circuit_breaker.ask(&key(0)));
        assert!(first.is_ok() && second.is_ok(), "all may");
    }

    #[tokio::test(start_paused = true)]
    async fn dropped_probe_blocks_other_probes_only_briefly() {
        let circuit_breaker = CircuitBreaker::new();
        fail(&circuit_breaker, FAILURE_THRESHOLD);
        let _stuck = circuit_breaker.ask(&key(0)).expect("one may");
        assert!(circuit_breaker.ask(&key(0)).is_err());
        advance(PROBE_TIMEOUT).await;
        let another = circuit_breaker.ask(&key(0)).expect("another one may");
        assert!(circuit_breaker.ask(&key(0)).is_err());
        another.answered();
        assert!(circuit_breaker.ask(&key(0)).is_ok());
    }

    #[test]
    fn answer_between_failures_keeps_the_circuit_closed() {
        let circuit_breaker = CircuitBreaker::new();
        for request in 0..10 * FAILURE_THRESHOLD {
            let asking = circuit_breaker.ask(&key(0)).expect("no row is so long");
            if request % FAILURE_THRESHOLD == 0 {
                asking.answered();
            } else {
                asking.failed(&key(0), &failure());
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn timeout_while_others_succeed_is_not_a_store_failure() {
        let circuit_breaker = CircuitBreaker::new();
        for is_answered in [true, false] {
            let waiting: Vec<_> =
                (0..2 * FAILURE_THRESHOLD).map(|_| circuit_breaker.ask(&key(0)).expect("not yet")).collect();
            advance(Duration::from_secs(1)).await;
            if is_answered {
                circuit_breaker.ask(&key(0)).expect("not yet").answered();
            }
            advance(Duration::from_secs(4)).await;
            for waiting in waiting {
                waiting.failed(&key(0), &failure());
            }
            let (_probe, other) =
                (circuit_breaker.ask(&key(0)).expect("one may in any case"), circuit_breaker.ask(&key(0)));
            assert_eq!(other.is_ok(), is_answered);
        }
    }
}
