//! Invariants of every bucket, after any requests.

use std::time::Duration;

use anyhow::ensure;
use proptest::prelude::*;
use tollgate::{Decision, Quota, Store, Take};
use tollgate_tests::model::quota;

use crate::matrix::{Case, Setup, Time, list};
use crate::random;
use crate::test_db::TestDb;

pub(crate) fn cases() -> Vec<Case> {
    list!(
        Setup { time: Time::Injected, is_random: true, ..Setup::DEFAULT };
        denied_request_is_granted_exactly_at_retry_after,
        a_batch_is_decided_as_its_requests_one_by_one,
        three_and_seven_a_period_hold_for_a_hundred_periods,
        reservations_far_ahead_fill_each_period_once,
    )
}

async fn denied_request_is_granted_exactly_at_retry_after(db: TestDb) -> anyhow::Result<()> {
    let db = &db;
    let requests = prop::collection::vec((1..=100_u64, 0..=100_u64), 6..7);
    random::check(30, &(quota(1 << 31), requests), |(quota, requests)| async move {
        let mut now = START;
        db.at(now).await?;
        let key = db.bucket(quota).await?;
        let mut granted = 0;
        for (cost, min_remaining) in requests {
            let cost = (quota.capacity() * cost / 100).max(1);
            let take =
                Take::from(key.clone()).cost(cost).min_remaining((quota.capacity() - cost) * min_remaining / 100);
            let decision = db.decide(take.clone()).await?;
            granted += if decision.is_granted() { cost } else { 0 };
            let wait = i64::try_from(decision.retry_after().expect("it refills").as_nanos())?;
            ensure!(decision.is_granted() || wait > 0, "{take:?} is denied, and could be granted at once");
            if wait > 0 && now.checked_add(wait).is_some_and(|ready| ready < YEAR_2159) {
                now += wait;
                db.at(now - 1).await?;
                let early = db.decide(take.clone()).await?;
                ensure!(!early.is_granted(), "{take:?} is granted a nanosecond before {decision:?} said");
                ensure!(early.retry_after() == Some(Duration::from_nanos(1)), "{early:?}");
                db.at(now).await?;
                let on_time = db.decide(take.clone()).await?;
                ensure!(on_time.is_granted() && on_time.wait().is_zero(), "{take:?}, after {decision:?}: {on_time:?}");
                granted += cost;
            }
        }
        let row = db.row(&key).await?.expect("made");
        ensure!(row.granted.unsigned_abs() == granted, "{granted} were granted, and the row says {row:?}");
        Ok(())
    })
}

async fn a_batch_is_decided_as_its_requests_one_by_one(db: TestDb) -> anyhow::Result<()> {
    let db = &db;
    let requests = prop::collection::vec((0..3_usize, 1..=40_u64, prop::option::weighted(0.3, 0..300_u64)), 2..12);
    random::check(30, &(prop::collection::vec(quota(1 << 31), 3), requests), |(quotas, requests)| async move {
        db.at(START).await?;
        let (mut batch, mut single) = (Vec::new(), Vec::new());
        for quota in &quotas {
            batch.push(db.bucket(*quota).await?);
            single.push(db.bucket(*quota).await?);
        }
        let take = |keys: &[tollgate::Key], &(place, percent, wait): &(usize, u64, Option<u64>)| {
            let quota: &Quota = &quotas[place];
            let wait = wait.map_or(0, |percent| quota.refill_time().as_nanos() * u128::from(percent) / 100);
            let cost = (quota.capacity() * percent / 100).max(1);
            let wait = Duration::from_nanos(u64::try_from(wait).unwrap_or(u64::MAX));
            Take::from(keys[place].clone()).cost(cost).max_wait(wait)
        };
        let together: Vec<_> = requests.iter().map(|request| take(&batch, request)).collect();
        let together = db.store().take(&together).await?;
        for (request, outcome) in requests.iter().zip(together) {
            let alone: Decision = db.decide(take(&single, request)).await?;
            ensure!(outcome? == alone, "{request:?} alone: {alone:?}");
        }
        for (batch, single) in batch.iter().zip(&single) {
            assert_eq!(db.row(batch).await?, db.row(single).await?);
        }
        Ok(())
    })
}

async fn three_and_seven_a_period_hold_for_a_hundred_periods(db: TestDb) -> anyhow::Result<()> {
    for (capacity, period) in [(3, 1_000_000_000), (7, 1_000_000_000), (7, 999_999_937)] {
        db.at(START).await?;
        let key = db.bucket(Quota::interval(capacity, Duration::from_nanos(period))?).await?;
        let period = i64::try_from(period)?;
        for number in 0..100 {
            let begin = START + number * period;
            // All but one token at the start, the last one a nanosecond before the end, and one more each time.
            db.at(begin).await?;
            let batch = vec![Take::from(key.clone()); usize::try_from(capacity)? - 1];
            for outcome in db.store().take(&batch).await? {
                ensure!(outcome?.is_granted(), "{capacity} in {period} ns: too few in period {number}");
            }
            db.at(begin + period - 1).await?;
            let last = db.store().take(&vec![Take::from(key.clone()); 2]).await?;
            let granted: Vec<bool> = last.iter().flatten().map(Decision::is_granted).collect();
            ensure!(granted == [true, false], "{capacity} in {period} ns: {last:?} in period {number}");
        }
        assert_eq!(db.row(&key).await?.expect("made").granted, 100 * i64::try_from(capacity)?);
    }
    Ok(())
}

async fn reservations_far_ahead_fill_each_period_once(db: TestDb) -> anyhow::Result<()> {
    let (capacity, period) = (30_000, Duration::from_secs(1));
    db.at(START).await?;
    let key = db.bucket(Quota::interval(capacity, period)?).await?;
    let mut periods = std::collections::BTreeMap::new();
    for (index, now) in (0..600).map(|number| START + number * 7_000_000).enumerate() {
        db.at(now).await?;
        let cost = [1, 29_999, 10_000, 30_000, 7, 15_001][index % 6];
        let decision = db.decide(Take::from(key.clone()).cost(cost).max_wait(Duration::from_hours(1))).await?;
        ensure!(decision.is_granted(), "{decision:?}");
        let acts = now - START + i64::try_from(decision.wait().as_nanos())?;
        *periods.entry(acts / 1_000_000_000).or_insert(0) += cost;
    }
    let fullest = periods.iter().max_by_key(|(_, passed)| **passed);
    ensure!(periods.len() > 200 && fullest.is_some_and(|(_, passed)| *passed <= capacity), "{fullest:?}");
    Ok(())
}

const START: i64 = 1_800_000_000_123_456_789;
const YEAR_2159: i64 = 5_964_364_800_000_000_000;
