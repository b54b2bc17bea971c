//! Random runs of equal requests for one bucket, as one entry of a call or as a separate call. The answers equal those of
//! deciding the requests one after the other, with any limits and mode.

use anyhow::{Context, ensure};
use fastrand::Rng;
use tollgate::{
    Admin, Key, Mode, Quota, Rule, Store, Take,
    admin::{BucketLevel, Override},
};
use tollgate_tests::scenarios::World;
use tollgate_tests::scenarios::memory::Memory;

use crate::engines::Kind;
use crate::pools::injected;
use crate::random::seeds;
use crate::test_db::TestDb;

pub(super) async fn equal_requests_are_answered_one_by_one(db: TestDb) -> anyhow::Result<()> {
    let mut seeds = seeds(1..=SEEDS)?;
    // After the first override, PostgreSQL uses other routines: seeds without overrides run first.
    seeds.sort_by_key(|seed| has_overrides(*seed));
    let own = if db.engine.kind == Kind::Postgres { Some(injected(&db).await?) } else { None };
    let db = own.as_ref().map_or(&db, |(_, session)| session);
    for seed in seeds {
        Box::pin(play(db, Rng::with_seed(seed), has_overrides(seed)))
            .await
            .with_context(|| format!("TOLLGATE_SEED={seed} replays this"))?;
    }
    Ok(())
}

fn has_overrides(seed: u64) -> bool {
    seed % 2 == 1
}

async fn play(db: &TestDb, mut random: Rng, overrides: bool) -> anyhow::Result<()> {
    let memory = Memory::new();
    let (model, engine) = (memory.store(), db.store());
    let (key, plan) = (db.key(), db.key());
    let mut now = START;
    memory.at(now).await?;
    World::at(db, now).await?;
    model.create_plan(&plan, quota(1).into()).await?;
    engine.create_plan(&plan, quota(1).into()).await?;
    let provisioned = random.bool();
    if provisioned {
        model.create_bucket(&key, quota(0)).await?;
        engine.create_bucket(&key, quota(0)).await?;
    }
    for _ in 0..RUNS {
        // Servers' clocks have no finer resolution.
        now += random.i64(0..2 * SECOND / MICROSECOND) * MICROSECOND;
        memory.at(now).await?;
        World::at(db, now).await?;
        rule(&mut random, &model, &engine, &key, &plan, overrides).await?;
        let take = take(&mut random, &key, &plan, provisioned);
        let takes = vec![take.clone(); random.usize(2..14)];
        let mut expected = Vec::new();
        for take in &takes {
            expected.push(model.take_one(take).await?);
        }
        let found = engine.take(&takes).await?;
        ensure!(expected == found, "{} of {take:?}\nare answered {found:?}\nand not {expected:?}", takes.len());
        // Does not compare instants, which servers give in whole microseconds.
        let left = |level: BucketLevel| (level.quota(), level.available(), level.granted());
        let (expected, found) = (model.peek(&key).await?.map(left), engine.peek(&key).await?.map(left));
        ensure!(expected == found, "after {} of {take:?}\nis {found:?}\nand not {expected:?}", takes.len());
    }
    Ok(())
}

/// Changes the limits or the mode of the bucket.
async fn rule(
    random: &mut Rng,
    model: &impl Admin,
    engine: &impl Admin,
    key: &Key,
    plan: &Key,
    overrides: bool,
) -> anyhow::Result<()> {
    let ruling = [None, Some(Mode::Enforce), Some(Mode::Shadow), Some(Mode::Off), Some(Mode::Block)];
    let mode = ruling[random.usize(..ruling.len())];
    match random.u32(..6) {
        0 => {
            model.set_plan_mode(plan, mode, None, None).await?;
            engine.set_plan_mode(plan, mode, None, None).await?;
        }
        1 if overrides => {
            let over =
                Override { quota: (mode.is_none() || random.bool()).then(|| quota(2)), mode, ..Override::default() };
            model.set_override(key, over.clone()).await?;
            engine.set_override(key, over).await?;
        }
        2 if overrides => {
            model.clear_override(key).await?;
            engine.clear_override(key).await?;
        }
        _ => {}
    }
    Ok(())
}

fn take(random: &mut Rng, key: &Key, plan: &Key, provisioned: bool) -> Take {
    let rule = match random.u32(..8) {
        _ if provisioned => Rule::Provisioned,
        0 => Rule::Plan(plan.clone()),
        _ => Rule::Quota(quota(0)),
    };
    let cost = [1, 1, 1, 2, 3, 7, 30][random.usize(..7)];
    Take::from(key.clone()).rule(rule).cost(cost).min_remaining([0, 0, 0, 1, 4][random.usize(..5)])
}

fn quota(place: usize) -> Quota {
    ["7/s burst 20", "5 per 2s", "4/s burst 7"][place].parse().expect("each is a quota")
}

const SEEDS: u64 = 10;
const RUNS: usize = 12;
const START: i64 = 1_800_057_600_000_000_000;
const SECOND: i64 = 1_000_000_000;
const MICROSECOND: i64 = 1000;
