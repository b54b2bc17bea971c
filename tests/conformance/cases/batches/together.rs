//! Random batches of requests for several buckets each, decided as if one after the other.

use anyhow::{Context, ensure};
use fastrand::Rng;
use tollgate::{Admin, Decision, Key, Limit, Quota, Rule, Store, Take};
use tollgate_tests::scenarios::World;
use tollgate_tests::scenarios::memory::Memory;

use crate::engines::Kind;
use crate::pools::injected;
use crate::random::seeds;
use crate::test_db::TestDb;

pub(super) async fn batches_of_several_limits_are_decided_one_by_one(db: TestDb) -> anyhow::Result<()> {
    // After the first override, PostgreSQL decides each request by itself, so the case has its own database there.
    let own = if db.engine.kind == Kind::Postgres { Some(injected(&db).await?) } else { None };
    let db = own.as_ref().map_or(&db, |(_, session)| session);
    for seed in seeds(1..=SEEDS)? {
        Box::pin(play(db, Rng::with_seed(seed))).await.with_context(|| format!("TOLLGATE_SEED={seed} replays this"))?;
    }
    Ok(())
}

async fn play(db: &TestDb, mut random: Rng) -> anyhow::Result<()> {
    let memory = Memory::new();
    let (model, engine) = (memory.store(), db.store());
    let keys: Vec<Key> = (0..KEYS).map(|_| db.key()).collect();
    let plan = db.key();
    let mut now = START;
    memory.at(now).await?;
    World::at(db, now).await?;
    model.create_plan(&plan, quota(0).into()).await?;
    engine.create_plan(&plan, quota(0).into()).await?;
    for key in &keys[..KEYS / 2] {
        model.create_bucket(key, quota(0)).await?;
        engine.create_bucket(key, quota(0)).await?;
    }
    for _ in 0..BATCHES {
        // Often long enough for all buckets to be full for a while.
        let pause = [2, 60][random.usize(..2)];
        now += random.i64(0..pause * SECOND);
        memory.at(now).await?;
        World::at(db, now).await?;
        // A request that changes a bucket's limits leaves most of a batch to be decided one by one.
        let others = if random.bool() { 16 } else { u32::MAX };
        // Exceeds one call now and then.
        let requests = if random.u32(..8) == 0 { random.usize(64..140) } else { random.usize(2..24) };
        let takes: Vec<Take> = (0..requests).map(|_| take(&mut random, &keys, &plan, others)).collect();
        let mut expected = Vec::new();
        for take in &takes {
            expected.push(model.take_one(take).await?);
        }
        let found = engine.take(&takes).await?;
        for ((take, expected), found) in takes.iter().zip(expected).zip(found) {
            // Does not compare the remaining tokens, which can be those at the end of the call.
            let granted =
                |outcome: &tollgate::model::Outcome| outcome.as_ref().map(Decision::is_granted).map_err(Clone::clone);
            ensure!(
                granted(&expected) == granted(&found),
                "{take:?} of {takes:?}\nis answered {found:?}\nand not {expected:?}"
            );
        }
        for key in &keys {
            let left = |level: tollgate::admin::BucketLevel| (level.quota(), level.available(), level.granted());
            let (expected, found) = (model.peek(key).await?.map(left), engine.peek(key).await?.map(left));
            ensure!(expected == found, "after {takes:?}\nis {found:?}\nand not {expected:?}");
        }
    }
    Ok(())
}

/// Returns a request, mostly for a bucket with tokens for a part of the batch and with its own limits. One of `others` differs.
fn take(random: &mut Rng, keys: &[Key], plan: &Key, others: u32) -> Take {
    let own = random.bool();
    let mut limits = (0..random.usize(2..5)).map(|_| {
        let place = random.usize(..keys.len());
        let rule = match random.u32(..others) {
            0 => Rule::Quota(quota(1)),
            1 => Rule::Plan(plan.clone()),
            _ if place < KEYS / 2 => Rule::Provisioned,
            2 => Rule::Provisioned,
            _ => Rule::Quota(quota(0)),
        };
        (keys[place].clone(), rule)
    });
    let (key, rule) = limits.next().expect("two or more");
    let mut take = Take::from(key).rule(rule);
    for (key, rule) in limits.collect::<Vec<_>>() {
        let limit = Limit::new(key, rule);
        take = take.and_limit(if own { limit.cost(1 + random.u64(..3)).min_remaining(random.u64(..2)) } else { limit });
    }
    take.cost([1, 1, 2, 3, 7, 30][random.usize(..6)]).min_remaining([0, 0, 0, 1, 4][random.usize(..5)])
}

fn quota(place: usize) -> Quota {
    ["7/s burst 20", "5 per 2s"][place].parse().expect("each is a quota")
}

const KEYS: usize = 8;
const SEEDS: u64 = 10;
const BATCHES: usize = 6;
const START: i64 = 1_800_057_600_000_000_000;
const SECOND: i64 = 1_000_000_000;
