//! The circuit breaker: opens after failures in a row, and probes the store until it answers.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::time::Instant;

use crate::model::error::Cause;
use crate::model::{Error, Key};

/// Opens after several failures in a row. One probe at a time then tests the store, in a task of the limiter, so that no request
/// waits for an answer that is unlikely. If all failures were for one bucket, another transaction may have locked only that bucket:
/// then one request for another bucket also tests the store.
///
/// The parts are updated without order. At worst, one request more or less calls the store.
#[derive(Debug)]
pub(super) struct CircuitBreaker {
    /// The failures since the last answer.
    failed: AtomicU32,
    /// The tick of the last answer.
    answered: AtomicU64,
    since: Instant,
    /// The bound on a probe.
    probe_timeout: Duration,
    probes: Mutex<ProbeState>,
}

#[derive(Debug, Default)]
struct ProbeState {
    /// When each of the two probes began. The second probe is for other buckets than `sole_key`.
    began: [Option<Instant>; 2],
    last_error: Option<Cause>,
    /// The bucket of all failures in a row, if they were for one bucket.
    sole_key: Option<Key>,
}

impl ProbeState {
    /// The probe that a request for this bucket would be: its place in `began`.
    fn slot(&self, key: &Key) -> usize {
        usize::from(self.sole_key.as_ref().is_some_and(|sole_key| sole_key != key))
    }
}

/// A call of the store by a request, or by a probe that owns its circuit breaker. If it is dropped without an answer, the circuit
/// breaker stays as it is.
#[derive(Debug)]
pub(super) struct Attempt<B: Deref<Target = CircuitBreaker>> {
    circuit_breaker: B,
    since: Instant,
    /// The place of the probe, if the call is one.
    probe_slot: Option<usize>,
}

impl CircuitBreaker {
    pub(super) fn new(deadline: Option<Duration>) -> Self {
        let (failed, answered) = (AtomicU32::new(0), AtomicU64::new(0));
        let probe_timeout = deadline.unwrap_or(PROBE_TIMEOUT);
        Self { failed, answered, since: Instant::now(), probe_timeout, probes: Mutex::default() }
    }

    fn is_open(&self) -> bool {
        self.failed.load(Ordering::Relaxed) >= FAILURE_THRESHOLD
    }

    /// Whether the circuit breaker is open, and a probe tests the store.
    pub(super) fn is_testing(&self) -> bool {
        self.is_open() && self.probes.lock().began.iter().any(Option::is_some)
    }

    /// Admits the request to the store, or returns [`Error::CircuitOpen`]: then begin a [probe](Self::probe).
    ///
    /// The request is the probe if it is for another bucket than all failures, because that bucket may only be locked. So it is if
    /// no task can run the probe, because there is no runtime or it does not poll its tasks.
    pub(super) fn admit(&self, key: &Key) -> Result<Attempt<&Self>, Error> {
        let (now, mut probe_slot) = (Instant::now(), None);
        if self.is_open() {
            let mut probes = self.probes.lock();
            let slot = probes.slot(key);
            let age = probes.began[slot].map(|began| now - began);
            let spawns = || slot == OF_THE_BUCKET && can_spawn();
            let has_probe = age.map_or_else(spawns, |age| age < self.probe_timeout + STUCK_PROBE);
            if let Some(source) = probes.last_error.clone().filter(|_| has_probe) {
                let retry_after = self.probe_timeout.saturating_sub(age.unwrap_or_default());
                return Err(Error::CircuitOpen { retry_after, source });
            }
            probes.began[slot] = Some(now);
            probe_slot = Some(slot);
        }
        Ok(Attempt { circuit_breaker: self, since: now, probe_slot })
    }

    /// Begins a probe for the bucket, if the circuit breaker is open and there is none.
    pub(super) fn probe(self: Arc<Self>, key: &Key) -> Option<Attempt<Arc<Self>>> {
        let (since, slot) = {
            let mut probes = self.probes.lock();
            let (now, slot) = (Instant::now(), probes.slot(key));
            if !can_spawn() || !self.is_open() || probes.began[slot].is_some() {
                return None;
            }
            probes.began[slot] = Some(now);
            (now, slot)
        };
        Some(Attempt { circuit_breaker: self, since, probe_slot: Some(slot) })
    }

    /// The tenths of a second since the start, from 1. Coarse, so that answers write the shared tick ten times a second at
    /// most.
    fn tick(&self, instant: Instant) -> u64 {
        let tenths = (instant - self.since).as_millis() / 100;
        u64::try_from(tenths).unwrap_or(u64::MAX - 1) + 1
    }
}

impl<B: Deref<Target = CircuitBreaker>> Attempt<B> {
    pub(super) fn answered(self) {
        let circuit_breaker = &*self.circuit_breaker;
        let tick = circuit_breaker.tick(Instant::now());
        // Written only if it changes, because all threads read it for each decision.
        if circuit_breaker.answered.load(Ordering::Relaxed) != tick {
            circuit_breaker.answered.store(tick, Ordering::Relaxed);
        }
        if circuit_breaker.failed.load(Ordering::Relaxed) > 0 {
            circuit_breaker.failed.store(0, Ordering::Relaxed);
        }
    }

    /// `is_impatient`: the caller's own deadline was shorter than the limiter's.
    pub(super) fn failed(self, key: &Key, error: &Error, is_impatient: bool) {
        let circuit_breaker = &*self.circuit_breaker;
        // The store answered other requests meanwhile, so the delay is a lock of this bucket or the queue. A short deadline alone
        // tells nothing about a store that has just answered.
        let recent = if is_impatient { RECENT_TICKS } else { 0 };
        let answered = circuit_breaker.answered.load(Ordering::Relaxed);
        if answered > 0 && answered + recent > circuit_breaker.tick(self.since) {
            return;
        }
        let mut probes = circuit_breaker.probes.lock();
        probes.last_error = Some(Arc::new(error.clone()));
        if circuit_breaker.failed.load(Ordering::Relaxed) == 0 {
            probes.sole_key = Some(key.clone());
        } else if probes.slot(key) > 0 {
            probes.sole_key = None;
        }
        drop(probes);
        if self.probe_slot.is_none() {
            circuit_breaker.failed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The bound on a probe.
    pub(super) fn timeout(&self) -> Duration {
        self.circuit_breaker.probe_timeout
    }

    /// Whether a later request is better off without such a failure. `falls_back`: whether a fallback answers instead. Without one, a
    /// fast error is better than an open breaker, because it states what is wrong.
    pub(super) fn counts(&self, error: &Error, falls_back: bool) -> bool {
        falls_back || self.probe_slot.is_some() || self.is_slow() || matches!(error, Error::DeadlineExceeded(_))
    }

    /// Whether the request has waited so long that later requests need not wait as long, as for a table that is locked.
    pub(super) fn is_slow(&self) -> bool {
        self.since.elapsed() >= MIN_OUTAGE_WAIT
    }
}

impl<B: Deref<Target = CircuitBreaker>> Drop for Attempt<B> {
    fn drop(&mut self) {
        if let Some(slot) = self.probe_slot {
            self.circuit_breaker.probes.lock().began[slot] = None;
        }
    }
}

/// The place of the probe, unless it is for another bucket than all failures.
const OF_THE_BUCKET: usize = 0;

fn can_spawn() -> bool {
    Handle::try_current().is_ok()
}

/// Failures in a row that open the circuit breaker. Fewer can come from one failed call with several requests.
const FAILURE_THRESHOLD: u32 = 16;

/// A failure after this time opens the breaker, so that later requests need not wait as long.
const MIN_OUTAGE_WAIT: Duration = Duration::from_secs(1);

/// An answer within a second shows that the store answers, also if a caller's short deadline has passed.
const RECENT_TICKS: u64 = 10;

/// The bound on a probe of a limiter without a deadline, whose store can have a longer one.
const PROBE_TIMEOUT: Duration = Duration::from_secs(10);

/// A probe that has not ended this long after its bound is in a task that does not run.
const STUCK_PROBE: Duration = Duration::from_secs(10);

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
            circuit_breaker.admit(&key(number)).expect("not yet").failed(&key(number), &failure(), false);
        }
    }

    #[test]
    fn failures_of_one_bucket_allow_one_probe_for_others() {
        let (circuit_breaker, [locked, one, another]) = (CircuitBreaker::new(None), [0, 1, 2].map(key));
        for _ in 0..FAILURE_THRESHOLD {
            circuit_breaker.admit(&locked).expect("not yet").failed(&locked, &failure(), false);
        }
        let probe = circuit_breaker.admit(&locked).expect("one may");
        assert!(circuit_breaker.admit(&locked).is_err());
        let other = circuit_breaker.admit(&one).expect("one for another may");
        assert!(circuit_breaker.admit(&another).is_err() && circuit_breaker.admit(&locked).is_err());
        probe.failed(&locked, &failure(), false);
        let probe = circuit_breaker.admit(&locked).expect("the next one may");
        other.failed(&one, &failure(), false);
        assert!(
            circuit_breaker.admit(&another).is_err() && circuit_breaker.admit(&locked).is_err(),
            "it is not the one bucket"
        );
        drop(probe);
        let _another = circuit_breaker.admit(&another).expect("one may");
        assert!(circuit_breaker.admit(&locked).is_err() && circuit_breaker.admit(&one).is_err());
    }

    #[test]
    fn answer_for_another_bucket_closes_the_circuit() {
        let (circuit_breaker, [locked, one]) = (CircuitBreaker::new(None), [0, 1].map(key));
        for _ in 0..FAILURE_THRESHOLD {
            circuit_breaker.admit(&locked).expect("not yet").failed(&locked, &failure(), false);
        }
        let _probe = circuit_breaker.admit(&locked).expect("one may");
        circuit_breaker.admit(&one).expect("one for another may").answered();
        let all = [&locked, &locked, &one, &one].map(|key| circuit_breaker.admit(key));
        assert!(all.iter().all(Result::is_ok));
    }

    #[test]
    fn open_circuit_probes_one_at_a_time_until_an_answer() {
        let circuit_breaker = CircuitBreaker::new(None);
        fail(&circuit_breaker, FAILURE_THRESHOLD);
        let probe = circuit_breaker.admit(&key(0)).expect("one may");
        let Err(Error::CircuitOpen { retry_after, source }) = circuit_breaker.admit(&key(0)) else {
            panic!("a second probe")
        };
        assert!(retry_after <= PROBE_TIMEOUT);
        assert_eq!(source.to_string(), failure().to_string());
        probe.failed(&key(0), &failure(), false);
        let dropped = circuit_breaker.admit(&key(0)).expect("the next one may");
        drop(dropped);
        circuit_breaker.admit(&key(0)).expect("and the next").answered();
        let (first, second) = (circuit_breaker.admit(&key(0)), circuit_breaker.admit(&key(0)));
        assert!(first.is_ok() && second.is_ok(), "all may");
    }

    #[tokio::test(start_paused = true)]
    async fn probe_in_a_task_admits_no_request_beside_it() {
        let circuit_breaker = Arc::new(CircuitBreaker::new(Some(Duration::from_secs(1))));
        let probe = || Arc::clone(&circuit_breaker).probe(&key(0));
        assert!(probe().is_none(), "the circuit is closed");
        fail(&circuit_breaker, FAILURE_THRESHOLD);
        let Err(Error::CircuitOpen { retry_after, .. }) = circuit_breaker.admit(&key(0)) else { panic!("it is open") };
        assert_eq!(retry_after, Duration::from_secs(1));
        let first = probe().expect("one may");
        assert!(probe().is_none() && circuit_breaker.admit(&key(0)).is_err());
        first.failed(&key(0), &failure(), false);
        drop(probe().expect("the next one may"));
        probe().expect("and the next").answered();
        assert!(probe().is_none() && circuit_breaker.admit(&key(0)).is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn stuck_probe_blocks_requests_only_briefly() {
        let circuit_breaker = Arc::new(CircuitBreaker::new(None));
        fail(&circuit_breaker, FAILURE_THRESHOLD);
        let _stuck = Arc::clone(&circuit_breaker).probe(&key(0)).expect("one may");
        assert!(circuit_breaker.admit(&key(0)).is_err());
        advance(PROBE_TIMEOUT + STUCK_PROBE).await;
        let another = circuit_breaker.admit(&key(0)).expect("one request may");
        assert!(circuit_breaker.admit(&key(0)).is_err());
        another.answered();
        assert!(circuit_breaker.admit(&key(0)).is_ok());
    }

    #[test]
    fn answer_between_failures_keeps_the_circuit_closed() {
        let circuit_breaker = CircuitBreaker::new(None);
        for request in 0..10 * FAILURE_THRESHOLD {
            let attempt = circuit_breaker.admit(&key(0)).expect("no row is so long");
            if request % FAILURE_THRESHOLD == 0 {
                attempt.answered();
            } else {
                attempt.failed(&key(0), &failure(), false);
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn timeout_while_others_succeed_is_not_a_store_failure() {
        let circuit_breaker = CircuitBreaker::new(None);
        for is_answered in [true, false] {
            let waiting: Vec<_> =
                (0..2 * FAILURE_THRESHOLD).map(|_| circuit_breaker.admit(&key(0)).expect("not yet")).collect();
            advance(Duration::from_secs(1)).await;
            if is_answered {
                circuit_breaker.admit(&key(0)).expect("not yet").answered();
            }
            advance(Duration::from_secs(4)).await;
            for waiting in waiting {
                waiting.failed(&key(0), &failure(), false);
            }
            assert_eq!(circuit_breaker.admit(&key(0)).is_ok(), is_answered);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn short_deadline_of_a_caller_opens_no_circuit_that_answers() {
        let circuit_breaker = CircuitBreaker::new(None);
        let fails = || {
            for number in 0..FAILURE_THRESHOLD {
                circuit_breaker.admit(&key(number)).expect("not yet").failed(&key(number), &failure(), true);
            }
        };
        circuit_breaker.admit(&key(0)).expect("closed").answered();
        advance(Duration::from_millis(500)).await;
        fails();
        assert!(!circuit_breaker.is_open());
        advance(Duration::from_secs(1)).await;
        fails();
        assert!(circuit_breaker.is_open());
    }
}
