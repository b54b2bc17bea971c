//! Clocks that stand still, step forward, or are set back.

use std::time::Duration;

use anyhow::ensure;
use tollgate::{Decision, Key, Quota, Rule, Store, Take};

use crate::matrix::{Case, Setup, Time, list};
use crate::test_db::TestDb;

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = list!(
        Setup { time: Time::Injected, ..Setup::DEFAULT };
        while_the_clock_stands_still_no_more_than_a_bucket_passes,
        a_leap_forwards_fills_the_bucket_once,
        clock_set_back_locks_keys_for_at_most_one_refill,
        clock_set_back_repeatedly_grants_within_the_quota,
        full_bucket_survives_a_clock_set_back_by_a_second,
    );
    cases.extend(list!(
        Setup { time: Time::Injected, needs: |engine| engine.has_routines, ..Setup::DEFAULT };
        clock_set_back_denies_sql_clients_for_one_refill_at_most,
    ));
    cases
}

async fn while_the_clock_stands_still_no_more_than_a_bucket_passes(db: TestDb) -> anyhow::Result<()> {
    for quota in quotas()? {
        for bucket in buckets(&db, quota).await? {
            let granted = bucket.poll(&db, (0..25).map(|_| START)).await?;
            ensure!(granted.len() == 10, "{quota}: {granted:?}");
        }
    }
    Ok(())
}

async fn a_leap_forwards_fills_the_bucket_once(db: TestDb) -> anyhow::Result<()> {
    for quota in quotas()? {
        for bucket in buckets(&db, quota).await? {
            let leap = START + 50 * 365 * 86_400 * SECOND;
            let granted = bucket.poll(&db, (0..15).map(|_| START).chain((0..15).map(|_| leap))).await?;
            ensure!(granted.len() == 20, "{quota}: {granted:?}");
        }
    }
    Ok(())
}

async fn clock_set_back_locks_keys_for_at_most_one_refill(db: TestDb) -> anyhow::Result<()> {
    for quota in quotas()? {
        for bucket in buckets(&db, quota).await? {
            bucket.poll(&db, (0..15).map(|_| START)).await?;
            // Emptied once and not by each request: three refills grant almost three buckets.
            let back = START - 3600 * SECOND;
            let granted = bucket.poll(&db, (0..=60).map(|half| back + half * SECOND / 2)).await?;
            let first = granted.first().expect("at least one is granted") - back;
            ensure!(first <= 10 * SECOND, "{quota}: the first after {first} ns");
            ensure!((20..=30).contains(&granted.len()), "{quota}: {} granted", granted.len());
        }
    }
    Ok(())
}

async fn clock_set_back_repeatedly_grants_within_the_quota(db: TestDb) -> anyhow::Result<()> {
    for quota in quotas()? {
        for bucket in buckets(&db, quota).await? {
            bucket.poll(&db, (0..10).map(|_| START)).await?;
            // Two seconds forward, an hour back. If the bucket were full after each step, it would grant ten each time.
            let times =
                (1..10).flat_map(|step| (0..2).map(move |second| START - step * 3600 * SECOND + second * SECOND));
            let granted = bucket.poll(&db, times.flat_map(|time| [time; 4])).await?;
            ensure!(granted.len() <= 9, "{quota}: {} granted", granted.len());
        }
    }
    Ok(())
}

async fn full_bucket_survives_a_clock_set_back_by_a_second(db: TestDb) -> anyhow::Result<()> {
    for quota in quotas()? {
        for bucket in buckets(&db, quota).await? {
            bucket.poll(&db, [START]).await?;
            let later = START + 65 * SECOND;
            let granted = bucket.poll(&db, [later, later - SECOND, later - SECOND, later - SECOND]).await?;
            ensure!(granted.len() == 4, "{quota}: {granted:?}");
        }
    }
    Ok(())
}

async fn clock_set_back_denies_sql_clients_for_one_refill_at_most(db: TestDb) -> anyhow::Result<()> {
    for (tokens, arguments) in [(1, ", 1, 0, 0"), (1, ", 1, 5000, 0"), (5, ", 5, 0, 0")] {
        db.at(START).await?;
        let key = db.bucket(Quota::continuous(10, Duration::from_secs(10))?).await?;
        let arguments = format!("{}{arguments}", db.quoted(key.as_str()));
        for _ in 0..20 {
            db.call("request_tokens", &arguments).await?;
        }
        let mut granted = 0;
        for second in 0..=30 {
            db.at(START - (3600 - second) * SECOND).await?;
            let answer = db.call("request_tokens", &arguments).await?;
            ensure!(answer.number("retry_after_ms")? <= 17_000, "{answer:?}");
            granted += tokens * answer.number("granted")?;
        }
        ensure!((25..=36).contains(&granted), "{granted} granted");
    }
    Ok(())
}

/// Full within 10 seconds, and after the longest possible refill.
fn quotas() -> Result<[Quota; 2], tollgate::model::QuotaError> {
    let refill = Duration::from_secs(10);
    Ok([Quota::continuous(10, refill)?, Quota::interval(10, refill)?])
}

/// A provisioned bucket and one that its first request creates, with single requests and in batches.
async fn buckets(db: &TestDb, quota: Quota) -> anyhow::Result<Vec<Bucket>> {
    let mut buckets = Vec::new();
    // Provisioned long before, so that no step goes back to before that time.
    db.at(START - 1_000_000 * SECOND).await?;
    for in_batches in [false, true] {
        buckets.push(Bucket { key: db.bucket(quota).await?, rule: Rule::Provisioned, in_batches });
        buckets.push(Bucket { key: db.key(), rule: Rule::Quota(quota), in_batches });
    }
    Ok(buckets)
}

struct Bucket {
    key: Key,
    rule: Rule,
    in_batches: bool,
}

impl Bucket {
    /// Requests one token at each time, and returns the times of the grants.
    async fn poll(&self, db: &TestDb, times: impl IntoIterator<Item = i64>) -> anyhow::Result<Vec<i64>> {
        let mut granted = Vec::new();
        for now in times {
            db.at(now).await?;
            let take = Take::from(self.key.clone()).rule(self.rule.clone());
            let decision = if self.in_batches { in_a_batch(db, take).await? } else { db.decide(take).await? };
            granted.extend(decision.is_granted().then_some(now));
        }
        Ok(granted)
    }
}

/// Decides the request in a batch with an unrelated one.
async fn in_a_batch(db: &TestDb, take: Take) -> anyhow::Result<Decision> {
    let outcomes = db.store().take(&[Take::from(db.key()), take]).await?;
    Ok(outcomes.into_iter().nth(1).expect("an answer to each request")?)
}

// At the end of a period of 10 seconds, both of the calendar and of the buckets.
const START: i64 = 1_800_000_000 * SECOND;
const SECOND: i64 = 1_000_000_000;
