//! Usage: what buckets used, by hour or day.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::ensure;
use chrono::{DateTime, TimeDelta, Utc};
use tokio::task::JoinSet;
use tollgate::{
    Adjusted, Adjustment, Admin, Key, Limiter, Rule, Store, Take,
    admin::{AdminError, Usage, UsageFilter, UsagePeriod, UsageRecording},
    model::{LimitName, Limits},
    store::Maintenance,
};
use uuid::Uuid;

use super::sweeping::{age_buckets, alone};
use crate::engines::Kind;
use crate::matrix::{Case, Setup, Time, list};
use crate::pools::Scratch;
use crate::random::seeds;
use crate::session::Session;
use crate::store::AnyStore;
use crate::test_db::TestDb;

pub fn cases() -> Vec<Case> {
    let mut cases = list!(
        Setup { needs: |engine| !engine.is_distributed, time: Time::Injected, ..Setup::WITHOUT_LAYERS };
        usage_is_listed_by_period_and_plan,
        usage_of_every_random_history_adds_up,
        usage_is_kept_for_as_long_as_its_setting_says,
        usage_that_is_not_recorded_leaves_no_rows,
    );
    cases.extend(list!(
        Setup { needs: |engine| !engine.is_distributed, ..Setup::WITHOUT_LAYERS };
        usage_adds_up_while_buckets_are_recorded_swept_and_deleted,
    ));
    cases.extend(list!(
        Setup { needs: |engine| !engine.is_distributed && engine.has_routines, ..Setup::WITHOUT_LAYERS };
        locked_bucket_is_recorded_by_the_next_round,
    ));
    cases
}

/// Midnight of 16 January 2027, in nanoseconds since 1970.
const START: i64 = 1_800_057_600_000_000_000;
const HOUR: i64 = 3_600_000_000_000;
const DAY: i64 = 24 * HOUR;

async fn usage_is_listed_by_period_and_plan(db: TestDb) -> anyhow::Result<()> {
    let (_scratch, db) = alone(db).await?;
    let store = db.store();
    db.at(START).await?;
    let [free, pro] = ["free", "pro"].map(|name| Key::try_from(name).expect("a name"));
    store.create_plan(&free, "100/month".parse::<Limits>()?).await?;
    store.create_plan(&pro, "10/s; month: 1000/month".parse::<Limits>()?).await?;
    store.set_usage_recording(Some(UsageRecording::new(UsagePeriod::Hour))).await?;
    assert_eq!(store.usage_recording().await?, Some(UsageRecording::new(UsagePeriod::Hour)));
    record(&store, 10).await?;
    let [one, other] = ["customer:1", "customer:2"].map(|key| Key::try_from(key).expect("a key"));
    let under = |key: &Key, plan: &Key| Take::from(key.clone()).rule(Rule::Plan(plan.clone()));
    let limiter = |plan: &Key| Limiter::builder(db.store()).without_sweep().build(Rule::Plan(plan.clone()));

    ensure!(db.decide(under(&one, &free).cost(7)).await?.is_granted());
    ensure!(db.decide(under(&other, &free).cost(5)).await?.is_granted());
    let free_limiter = limiter(&free)?;
    free_limiter.charge(&other, 2).await?;
    store.count_denials(&[(one.clone(), 3)]).await?;
    // The first customer goes over to another plan within the hour.
    let pro_limiter = limiter(&pro)?;
    let reserved = pro_limiter.reserve_request(&under(&one, &pro).cost(4)).await?;
    ensure!(reserved.is_granted());
    reserved.refund(1).await?;
    db.at(START + HOUR).await?;
    assert_eq!(record(&store, 2).await?, 3);
    ensure!(pro_limiter.allow_n(&one, 6).await?.is_granted());

    let month = one.limit(&LimitName::try_from("month")?);
    let listed = |from: i64, until: i64| UsageFilter::between(instant(from), instant(until));
    let all = listed(START, START + DAY);
    let expected = [
        used(&one, Some(&free), [7, 0, 0, 3]),
        used(&one, Some(&pro), [10, 0, 1, 0]),
        used(&month, Some(&pro), [10, 0, 1, 0]),
        used(&other, Some(&free), [5, 2, 0, 0]),
    ];
    assert_eq!(listing(store.usage(&all, None, 100).await?), expected);
    // Page by page, by key, by plan, and by hour.
    let mut paged = Vec::new();
    loop {
        let page = store.usage(&all, paged.last().map(|usage: &Usage| &usage.key), 1).await?;
        let Some(last) = page.last() else { break };
        ensure!(page.iter().all(|usage| usage.key == last.key), "{page:?}");
        paged.extend(page);
    }
    assert_eq!(paged[1].used(), 9);
    assert_eq!(listing(paged), expected);
    assert_eq!(listing(store.usage(&all.clone().key(one.clone()), None, 100).await?), expected[..3]);
    assert_eq!(store.usage(&all.clone().plan(free.clone()), None, 100).await?.len(), 2);
    assert_eq!(
        listing(store.usage(&listed(START + HOUR, START + DAY), None, 100).await?),
        [used(&one, Some(&pro), [6, 0, 0, 0]), used(&month, Some(&pro), [6, 0, 0, 0])]
    );
    assert_eq!(store.usage(&listed(START - DAY, START), None, 100).await?, []);

    // A deleted bucket keeps its usage, and the view has all of it.
    ensure!(store.delete(&one).await?);
    assert_eq!(listing(store.usage(&all, None, 100).await?), expected);
    let view = if db.engine.kind == Kind::Postgres { "tollgate.token_usage" } else { "token_usage" };
    let sums =
        db.sql(format!("select sum(used) as used, sum(denied) as denied from {view} where limit_name is null")).await?;
    assert_eq!(sums[0].numbers(["used", "denied"])?, [23, 3]);
    Ok(())
}

/// Plays requests and adjustments by chance, between hours, sweeps, resets, deletions and changes of plans.
async fn usage_of_every_random_history_adds_up(db: TestDb) -> anyhow::Result<()> {
    let (_scratch, db) = alone(db).await?;
    let store = db.store();
    store.set_usage_recording(Some(UsageRecording::new(UsagePeriod::Hour))).await?;
    db.at(START).await?;
    record(&store, 10).await?;
    let plans = ["", "free", "pro"];
    for plan in &plans[1..] {
        store.create_plan(&Key::try_from(*plan)?, "40/hour".parse::<Limits>()?).await?;
    }
    let keys: Vec<Key> = (0..4).map(|n| Key::try_from(format!("customer:{n}")).expect("a key")).collect();
    let mut expected: BTreeMap<(Key, &str), [i64; 3]> = BTreeMap::new();
    // The plan under which a bucket's next adjustment counts.
    let mut follows: BTreeMap<Key, &str> = BTreeMap::new();
    let mut receipts = Vec::new();
    let (seed, mut now) = (seeds([1])?.pop().expect("one, or a new one"), START);
    let mut random = fastrand::Rng::with_seed(seed);
    let limiter = Limiter::builder(db.store()).without_sweep().build("30/hour")?;
    for step in 0..120 {
        let key = keys[random.usize(..keys.len())].clone();
        match random.u8(..14) {
            0..6 => {
                let plan = plans[random.usize(..plans.len())];
                let rule = if plan.is_empty() { Rule::try_from("30/hour")? } else { Rule::Plan(Key::try_from(plan)?) };
                let wait = Duration::from_secs(random.u64(..2) * 7200);
                let take = Take::from(key.clone()).rule(rule).cost(random.u64(1..9)).max_wait(wait);
                let take = take.id(Uuid::new_v4(), Duration::from_hours(5));
                let reservation = limiter.reserve_request(&take).await?;
                follows.insert(key.clone(), plan);
                for receipt in reservation.receipts().to_vec() {
                    expected.entry((key.clone(), plan)).or_default()[0] += i64::try_from(receipt.cost())?;
                    receipts.push(receipt);
                }
            }
            6 if !receipts.is_empty() => {
                let receipt = receipts.swap_remove(random.usize(..receipts.len()));
                let key = receipt.key().clone();
                let adjustment = match random.u8(..3) {
                    0 => receipt.refund(random.u64(1..9)),
                    1 => receipt.settle(random.u64(..20)),
                    _ => receipt.cancel(),
                };
                if let Ok(Adjusted::Done(tokens)) = store.adjust(&[adjustment]).await?.remove(0) {
                    let plan = follows.get(&key).copied().unwrap_or_default();
                    let sums = expected.entry((key, plan)).or_default();
                    sums[1] += (-tokens).max(0);
                    sums[2] += tokens.max(0);
                }
            }
            7 => {
                let tokens = random.u64(1..9);
                if store.adjust(&[Adjustment::charge(key.clone(), tokens)]).await?[0].is_ok() {
                    let plan = follows.get(&key).copied().unwrap_or_default();
                    expected.entry((key, plan)).or_default()[1] += i64::try_from(tokens)?;
                }
            }
            8 => drop(store.reset(&key).await?),
            9 => {
                store.delete(&key).await?;
                follows.remove(&key);
            }
            10 => {
                store.sweep(100).await?;
                for key in &keys {
                    if store.peek(key).await?.is_none() {
                        follows.remove(key);
                    }
                }
            }
            11 => {
                store.record_usage(2).await?;
            }
            12 => drop(record(&store, random.u32(1..5)).await?),
            _ => {
                now += random.i64(0..3 * HOUR);
                db.at(now).await?;
            }
        }
        let mut found = BTreeMap::new();
        for usage in store.usage(&forever(), None, 100).await? {
            let plan = usage
                .plan
                .as_ref()
                .map_or("", |plan| plans.into_iter().find(|name| *name == plan.as_str()).unwrap_or("?"));
            let sums = [usage.granted, usage.charged, usage.refunded].map(|sum| i64::try_from(sum).unwrap_or(-1));
            if sums != [0; 3] {
                found.insert((usage.key, plan), sums);
            }
        }
        let expected: BTreeMap<_, _> =
            expected.iter().filter(|(_, sums)| **sums != [0; 3]).map(|(key, sums)| (key.clone(), *sums)).collect();
        assert_eq!(found, expected, "step {step}: TOLLGATE_SEED={seed} replays this");
    }
    Ok(())
}

async fn usage_is_kept_for_as_long_as_its_setting_says(db: TestDb) -> anyhow::Result<()> {
    let (_scratch, db) = alone(db).await?;
    let store = db.store();
    db.at(START).await?;
    for days in [0, 36_526] {
        let refused = store.set_usage_recording(Some(UsageRecording::new(UsagePeriod::Day).keep_days(days))).await;
        assert!(matches!(refused, Err(AdminError::InvalidKeepDays(given)) if given == days), "{refused:?}");
    }
    store.set_usage_recording(Some(UsageRecording::new(UsagePeriod::Day).keep_days(2))).await?;
    record(&store, 10).await?;
    let keys: Vec<Key> = (0..5).map(|_| db.key()).collect();
    // Steps of two rows delete the first of the four days, which ended two days before the last.
    for day in 0..4 {
        db.at(START + day * DAY).await?;
        record(&store, 2).await?;
        for key in &keys {
            ensure!(db.decide(Take::from(key.clone()).rule(Rule::try_from("100/d")?)).await?.is_granted());
        }
        let sum: u64 = store.usage(&forever(), None, 100).await?.iter().map(|usage| usage.granted).sum();
        assert_eq!(sum, 5 * (u64::try_from(day)? + 1).min(3));
    }
    Ok(())
}

async fn usage_that_is_not_recorded_leaves_no_rows(db: TestDb) -> anyhow::Result<()> {
    let (_scratch, db) = alone(db).await?;
    let store = db.store();
    db.at(START).await?;
    let key = db.key();
    let take = Take::from(key.clone()).rule(Rule::try_from("100/d")?);
    ensure!(db.decide(take.clone().cost(5)).await?.is_granted());
    store.count_denials(&[(key.clone(), 1)]).await?;
    assert_eq!(record(&store, 10).await?, 0);
    assert_eq!(store.usage(&forever(), None, 100).await?, []);
    // Grants before the first round and after the last one are not usage.
    store.set_usage_recording(Some(UsageRecording::new(UsagePeriod::Day))).await?;
    assert_eq!(store.usage(&forever(), None, 100).await?, []);
    record(&store, 10).await?;
    ensure!(db.decide(take.clone().cost(2)).await?.is_granted());
    db.at(START + DAY).await?;
    record(&store, 10).await?;
    ensure!(db.decide(take.clone().cost(4)).await?.is_granted());
    store.set_usage_recording(None).await?;
    assert_eq!(store.usage_recording().await?, None);
    record(&store, 10).await?;
    ensure!(db.decide(take.clone().cost(3)).await?.is_granted());
    ensure!(store.delete(&key).await?);
    db.at(START + 2 * DAY).await?;
    record(&store, 10).await?;
    assert_eq!(listing(store.usage(&forever(), None, 100).await?), [used(&key, None, [6, 0, 0, 0])]);
    Ok(())
}

/// Tasks take tokens, while others record, sweep, delete and move buckets between plans, and some are stopped midway.
async fn usage_adds_up_while_buckets_are_recorded_swept_and_deleted(db: TestDb) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&db).await?;
    let db = &scratch.db;
    let store = db.store().max_attempts(u32::MAX).deadline(Duration::from_mins(1));
    store.set_usage_recording(Some(UsageRecording::new(UsagePeriod::Hour))).await?;
    record(&store, 100).await?;
    let keys: Vec<Key> = (0..6).map(|_| db.key()).collect();
    for plan in ["a", "b"] {
        store.create_plan(&Key::try_from(plan)?, "1000000/s".parse::<Limits>()?).await?;
    }
    let mut takers = JoinSet::new();
    for taker in 0..4_usize {
        let (store, keys) = (store.clone(), keys.clone());
        takers.spawn(async move {
            let mut granted = BTreeMap::new();
            for request in 0..60 {
                let key = keys[(request + taker) % keys.len()].clone();
                let plan = Key::try_from(if request % 20 < 10 { "a" } else { "b" })?;
                let take = Take::from(key.clone()).rule(Rule::Plan(plan)).cost(3);
                if store.take_one(&take).await??.is_granted() {
                    *granted.entry(key).or_insert(0) += 3;
                }
            }
            anyhow::Ok(granted)
        });
    }
    let (mut granted, mut round) = (BTreeMap::new(), 0);
    while !takers.is_empty() {
        round += 1;
        let place = round % keys.len();
        db.pool.run(period_ends(db)).await?;
        let (stopped, limit) = (store.clone(), u32::try_from(1 + place)?);
        let step = tokio::spawn(async move { stopped.record_usage(limit).await.map(drop) });
        if round % 3 == 0 {
            step.abort();
        } else {
            step.await??;
        }
        age_buckets(db).await?;
        store.sweep(1000).await?;
        store.delete(&keys[place]).await?;
        while let Some(taken) = takers.try_join_next() {
            for (key, tokens) in taken?? {
                *granted.entry(key).or_insert(0) += tokens;
            }
        }
    }
    let mut recorded = BTreeMap::new();
    for usage in store.usage(&forever(), None, 100).await? {
        *recorded.entry(usage.key).or_insert(0) += usage.granted;
    }
    assert_eq!(recorded, granted);
    Ok(())
}

async fn locked_bucket_is_recorded_by_the_next_round(db: TestDb) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&db).await?;
    let db = &scratch.db;
    let store = db.store();
    let keys =
        [db.bucket("100/d".parse()?).await?, db.bucket("100/d".parse()?).await?, db.bucket("100/d".parse()?).await?];
    let take_each = async || {
        for key in &keys {
            ensure!(db.take(key).await?.is_granted());
        }
        anyhow::Ok(())
    };
    let granted = async || -> anyhow::Result<u64> {
        Ok(store.usage(&forever(), None, 100).await?.iter().map(|usage| usage.granted).sum())
    };
    take_each().await?;
    // The first round waits for each bucket, so that earlier grants do not count.
    let lock_holder = Session::lock_bucket(db, &keys[1]).await?;
    store.set_usage_recording(Some(UsageRecording::new(UsagePeriod::Hour))).await?;
    record(&store, 100).await?;
    assert_eq!(granted().await?, 0, "recording has yet to begin");
    lock_holder.commit().await?;
    record(&store, 100).await?;
    take_each().await?;
    assert_eq!(granted().await?, 3);

    // Another round leaves the bucket out, and records the others.
    let lock_holder = Session::lock_bucket(db, &keys[1]).await?;
    db.pool.run(period_ends(db)).await?;
    assert_eq!(record(&store, 2).await?, 2);
    lock_holder.commit().await?;
    assert_eq!(granted().await?, 4, "the holder of the lock has taken a token");
    db.pool.run(period_ends(db)).await?;
    assert_eq!(record(&store, 2).await?, 1);

    // The last round waits as well.
    take_each().await?;
    let lock_holder = Session::lock_bucket(db, &keys[1]).await?;
    store.set_usage_recording(None).await?;
    record(&store, 2).await?;
    lock_holder.commit().await?;
    record(&store, 2).await?;
    take_each().await?;
    assert_eq!(granted().await?, 4 + 3 + 1);
    Ok(())
}

/// The statement that ends the period: the next round records under the hour before.
fn period_ends(db: &TestDb) -> &'static str {
    match db.engine.kind {
        Kind::Postgres => {
            "update tollgate.token_usage_recording set period_start = period_start - interval '1 hour'
              where recorded_to is null"
        }
        Kind::MySql => {
            "update token_usage_recording set period_start = period_start - interval 1 hour where recorded_to is null"
        }
        Kind::Sqlite => {
            "update token_usage_recording set period_start = strftime('%Y-%m-%d %H:00:00.000', period_start, '-1 hour')
              where recorded_to is null"
        }
    }
}

/// Records until the end of the buckets and of the old rows, and returns how many buckets.
async fn record(store: &AnyStore, limit: u32) -> anyhow::Result<u64> {
    let mut buckets = 0;
    loop {
        let recorded = store.record_usage(limit).await?;
        buckets += recorded.buckets;
        if recorded.finished {
            return Ok(buckets);
        }
    }
}

/// Id, plan, and the tokens granted, charged and refunded, and the requests denied.
type Listed = (Key, Option<Key>, [u64; 4]);

fn used(key: &Key, plan: Option<&Key>, counts: [u64; 4]) -> Listed {
    (key.clone(), plan.cloned(), counts)
}

fn listing(usage: Vec<Usage>) -> Vec<Listed> {
    let counts = |usage: &Usage| [usage.granted, usage.charged, usage.refunded, usage.denied];
    usage.into_iter().map(|usage| (usage.key.clone(), usage.plan.clone(), counts(&usage))).collect()
}

fn forever() -> UsageFilter {
    UsageFilter::between(DateTime::UNIX_EPOCH, DateTime::UNIX_EPOCH + TimeDelta::days(100_000))
}

fn instant(nanoseconds: i64) -> DateTime<Utc> {
    DateTime::from_timestamp_nanos(nanoseconds)
}
