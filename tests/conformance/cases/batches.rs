//! Random batches with every kind of limit and mode. Each batch is answered as the in-memory store answers its requests one by
//! one.

use std::time::Duration;

use anyhow::{Context, ensure};
use fastrand::Rng;
use tollgate::{Admin, Key, Mode, Quota, Rule, Store, Take, admin::Override};
use tollgate_tests::scenarios::World;
use tollgate_tests::scenarios::memory::Memory;
use uuid::Uuid;

use crate::matrix::{Case, Setup, Time, list};
use crate::random::seeds;
use crate::test_db::TestDb;

mod equal;
mod together;

use equal::equal_requests_are_answered_one_by_one;
use together::batches_of_several_limits_are_decided_one_by_one;

pub(crate) fn cases() -> Vec<Case> {
    // Without layers: the cases call `take` with many requests some thousand times, which no layer coalesces.
    // The case sets the mode of every key, so it needs its own database.
    let mut cases = list!(
        Setup {
            time: Time::Injected,
            needs: |engine| engine.url_variable.is_none(),
            is_random: true,
            ..Setup::WITHOUT_LAYERS
        };
        any_batch_is_answered_as_its_requests_one_by_one,
    );
    cases.extend(list!(
        Setup { time: Time::Injected, is_random: true, ..Setup::WITHOUT_LAYERS };
        batches_of_several_limits_are_decided_one_by_one,
        equal_requests_are_answered_one_by_one,
    ));
    cases
}

async fn any_batch_is_answered_as_its_requests_one_by_one(db: TestDb) -> anyhow::Result<()> {
    for seed in seeds(1..=SEEDS)? {
        let mut author = Author { random: Rng::with_seed(seed), keys: keys()?, plans: Vec::new() };
        author.plans = (0..3).map(|_| db.key()).collect();
        Box::pin(play(&db, author)).await.with_context(|| format!("TOLLGATE_SEED={seed} replays this"))?;
    }
    Ok(())
}

async fn play(db: &TestDb, mut author: Author) -> anyhow::Result<()> {
    let memory = Memory::new();
    let (model, engine) = (memory.store(), db.store());
    let mut now = START;
    memory.at(now).await?;
    World::at(db, now).await?;
    let provisioned = [author.keys[0].clone(), author.keys[1].clone()];
    for key in provisioned {
        let quota = author.quota();
        model.create_bucket(&key, quota).await?;
        engine.create_bucket(&key, quota).await?;
    }
    for _ in 0..BATCHES {
        now += author.random.i64(0..4 * SECOND);
        memory.at(now).await?;
        World::at(db, now).await?;
        author.rule(&model, &engine).await?;
        let takes = author.batch();
        let mut expected = Vec::new();
        for take in &takes {
            expected.push(model.take_one(take).await?);
        }
        let found = engine.take(&takes).await?;
        for ((take, expected), found) in takes.iter().zip(expected).zip(found) {
            ensure!(expected == found, "{take:?} of {takes:?}\nis answered {found:?}\nand not {expected:?}");
        }
        for key in &author.keys {
            let (expected, found) = (model.peek(key).await?, engine.peek(key).await?);
            ensure!(expected == found, "after {takes:?}\nis {found:?}\nand not {expected:?}");
        }
    }
    model.set_mode(Mode::Enforce, None, None).await?;
    engine.set_mode(Mode::Enforce, None, None).await?;
    Ok(())
}

struct Author {
    random: Rng,
    keys: Vec<Key>,
    /// No test creates the last one.
    plans: Vec<Key>,
}

impl Author {
    /// Changes the limits or the mode of the keys.
    async fn rule(&mut self, model: &impl Admin, engine: &impl Admin) -> anyhow::Result<()> {
        for _ in 0..self.random.usize(..6) {
            let (key, quota, mode) = (self.key(), self.quota(), self.mode());
            let plan = self.plans[self.random.usize(..2)].clone();
            match self.random.u32(..10) {
                0..=2 => {
                    model.create_plan(&plan, quota.into()).await?;
                    engine.create_plan(&plan, quota.into()).await?;
                }
                3 => {
                    let (expected, found) = (
                        model.set_plan_mode(&plan, mode, None, None).await?,
                        engine.set_plan_mode(&plan, mode, None, None).await?,
                    );
                    ensure!(expected == found, "whether there is the plan {plan:?}");
                }
                4 => {
                    model.set_mode(mode.unwrap_or(Mode::Enforce), None, None).await?;
                    engine.set_mode(mode.unwrap_or(Mode::Enforce), None, None).await?;
                }
                5 | 6 => {
                    let over = Override { quota: Some(quota), mode, ..Override::default() };
                    model.set_override(&key, over.clone()).await?;
                    engine.set_override(&key, over).await?;
                }
                7 => {
                    let cleared = (model.clear_override(&key).await?, engine.clear_override(&key).await?);
                    ensure!(cleared.0 == cleared.1, "whether there is an override of {key:?}");
                }
                _ => {
                    let deleted = (model.delete(&key).await?, engine.delete(&key).await?);
                    ensure!(deleted.0 == deleted.1, "whether there is {key:?}");
                }
            }
        }
        Ok(())
    }

    fn batch(&mut self) -> Vec<Take> {
        let mut takes = Vec::new();
        for _ in 0..self.random.usize(1..40) {
            let times = if self.random.bool() { self.random.usize(1..8) } else { 1 };
            takes.extend(std::iter::repeat_n(self.take(), times));
        }
        if self.random.bool() {
            self.random.shuffle(&mut takes);
        }
        takes
    }

    fn take(&mut self) -> Take {
        let (key, rule) = (self.key(), self.named());
        let mut take = Take::from(key).rule(rule);
        while self.random.u32(..5) == 0 {
            let (key, rule) = (self.key(), self.named());
            take = take.and(key, rule);
        }
        if self.random.u32(..8) == 0 {
            let hold = [Duration::from_secs(1), Duration::from_hours(1)][self.random.usize(..2)];
            take = take.id(Uuid::from_u128(self.random.u128(..6)), hold);
        }
        let wait = [0, 0, 0, 1, 700_000_000, 3_000_000_000, u64::MAX][self.random.usize(..7)];
        let cost = [1, 1, 1, 2, 3, 7, 0][self.random.usize(..7)];
        let min_remaining = [0, 0, 0, 1, 4][self.random.usize(..5)];
        take.cost(cost).min_remaining(min_remaining).max_wait(Duration::from_nanos(wait))
    }

    /// Returns the rule of a request: mostly one quota, so that tokens are left at times.
    fn named(&mut self) -> Rule {
        match self.random.u32(..8) {
            0 | 1 => Rule::Provisioned,
            2 | 3 => Rule::Plan(self.plans[self.random.usize(..self.plans.len())].clone()),
            4 => Rule::Quota(self.quota()),
            _ => Rule::Quota(QUOTAS[0].parse().expect("each is a quota")),
        }
    }

    fn key(&mut self) -> Key {
        self.keys[self.random.usize(..self.keys.len())].clone()
    }

    fn quota(&mut self) -> Quota {
        QUOTAS[self.random.usize(..QUOTAS.len())].parse().expect("each is a quota")
    }

    fn mode(&mut self) -> Option<Mode> {
        let modes = [None, None, None, Some(Mode::Enforce), Some(Mode::Shadow), Some(Mode::Off), Some(Mode::Block)];
        modes[self.random.usize(..modes.len())]
    }
}

/// Returns new keys with characters that a client language could mishandle.
fn keys() -> anyhow::Result<Vec<Key>> {
    let unique = Uuid::new_v4();
    let tails = ["", "'", "\"", "\\\"],[", "\n\u{2}\t", "\u{7f}\u{2028}", "🦀é", "null", " ", "A", "a", "%_?1:x$"];
    let mut keys = Vec::new();
    for tail in tails {
        keys.push(Key::try_from(format!("{tail}{unique}{tail}"))?);
    }
    keys.push(Key::try_from(format!("{unique}{}", "\u{2}".repeat(255 - 36)))?);
    keys.push(Key::try_from(format!("{unique}{}x", "é".repeat(109)))?);
    Ok(keys)
}

const QUOTAS: [&str; 10] = [
    "10/s",
    "3/s burst 7",
    "1/h",
    "3155760000000000000/36525d",
    "3 per 1s",
    "7 per 999999937ns",
    "4 per calendar 1h",
    "2 per calendar 1d",
    "3 once",
    "3155760000000000000 once",
];
const SEEDS: u64 = 10;
const BATCHES: usize = 10;
const START: i64 = 1_800_057_600_000_000_000;
const SECOND: i64 = 1_000_000_000;
