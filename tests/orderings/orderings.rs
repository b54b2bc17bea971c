//! Runs code that orders atomics by hand, in every order that the memory model allows.

// Files of the library, compiled with loom's atomics.
#[path = "../../src/layers/deny_cache/forget_counts.rs"]
mod forget_counts;
#[path = "../../src/layers/lease/keeper_flag.rs"]
mod keeper_flag;
#[allow(dead_code, reason = "the model needs a part of it")]
#[path = "../../src/layers/batcher/queue.rs"]
mod queue;
#[path = "../../src/concurrency/single_flight.rs"]
mod single_flight;

mod concurrency {
    pub(crate) mod atomics {
        pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    }
}

use std::sync::atomic::AtomicUsize as Count;

use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::sync::{Arc, Mutex};
use loom::thread;

use forget_counts::ForgetCounts;
use keeper_flag::KeeperFlag;
use queue::{Batch, Queue, Queued};
use single_flight::SingleFlight;

/// The background task finds no lease and ends, while another thread adds one.
#[test]
fn item_added_while_the_last_task_ends_gets_a_task() {
    static ENDED: Count = Count::new(0);
    static WENT_ON: Count = Count::new(0);
    loom::model(|| {
        let (keeper_flag, leases) = (Arc::new(KeeperFlag::default()), Arc::new(AtomicUsize::new(0)));
        assert!(keeper_flag.begin(), "the first caller starts the task");
        let adder = {
            let (keeper_flag, leases) = (Arc::clone(&keeper_flag), Arc::clone(&leases));
            thread::spawn(move || {
                leases.fetch_add(1, Ordering::Relaxed);
                keeper_flag.begin()
            })
        };
        let ended = keeper_flag.end(|| leases.load(Ordering::Relaxed) == 0);
        let started = adder.join().expect("no panic");
        assert_eq!(ended, started, "exactly one task runs");
        (if ended { &ENDED } else { &WENT_ON }).fetch_add(1, Ordering::Relaxed);
    });
    assert!(ENDED.load(Ordering::Relaxed) > 0 && WENT_ON.load(Ordering::Relaxed) > 0, "both were explored");
}

/// The runtime of the task ends.
#[test]
fn aborted_task_leaves_its_place_to_another() {
    loom::model(|| {
        let keeper_flag = KeeperFlag::default();
        assert!(keeper_flag.begin() && !keeper_flag.begin());
        keeper_flag.break_off();
        assert!(keeper_flag.begin());
    });
}

/// A batch of tokens arrives while the background task checks whether the lease is unused.
#[test]
fn lease_is_not_removed_while_a_batch_arrives() {
    static CAME_BEFORE: Count = Count::new(0);
    loom::model(|| {
        let (debiting, tokens) = (Arc::new(SingleFlight::default()), Arc::new(AtomicUsize::new(0)));
        assert!(debiting.begin(), "no other call is in flight");
        let arriving = {
            let (debiting, tokens) = (Arc::clone(&debiting), Arc::clone(&tokens));
            thread::spawn(move || {
                tokens.store(BATCH, Ordering::Relaxed);
                debiting.end();
            })
        };
        let forgotten = debiting.is_over(|| {
            CAME_BEFORE.fetch_add(1, Ordering::Relaxed);
            tokens.load(Ordering::Relaxed) == 0
        });
        assert!(!forgotten, "its tokens would be lost");
        arriving.join().expect("no panic");
    });
    assert!(CAME_BEFORE.load(Ordering::Relaxed) > 0, "in some order, the batch arrives first");
}

/// A prefetch counts the tokens of the batch before, so the lease never exceeds its maximum.
#[test]
fn request_for_more_sees_the_batch_before() {
    static WAS_NEXT: Count = Count::new(0);
    loom::model(|| {
        let (debiting, tokens) = (Arc::new(SingleFlight::default()), Arc::new(AtomicUsize::new(0)));
        assert!(debiting.begin() && !debiting.begin(), "one at a time");
        let arriving = {
            let (debiting, tokens) = (Arc::clone(&debiting), Arc::clone(&tokens));
            thread::spawn(move || {
                tokens.store(BATCH, Ordering::Relaxed);
                debiting.end();
            })
        };
        if debiting.begin() {
            WAS_NEXT.fetch_add(1, Ordering::Relaxed);
            assert_eq!(tokens.load(Ordering::Relaxed), BATCH);
        }
        arriving.join().expect("no panic");
    });
    assert!(WAS_NEXT.load(Ordering::Relaxed) > 0, "in some order, the first request ends in time");
}

/// A task starts to report denials, while another thread counts one more.
#[test]
fn count_during_a_report_is_in_it_or_the_next() {
    static REPORTED_AT_ONCE: Count = Count::new(0);
    static REPORTED_LATER: Count = Count::new(0);
    loom::model(|| {
        let (reporting, denials) = (Arc::new(SingleFlight::default()), Arc::new(Mutex::new(1)));
        assert!(reporting.begin(), "the first caller starts the task");
        let counter = {
            let (reporting, denials) = (Arc::clone(&reporting), Arc::clone(&denials));
            thread::spawn(move || {
                *denials.lock().expect("no panic") += 1;
                reporting.begin()
            })
        };
        reporting.end();
        let reported = std::mem::take(&mut *denials.lock().expect("no panic"));
        let another_reports = counter.join().expect("no panic");
        assert!(reported == 2 || another_reports, "no task reports the denial");
        (if reported == 2 { &REPORTED_AT_ONCE } else { &REPORTED_LATER }).fetch_add(1, Ordering::Relaxed);
    });
    let reported = [REPORTED_AT_ONCE.load(Ordering::Relaxed), REPORTED_LATER.load(Ordering::Relaxed)];
    assert!(reported.into_iter().all(|times| times > 0), "both were explored");
}

/// While a denial is in flight from the store, tokens are given back and then the key is forgotten.
#[test]
fn denial_from_before_a_refund_is_not_cached() {
    static KEPT_AND_FORGOTTEN: Count = Count::new(0);
    loom::model(|| {
        let forgotten = Arc::new(ForgetCounts::new());
        let (tokens, kept) = (Arc::new(Mutex::new(false)), Arc::new(Mutex::new(false)));
        let giver = {
            let (forgotten, tokens, kept) = (Arc::clone(&forgotten), Arc::clone(&tokens), Arc::clone(&kept));
            thread::spawn(move || {
                *tokens.lock().expect("no panic") = true;
                forgotten.count(KEY);
                if std::mem::take(&mut *kept.lock().expect("no panic")) {
                    KEPT_AND_FORGOTTEN.fetch_add(1, Ordering::Relaxed);
                }
            })
        };
        let times = forgotten.times(KEY);
        let denied = !*tokens.lock().expect("no panic");
        if denied {
            *kept.lock().expect("no panic") = true;
            if forgotten.times(KEY) != times {
                *kept.lock().expect("no panic") = false;
            }
        }
        giver.join().expect("no panic");
        assert!(!*kept.lock().expect("no panic"), "it would deny what the store grants");
    });
    assert!(KEPT_AND_FORGOTTEN.load(Ordering::Relaxed) > 0, "in some order, a cached denial is forgotten");
}

const KEY: u64 = 42;
const BATCH: usize = 10;

/// Two threads push requests for one key while calls end.
#[test]
fn queued_requests_are_called_once_and_one_at_a_time() {
    static SHARED: Count = Count::new(0);
    static APART: Count = Count::new(0);
    loom::model(|| {
        let queue = Arc::new(Mutex::new(Queue::new(1, usize::MAX)));
        let (in_flight, answered) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let send_request = move |queue: &Mutex<Queue<Request>>, in_flight: &AtomicUsize, answered: &AtomicUsize| {
            let mut next = {
                let mut queue = queue.lock().expect("no panic");
                queue.push(Request);
                queue.next()
            };
            while let Some(Batch { requests, flight }) = next {
                if requests.is_empty() {
                    next = queue.lock().expect("no panic").fill_next(flight);
                    continue;
                }
                assert_eq!(in_flight.fetch_add(1, Ordering::Relaxed), 0, "one call for a key at a time");
                answered.fetch_add(requests.len(), Ordering::Relaxed);
                (if requests.len() == 2 { &SHARED } else { &APART }).fetch_add(1, Ordering::Relaxed);
                in_flight.fetch_sub(1, Ordering::Relaxed);
                let mut queue = queue.lock().expect("no panic");
                queue.finish(flight, false);
                next = queue.next();
            }
        };
        let other = {
            let (queue, in_flight, answered) = (Arc::clone(&queue), Arc::clone(&in_flight), Arc::clone(&answered));
            thread::spawn(move || {
                send_request(&queue, &in_flight, &answered);
                send_request(&queue, &in_flight, &answered);
            })
        };
        send_request(&queue, &in_flight, &answered);
        other.join().expect("no panic");
        assert_eq!(answered.load(Ordering::Relaxed), 3, "none is left in the queue");
    });
    assert!(SHARED.load(Ordering::Relaxed) > 0 && APART.load(Ordering::Relaxed) > 0, "both were explored");
}

struct Request;

impl Queued for Request {
    type Key = u8;
    type Kind = u8;

    fn key(&self) -> &u8 {
        &0
    }

    fn kind(&self) -> u8 {
        0
    }

    fn max_batch(&self) -> usize {
        2
    }

    fn max_isolated(&self) -> usize {
        2
    }

    fn is_joined_by(&self, _: &Self) -> bool {
        true
    }

    fn is_cancelled(&self) -> bool {
        false
    }
}
