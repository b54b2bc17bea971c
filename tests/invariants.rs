//! Invariants by number, with their tests. The tests in this file check the arithmetic and `MemoryStore`.
//! `conformance::sequences` and `conformance::oracle` compare the databases with both.
//!
//! | | holds | tests |
//! |---|---|---|
//! | I1 | no window passes more than burst + rate × its length | `i1_*`, `arithmetic::no_window_passes_more_than_the_quota`, `conformance::{fleet, concurrency}::*`, `checker::*` |
//! | I2 | decisions for one key are linearizable | `i2_*`, `conformance::concurrency::order::*`, `conformance::oracle::*`, `conformance::concurrency::eight_processes_share_a_bucket` |
//! | I3 | tokens are neither lost nor made | `i3_*`, `waiters::order::cancelled_waits_change_no_order_and_lose_no_token` |
//! | I4 | a request with an unknown outcome is charged at most once, and never reported as granted | `i4_*`, `conformance::faults::{lost, interrupted}::*`, `conformance::cancellation::*`, `scenarios::receipts::repeated_request_with_id_*` |
//! | I5 | only taken tokens are given back, and only once | `i5_*`, `scenarios::receipts::*` |
//! | I6 | a denied request is granted at `retry_after`, and not earlier | `i6_*`, `arithmetic::denial_ends_exactly_at_retry_after`, `conformance::invariants::denied_request_is_granted_exactly_at_retry_after` |
//! | I7 | requests for one key do not affect another key | `i7_*`, `conformance::keys::*`, `scenarios::inputs::any_text_is_a_separate_key_*` |
//! | I8 | with several limits, all grant or none takes anything | `i8_*`, `scenarios::several::*` |
//! | I9 | waits are scheduled in order of arrival | `waiters::order::*`, `conformance::concurrency::queues::*`, `rate::reservation_never_overtakes_*` |
//! | I12 | deleting a full bucket changes no decision | `i12_*`, `conformance::concurrency::sweeps::*`, `conformance::sweeping::decisions_are_the_same_after_a_sweep`, `memory::full_store_deletes_only_full_buckets` |
//! | I13 | a changed quota keeps earned tokens, and grants none twice | `i13_*`, `arithmetic::changed_quota_*`, `conformance::value_ranges::*`, `scenarios::plans::*` |
//! | I14 | any input gives an answer or a typed error | `arithmetic::i14_*`, `scenarios::inputs::*`, `arithmetic::no_sum_overflows_before_2160`, `conformance::value_ranges::*` |

use std::collections::HashMap;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use tollgate::model::bucket::{Bucket, BucketQuota, BucketRequest, GrantRecord};
use tollgate::{
    Adjusted, Adjustment, Error, Key, Limiter, MemoryStore, Quota, Reservation, Rule, Store, Take, TakeError,
    clock::ManualClock, model::Outcome, store::Capabilities, store::TestStore,
};

type Memory = Arc<MemoryStore<ManualClock>>;

fn memory() -> (Memory, ManualClock) {
    let clock = ManualClock::default();
    clock.set(START);
    (Arc::new(MemoryStore::with_clock(clock.clone())), clock)
}

/// Returns the output of a future that never waits.
fn at_once<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("a store in this process answers at once"),
    }
}

/// A connection to a store that loses calls. Each call removes the last of `cuts`: `true` loses the answer, and `false` loses
/// the request.
struct Cut {
    store: Memory,
    cuts: Mutex<Vec<bool>>,
}

impl TestStore for Cut {
    fn capabilities(&self) -> Capabilities {
        Capabilities::default().in_process()
    }

    async fn take(&self, takes: &[Take]) -> Result<Vec<Outcome>, Error> {
        let cut = self.cuts.lock().expect("no thread panics").pop();
        if cut != Some(false) {
            let outcomes = self.store.take(takes).await?;
            if cut.is_none() {
                return Ok(outcomes);
            }
        }
        Err(Error::OutcomeUnknown(Arc::new(std::io::Error::other("cut"))))
    }

    async fn adjust(&self, adjustments: &[Adjustment]) -> Result<Vec<Result<Adjusted, TakeError>>, Error> {
        self.store.adjust(adjustments).await
    }
}

fn reserve(store: &Memory, take: &Take) -> Reservation<Memory> {
    let limiter = Limiter::new(Arc::clone(store), Quota::unlimited()).expect("a rule");
    at_once(limiter.reserve_request(take)).expect("it is possible")
}

fn key(number: usize) -> Key {
    Key::try_from(format!("key {number}")).expect("a key")
}

fn take(key: Key, quota: Quota) -> Take {
    Take::from(key).rule(Rule::Quota(quota))
}

/// Returns a quota of ten tokens per second.
fn ten_a_second(burst: u64) -> Quota {
    Quota::per_second(10).burst(burst).build().expect("a quota")
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 300,
        rng_seed: RngSeed::Fixed(2_026),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// A reservation uses no tokens if it is cancelled by its scheduled time.
    #[test]
    fn i1_no_window_exceeds_the_quota_with_cancelled_reservations(
        burst in 1..6_u64,
        inputs in prop::collection::vec((0..300_u64, 1..6_u64, 0..1_500_u64, any::<prop::sample::Index>(), 0..4_u8), 1..60),
    ) {
        let (store, clock) = memory();
        let (mut now, mut open, mut used) = (0, Vec::new(), Vec::new());
        for (later, cost, max_wait, which, action) in inputs {
            clock.advance(ms(later));
            now += later;
            if action == 0 && !open.is_empty() {
                let (acts, cost, reservation): (u64, u64, Reservation<_>) = open.swap_remove(which.index(open.len()));
                prop_assert!(at_once(reservation.cancel()).expect("answered") <= cost);
                used.extend((acts < now).then_some((acts, cost)));
            } else {
                let cost = cost.min(burst);
                let reservation = reserve(&store, &take(key(0), ten_a_second(burst)).cost(cost).max_wait(ms(max_wait)));
                if reservation.is_granted() {
                    let wait = reservation.decision().wait();
                    prop_assert!(wait <= ms(max_wait));
                    open.push((now + u64::try_from(wait.as_millis()).expect("short"), cost, reservation));
                }
            }
        }
        used.extend(open.into_iter().map(|(acts, cost, _)| (acts, cost)));
        used.sort_unstable();
        for (first, (since, _)) in used.iter().enumerate() {
            let mut passed = 0;
            for (until, cost) in &used[first..] {
                passed += cost;
                prop_assert!(passed * 100 <= burst * 100 + (until - since), "{passed} within {} ms", until - since);
            }
        }
    }

    /// Compares the store with another kind of model: a jar of limited size that is filled evenly.
    #[test]
    fn i3_tokens_are_neither_lost_nor_made(
        burst in 1..12_u64,
        inputs in prop::collection::vec((0..400_i64, 1..12_u64, 0..4_u8), 1..60),
    ) {
        let (store, clock) = memory();
        let most = i64::try_from(burst).expect("few") * 100;
        let mut jar = most;
        for (later, tokens, action) in inputs {
            clock.advance(ms(later.unsigned_abs()));
            jar = most.min(jar + later);
            let cost = tokens.min(burst);
            let worth = |tokens: u64| i64::try_from(tokens).expect("few") * 100;
            let reservation = reserve(&store, &take(key(0), ten_a_second(burst)).cost(cost));
            let decision = reservation.decision().clone();
            prop_assert_eq!(decision.is_granted(), jar >= worth(cost));
            jar -= if decision.is_granted() { worth(cost) } else { 0 };
            prop_assert_eq!(decision.remaining().map(worth), Some(jar / 100 * 100));
            prop_assert_eq!(decision.reset_after(), Some(ms((most - jar).unsigned_abs())));
            if action == 0 {
                let back = at_once(reservation.refund(tokens)).expect("answered");
                prop_assert_eq!(back, if decision.is_granted() { tokens.min(cost) } else { 0 });
                jar = most.min(jar + worth(back));
            }
        }
    }

    /// Repeats requests with ids until there is an answer, over a connection that loses requests and answers.
    #[test]
    fn i4_outcome_is_stated_or_unknown_and_a_retry_pays_once(
        requests in prop::collection::vec((1..9_u64, prop::collection::vec(any::<bool>(), 0..4)), 1..20),
    ) {
        let (store, _) = memory();
        let cut = Arc::new(Cut { store, cuts: Mutex::default() });
        let limiter = Limiter::new(Arc::clone(&cut), Quota::once(50).expect("a quota")).expect("a rule");
        let mut left = 50;
        for (number, (cost, cuts)) in requests.into_iter().enumerate() {
            let id = uuid::Uuid::from_u128(u128::try_from(number).expect("few"));
            let take = take(key(0), Quota::once(50).expect("a quota")).cost(cost).id(id, Duration::from_hours(1));
            for decided in cuts {
                cut.cuts.lock().expect("no thread panics").push(decided);
                let error = at_once(limiter.decide(&take)).expect_err("there is no answer");
                prop_assert!(error.is_outcome_unknown(), "{:?}", error);
            }
            let decision = at_once(limiter.decide(&take)).expect("answered");
            prop_assert_eq!(decision.is_granted(), left >= cost, "{} of {}", cost, left);
            left -= if decision.is_granted() { cost } else { 0 };
            // A request for the whole capacity is denied, and states the tokens left.
            let denied = at_once(limiter.decide(&Take::from(key(0)).rule(limiter.rule()).cost(50))).expect("answered");
            prop_assert_eq!((denied.is_granted(), denied.remaining()), (false, Some(left)));
            if left == 0 {
                break;
            }
        }
    }

    #[test]
    fn i6_denied_request_is_granted_exactly_at_retry_after(
        capacity in 1..50_u64,
        period in 1_000..10_000_000_000_u64,
        kind in 0..3_u8,
        inputs in prop::collection::vec((1..50_u64, 0..50_u64, 0..10_000_000_000_u64), 1..30),
    ) {
        let (store, clock) = memory();
        let period = Duration::from_nanos(period);
        let quota = match kind {
            0 => Quota::interval(capacity, period),
            1 => Quota::calendar(capacity, period),
            _ => Quota::continuous(capacity, period),
        };
        let quota = quota.or_else(|_| Quota::interval(capacity, period)).expect("a quota");
        for (cost, min_remaining, later) in inputs {
            let cost = cost.min(capacity);
            let take = take(key(0), quota).cost(cost).min_remaining(min_remaining.min(capacity - cost));
            let request = || at_once(store.take_one(&take)).expect("answered").expect("possible");
            let denied = request();
            if !denied.is_granted() {
                let retry_after = denied.retry_after().expect("it refills");
                prop_assert!(!retry_after.is_zero());
                clock.advance(retry_after.saturating_sub(Duration::from_nanos(1)));
                prop_assert!(!request().is_granted(), "a nanosecond earlier");
                clock.advance(Duration::from_nanos(1));
                prop_assert!(request().is_granted(), "at {:?}", retry_after);
            }
            clock.advance(Duration::from_nanos(later));
        }
    }

    #[test]
    fn i5_only_taken_tokens_are_given_back_once(
        grants in prop::collection::vec((1..8_u64, 0..3_000_u64), 1..12),
        adjustments in prop::collection::vec((any::<prop::sample::Index>(), 0..3_u8, 0..9_u64, 0..200_u64), 1..60),
    ) {
        let (store, clock) = memory();
        let reserved = |(cost, max_wait): (u64, u64)| {
            reserve(&store, &take(key(0), ten_a_second(8)).cost(cost).max_wait(ms(max_wait))).receipts().to_vec()
        };
        let receipts: Vec<_> = grants.into_iter().flat_map(reserved).collect();
        let mut given_back: HashMap<_, i64> = HashMap::new();
        for (which, action, tokens, later) in adjustments {
            let receipt = which.get(&receipts).clone();
            let (id, cost) = (receipt.id(), i64::try_from(receipt.cost()).expect("few"));
            let adjustment = if action == 0 { receipt.cancel() } else { receipt.refund(tokens) };
            match &at_once(store.adjust(&[adjustment])).expect("answered")[..] {
                [Ok(Adjusted::Done(tokens))] => {
                    prop_assert!((0..=cost).contains(tokens), "{tokens} of {cost}");
                    prop_assert_eq!(given_back.insert(id, *tokens), None, "a second time");
                }
                [Ok(Adjusted::Repeated)] => prop_assert!(given_back.contains_key(&id)),
                [Ok(Adjusted::Late)] => prop_assert_eq!(action, 0),
                other => prop_assert!(false, "{other:?}"),
            }
            let probe = take(key(0), ten_a_second(8)).min_remaining(7);
            let probe = at_once(store.take_one(&probe)).expect("answered").expect("possible");
            prop_assert!(probe.remaining().is_some_and(|tokens| tokens <= 8));
            clock.advance(ms(later));
        }
    }

    #[test]
    fn i5_reservation_cancelled_after_a_reset_gives_nothing_back(capacity in 1..20_i64, cost in 1..20_i64, wait in 1..1_000_000_i64) {
        let quota = Quota::continuous(capacity.unsigned_abs(), Duration::from_secs(1)).expect("a quota");
        let limits = BucketQuota::at(&quota, 0);
        let mut bucket = Bucket::full(&limits, START);
        let cost = cost.min(capacity);
        bucket.take(&limits, START, BucketRequest { cost, max_wait: 0, min_remaining: 0 });
        let receipt = GrantRecord { cost, granted: bucket.granted, scheduled_at: START + wait };
        bucket.reset(&limits, START);
        let full = bucket;
        prop_assert_eq!(bucket.cancel(&limits, START, &receipt), 0);
        prop_assert_eq!(bucket, full);
    }

    #[test]
    fn i7_requests_for_one_key_do_not_affect_another(
        inputs in prop::collection::vec((0..4_usize, 1..5_u64, 0..500_u64, 0..200_u64), 1..80),
    ) {
        let ((alone, clock_alone), (shared, clock)) = (memory(), memory());
        for (place, cost, max_wait, later) in inputs {
            let take = take(key(place), ten_a_second(5)).cost(cost).max_wait(ms(max_wait));
            let among_others = at_once(shared.take_one(&take)).expect("answered");
            if place == 0 {
                prop_assert_eq!(at_once(alone.take_one(&take)).expect("answered"), among_others);
            }
            clock.advance(ms(later));
            clock_alone.advance(ms(later));
        }
    }

    #[test]
    fn i8_several_limits_all_grant_or_none_takes_tokens(
        inputs in prop::collection::vec((prop::sample::subsequence(vec![0, 1, 2, 3], 1..5), 1..6_u64), 1..40),
    ) {
        let (store, _) = memory();
        let capacities = [9, 15, 27, 40];
        let once = |place: usize, cost: u64| take(key(place), Quota::once(capacities[place]).expect("a quota")).cost(cost);
        let mut left = capacities;
        for (places, cost) in inputs {
            let mut all = once(places[0], cost);
            for &place in &places[1..] {
                all = all.and(key(place), Rule::Quota(Quota::once(capacities[place]).expect("a quota")));
            }
            let decision = at_once(store.take_one(&all)).expect("answered").expect("possible");
            prop_assert_eq!(decision.is_granted(), places.iter().all(|&place| left[place] >= cost));
            if decision.is_granted() {
                for &place in &places {
                    left[place] -= cost;
                }
            }
            // Unless a bucket is full, a request for its whole capacity is denied, and states the tokens left.
            for place in (0..4).filter(|&place| left[place] < capacities[place]) {
                let denied = at_once(store.take_one(&once(place, capacities[place]))).expect("answered").expect("possible");
                prop_assert_eq!((denied.is_granted(), denied.remaining()), (false, Some(left[place])), "of bucket {}", place);
            }
        }
    }

    #[test]
    fn i12_deleting_full_buckets_is_invisible(
        inputs in prop::collection::vec((0..300_usize, 1..5_u64, 0..300_u64, 0..30_u64), 100..300),
    ) {
        let clock = ManualClock::default();
        clock.set(START);
        let small = MemoryStore::with_clock(clock.clone()).max_keys(8);
        let large = MemoryStore::with_clock(clock.clone());
        let shown = |outcome: Outcome| {
            outcome.map(|one| (one.is_granted(), one.remaining(), one.wait(), one.retry_after(), one.reset_after()))
        };
        let mut created = std::collections::HashSet::new();
        for (place, cost, max_wait, later) in inputs {
            let quota = if place % 2 == 0 { ten_a_second(4) } else { "4 per 1s".parse().expect("a quota") };
            let take = take(key(place), quota).cost(cost.min(4)).max_wait(ms(max_wait));
            let outcome = at_once(small.take_one(&take)).expect("answered");
            if !matches!(outcome, Err(TakeError::TooManyKeys(_))) {
                created.insert(place);
                prop_assert_eq!(shown(outcome), shown(at_once(large.take_one(&take)).expect("answered")));
            }
            clock.advance(ms(later));
        }
        prop_assert!(small.len() <= 64 && large.len() == created.len());
    }

    #[test]
    fn i13_changed_quotas_never_grant_more_than_the_largest(
        quotas in prop::collection::vec((1..30_u64, 1..30_u64), 2..5),
        inputs in prop::collection::vec((any::<prop::sample::Index>(), 1..30_u64, 0..400_u64), 1..80),
    ) {
        let (store, clock) = memory();
        let (mut passed, mut ms_passed) = (0, 0);
        let (rate, burst) = (quotas.iter().map(|quota| quota.0).max(), quotas.iter().map(|quota| quota.1).max());
        let (rate, burst) = (rate.unwrap_or(0), burst.unwrap_or(0));
        for (which, cost, later) in inputs {
            let (rate_now, burst_now) = *which.get(&quotas);
            let quota = Quota::per_second(rate_now).burst(burst_now).build().expect("a quota");
            let cost = cost.min(burst_now);
            let decision = at_once(store.take_one(&take(key(0), quota).cost(cost))).expect("answered").expect("possible");
            passed += if decision.is_granted() { cost } else { 0 };
            prop_assert!(passed * 1000 <= burst * 1000 + rate * ms_passed, "{passed} in {ms_passed} ms");
            clock.advance(ms(later));
            ms_passed += later;
        }
    }
}

#[test]
fn i2_concurrent_answers_equal_a_sequential_order() {
    let (store, _) = memory();
    let quota = Quota::once(1_000).expect("a quota");
    let mut remaining: Vec<Option<u64>> = std::thread::scope(|scope| {
        let request = || (0..400).map(|_| at_once(store.take_one(&take(key(0), quota))).expect("answered"));
        let left =
            |outcome: Outcome| outcome.ok().filter(tollgate::Decision::is_granted).and_then(|one| one.remaining());
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(move || request().map(left).collect::<Vec<_>>())).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("no thread panics")).collect()
    });
    remaining.sort_unstable();
    let expected = std::iter::repeat_n(None, 600).chain((0..1_000).map(Some));
    assert!(remaining.into_iter().eq(expected), "one grant states each number of remaining tokens");
}

const START: i64 = 1_800_057_600_000_000_000;
