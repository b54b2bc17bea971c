//! Compares the fleet's checker with a slower one, which adds up each window separately.

use std::time::Duration;

use common::fleet::checker::{Call, Fault, Limit};
use proptest::prelude::*;
use tollgate::Quota;
use tollgate::model::bucket::{Bucket, BucketQuota, BucketRequest};

proptest! {
    #[test]
    fn continuous_quota_faults_match_a_slower_checker(calls in history()) {
        let limit = limit(Quota::continuous(5, HALF_A_SECOND));
        let is_over = windows(&calls).any(|(from, to, granted)| granted * 100 > 500 + (to - from) / MS);
        prop_assert_eq!(limit.faults(&calls).iter().any(is_by_database), is_over);
    }

    #[test]
    fn interval_quota_faults_match_a_slower_checker(calls in history()) {
        let limit = limit(Quota::interval(5, HALF_A_SECOND));
        let is_over = windows(&calls).any(|(from, to, granted)| from / (500 * MS) == to / (500 * MS) && granted > 5);
        prop_assert_eq!(limit.faults(&calls).iter().any(is_by_database), is_over);
    }

    #[test]
    fn checker_accepts_every_decision_of_the_arithmetic(requests in history(), continuous: bool) {
        let make = if continuous { Quota::continuous } else { Quota::interval };
        let limit = limit(make(5, HALF_A_SECOND));
        prop_assert_eq!(limit.faults(&decided(&limit, requests)), vec![]);
    }

    #[test]
    fn checker_finds_one_grant_too_many_or_too_few(requests in history(), continuous: bool, which: prop::sample::Index) {
        let make = if continuous { Quota::continuous } else { Quota::interval };
        let limit = limit(make(5, HALF_A_SECOND));
        let mut calls = decided(&limit, requests);
        let changed = which.index(calls.len());
        calls[changed].granted = !calls[changed].granted;
        let faults = limit.faults(&calls);
        if calls[changed].granted {
            prop_assert!(faults.iter().any(is_by_database), "{:?}", faults);
        } else {
            let lost = Fault::LostToDenial { at: calls[changed].done };
            prop_assert!(faults.contains(&lost), "{:?}", faults);
        }
    }
}

#[test]
fn checker_counts_calls_entirely_within_a_window() {
    let limit = limit(Quota::continuous(2, Duration::from_secs(2)));
    let call = |sent, done| Call { sent, done, at: None, cost: 1, granted: true };
    assert_eq!(limit.faults(&[call(0, 10), call(5, 20), call(-1_000_000_000, 20)]), []);
    let faults = limit.faults(&[call(0, 10), call(5, 20), call(8, 20)]);
    assert!(faults.iter().all(|fault| matches!(fault, Fault::TooManyByCallers(_))), "{faults:?}");
    assert!(!faults.is_empty());
}

/// Generates calls that took no time, for up to four tokens each.
fn history() -> impl Strategy<Value = Vec<Call>> {
    prop::collection::vec((0_i64..20, 1_i64..=4), 1..40).prop_map(|calls| {
        let mut at = 0;
        let call = |(pause, cost)| {
            at += pause * 10 * MS;
            Call { sent: at, done: at, at: Some(at), cost, granted: true }
        };
        calls.into_iter().map(call).collect()
    })
}

/// Returns the calls with the decisions of a bucket.
fn decided(limit: &Limit, mut calls: Vec<Call>) -> Vec<Call> {
    let mut bucket = Bucket::full(&limit.quota, limit.anchor);
    for call in &mut calls {
        let request = BucketRequest { cost: call.cost, max_wait: 0, min_remaining: 0 };
        call.granted = bucket.take(&limit.quota, call.done, request).granted;
    }
    calls
}

/// Returns each window from one call to another, with the tokens granted in it.
fn windows(calls: &[Call]) -> impl Iterator<Item = (i64, i64, i64)> {
    let ends = calls.iter().flat_map(|from| calls.iter().map(move |to| (from.done, to.done)));
    ends.filter(|(from, to)| from <= to).map(|(from, to)| {
        let within = calls.iter().filter(|call| from <= call.done && call.done <= to);
        (from, to, within.map(|call| call.cost).sum())
    })
}

fn limit(quota: Result<Quota, tollgate::model::QuotaError>) -> Limit {
    Limit { quota: BucketQuota::at(&quota.expect("a quota"), 0), anchor: 0 }
}

fn is_by_database(fault: &Fault) -> bool {
    matches!(fault, Fault::TooManyByDatabase(_))
}

const MS: i64 = 1_000_000;
const HALF_A_SECOND: Duration = Duration::from_millis(500);
