//! One run of a sequence, in memory and on an engine.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::ensure;
use chrono::{DateTime, Utc};
use tollgate::{
    Adjusted, Adjustment, Admin, Key, Limiter, Mode, Quota, Reservation, Store, Take, TakeError,
    admin::{BucketLevel, Override},
    model::{Limits, NamedLimit},
    store::SharedWindows,
};
use tollgate_tests::scenarios::World;
use tollgate_tests::scenarios::memory::Memory;

use super::answers::{agree, outcome, same, same_explanation, same_level, same_window};
use super::operations::{Cast, Change, Operation, further_limit, operations};
use super::waiting::{Receipts, Waiters};
use super::{OPERATIONS, sets_modes};
use crate::engines::Kind;
use crate::test_db::TestDb;

pub(super) struct Play<'a> {
    db: &'a TestDb,
    /// Whether the run has its own database.
    alone: bool,
    model: Memory,
    cast: Cast,
    operations: Vec<(usize, Operation)>,
    now: i64,
    /// The latest time since every bucket was emptied.
    latest: i64,
    /// Whether the clock was set back by more than a second in this sequence.
    was_set_back: bool,
    /// The receipts of each operation, in memory and on the engine.
    receipts: Vec<Receipts>,
    waiters: Waiters,
}

pub(super) struct Failure {
    pub(super) place: usize,
    pub(super) log: String,
    pub(super) error: anyhow::Error,
}

impl<'a> Play<'a> {
    pub(super) fn of(db: &'a TestDb, seed: u64, kept: &[usize]) -> Self {
        let keys = |count| (0..count).map(|_| db.key()).collect();
        let cast = Cast { keys: keys(7), plans: keys(3) };
        let mut operations: Vec<_> =
            operations(seed, &cast, OPERATIONS, sets_modes(seed)).into_iter().enumerate().collect();
        operations.retain(|(place, _)| kept.contains(place));
        let receipts = vec![Receipts::default(); OPERATIONS];
        // An end must be in the future by the injected clock and by the server's own.
        let start = if sets_modes(seed) { YEAR_2050 } else { START };
        let now = start + i64::try_from(seed % 3).unwrap_or(0) * 123_456_789;
        Self {
            db,
            alone: sets_modes(seed) || db.engine.kind == Kind::Sqlite,
            model: Memory::new(),
            cast,
            operations,
            now,
            latest: now,
            was_set_back: false,
            receipts,
            waiters: Waiters::default(),
        }
    }

    pub(super) async fn run(mut self) -> Result<(), Failure> {
        let mut log = String::new();
        // Ends the mode of every key from the previous run.
        if self.alone
            && let Err(error) = self.db.store().set_mode(Mode::Enforce, None, None).await
        {
            return Err(Failure { place: 0, log, error: error.into() });
        }
        for (place, operation) in std::mem::take(&mut self.operations) {
            let _ = writeln!(log, "{place} at {}: {}", self.now, self.named(&operation));
            if let Err(error) = Box::pin(self.perform(place, operation)).await {
                return Err(Failure { place, log, error });
            }
        }
        Ok(())
    }

    async fn perform(&mut self, place: usize, operation: Operation) -> anyhow::Result<()> {
        self.model.at(self.now).await?;
        World::at(self.db, self.now).await?;
        let (model, engine) = (self.model.store(), self.db.store());
        match operation {
            Operation::Clock(step) => self.step(place, step).await?,
            Operation::Take(take) => {
                let expected = Limiter::new(model, Quota::unlimited())?.reserve_request(&take).await;
                let found = Box::pin(Limiter::new(engine, Quota::unlimited())?.reserve_request(&take)).await;
                let decided = outcome(expected.as_ref().map(Reservation::decision))?;
                agree(&decided, &outcome(found.as_ref().map(Reservation::decision))?)?;
                if let (Ok(expected), Ok(found)) = (expected, found) {
                    self.receipts[place] = (expected.receipts().to_vec(), found.receipts().to_vec());
                }
            }
            Operation::Wait(take, hold) => {
                self.receipts[place] = Box::pin(self.waiters.start((model, engine), &take, (place, hold))).await?;
            }
            Operation::Leave(place) => self.waiters.leave(place).await?,
            Operation::Batch(takes) => {
                let (expected, found) = (model.take(&takes).await?, engine.take(&takes).await?);
                ensure!(expected.len() == found.len(), "{} answers, not {}", found.len(), expected.len());
                for (number, (expected, found)) in expected.iter().zip(&found).enumerate() {
                    agree(expected, found).map_err(|error| error.context(format!("of the batch, {number}")))?;
                }
            }
            Operation::Count(key, window, cost) => {
                let expected = model.count(&key, &window, cost).await?;
                let found = engine.count(&key, &window, cost).await?;
                same("counting", &expected.available(&window), &found.available(&window))?;
            }
            Operation::Adjust(changes) => self.adjust(&changes).await?,
            Operation::Charge(charges) => {
                let charges: Vec<_> =
                    charges.into_iter().map(|(key, tokens)| Adjustment::charge(key, tokens)).collect();
                same(&format!("{charges:?}"), &model.adjust(&charges).await?, &engine.adjust(&charges).await?)?;
            }
            Operation::Throttle(key, rule, hold) => {
                let text = |lowered: Result<bool, tollgate::Error>| lowered.map_err(|error| error.to_string());
                let expected = text(model.throttle(&key, &rule, hold).await);
                same("holding back", &expected, &text(engine.throttle(&key, &rule, hold).await))?;
            }
            Operation::Reset(key) => {
                same("a reset", &model.reset(&key).await?, &engine.reset(&key).await?)?;
                self.compare_levels(&key, None).await?;
            }
            Operation::Delete(key) => {
                same("a deletion", &model.delete(&key).await?, &engine.delete(&key).await?)?;
                self.compare_levels(&key, None).await?;
            }
            Operation::DeletePlan(plan) => {
                same("a plan's deletion", &model.delete_plan(&plan).await?, &engine.delete_plan(&plan).await?)?;
            }
            // In a shared database, a sweep would delete rows of other cases. After the clock was set back, the model's sweep
            // also converts the rows that it keeps, which the engines leave to the next request. The engines keep full buckets
            // and empty windows for a minute, and the model does not: they delete the same if none becomes so in that minute.
            Operation::Sweep(limit) if self.alone && !self.was_set_back => {
                let (before, from) = (self.unused().await?, self.now);
                self.step(place, MINUTE).await?;
                self.model.at(self.now).await?;
                World::at(self.db, self.now).await?;
                // The last step of the clock can be shorter than the minute after which the servers delete unused rows.
                if self.now - from == MINUTE && self.unused().await? == before {
                    sweep(&model, limit).await?;
                    sweep(&engine, limit).await?;
                }
                for key in self.buckets() {
                    self.compare_levels(&key, None).await?;
                }
            }
            Operation::Sweep(_) => {}
            Operation::Read(key, plan) => self.compare_levels(&key, plan.as_ref()).await?,
            setting => self.rule(setting).await?,
        }
        Ok(())
    }

    /// The ids of the buckets that a request can name: a key up to four times, each with the further limit of a plan.
    fn buckets(&self) -> Vec<Key> {
        let times = std::iter::repeat_n(NamedLimit::from(Quota::unlimited()), 4);
        let times = Limits::new(times).expect("limits without names");
        let each = self.cast.keys.iter().flat_map(|key| [key.clone(), key.limit(&further_limit())]);
        each.flat_map(|key| times.buckets(&key).map(|(id, _)| id).collect::<Vec<_>>()).collect()
    }

    /// Whether each key's bucket is full and its window empty, and their counts of grants.
    async fn unused(&self) -> anyhow::Result<Vec<(bool, u64)>> {
        let (model, mut unused) = (self.model.store(), Vec::new());
        for key in &self.buckets() {
            let (bucket, window) = (model.peek(key).await?, model.peek_window(key).await?);
            unused.extend(
                bucket.map(|level| (level.available() == level.quota().capacity().cast_signed(), level.granted())),
            );
            unused.extend(window.map(|level| (level.counted() == 0, level.granted())));
        }
        Ok(unused)
    }

    async fn compare_levels(&self, key: &Key, plan: Option<&Key>) -> anyhow::Result<()> {
        let (model, engine) = (self.model.store(), self.db.store());
        let level = model.peek(key).await?;
        let last = level.as_ref().map(BucketLevel::quota);
        same_level(level.as_ref(), engine.peek(key).await?.as_ref())?;
        same_window(model.peek_window(key).await?.as_ref(), engine.peek_window(key).await?.as_ref())?;
        same_explanation(model.explain(key, plan).await?, engine.explain(key, plan).await?, last)
    }

    /// Sets plans, modes and overrides.
    async fn rule(&self, operation: Operation) -> anyhow::Result<()> {
        let (model, engine) = (self.model.store(), self.db.store());
        match operation {
            Operation::Create(key, quota) => {
                self.model.create(&key, quota).await?;
                World::create(self.db, &key, quota).await
            }
            Operation::Plan(name, limits, mode) => {
                self.model.store().create_plan(&name, limits.clone()).await?;
                self.model.store().set_plan_mode(&name, mode, None, None).await?;
                self.db.store().create_plan(&name, limits).await?;
                self.db.store().set_plan_mode(&name, mode, None, None).await?;
                Ok(())
            }
            Operation::Mode(mode, end) => {
                let until = end.map(|end| self.end(end));
                model.set_mode(mode, None, until).await?;
                Ok(engine.set_mode(mode, None, until).await?)
            }
            Operation::Override(key, over, end) => {
                let over = Override { expires_at: end.map(|end| self.end(end)), ..over };
                model.set_override(&key, over.clone()).await?;
                Ok(engine.set_override(&key, over).await?)
            }
            Operation::ClearOverride(key) => {
                let (expected, found) = (model.clear_override(&key).await?, engine.clear_override(&key).await?);
                same("taking an override away", &expected, &found)
            }
            other => unreachable!("{other:?} rules nothing"),
        }
    }

    async fn step(&mut self, place: usize, step: i64) -> anyhow::Result<()> {
        for (place, receipts) in self.waiters.wait(Duration::from_nanos(u64::try_from(step).unwrap_or(0))).await? {
            self.receipts[place] = receipts;
        }
        self.now = self.now.saturating_add(step).clamp(0, YEAR_2100);
        self.latest = self.latest.max(self.now);
        // After the clock was set back, the first request that reads a bucket's tokens empties it. Engines differ for requests
        // that need not read the tokens (repeated, spared, never possible). So a request that reads them comes first, for every
        // bucket.
        if self.now < self.latest - SECOND {
            self.latest = self.now;
            self.was_set_back = true;
            for key in self.buckets() {
                Box::pin(self.perform(place, Operation::Take(Take::from(key)))).await?;
            }
        }
        Ok(())
    }

    async fn adjust(&self, changes: &[Change]) -> anyhow::Result<()> {
        let (mut of_model, mut of_engine): (Vec<Adjustment>, Vec<Adjustment>) = Default::default();
        for change in changes {
            let (expected, found) = &self.receipts[change.operation];
            if let (Some(expected), Some(found)) = (expected.get(change.bucket), found.get(change.bucket)) {
                of_model.push(change.of(expected));
                of_engine.push(change.of(found));
            }
        }
        let expected: Vec<Result<Adjusted, TakeError>> = self.model.store().adjust(&of_model).await?;
        let found = self.db.store().adjust(&of_engine).await?;
        same(&format!("{of_engine:?}"), &expected, &found)
    }

    /// An instant that every engine can hold, in milliseconds.
    fn end(&self, after: i64) -> DateTime<Utc> {
        DateTime::from_timestamp_millis(self.now.saturating_add(after) / 1_000_000 + 1).expect("in this era")
    }

    /// Formats an operation, with a letter for each key.
    fn named(&self, operation: &Operation) -> String {
        let mut text = format!("{operation:?}");
        for (place, key) in self.cast.keys.iter().enumerate() {
            text = text.replace(&format!("Key({:?})", key.as_str()), &format!("key{place}"));
        }
        for (place, plan) in self.cast.plans.iter().enumerate() {
            text = text.replace(&format!("Key({:?})", plan.as_str()), &format!("plan{place}"));
        }
        text
    }
}

/// Runs all steps, until one reaches the end.
async fn sweep(store: &impl Store, limit: u32) -> anyhow::Result<()> {
    let store = store.maintenance().expect("it keeps buckets");
    while !store.sweep(limit).await?.finished {}
    Ok(())
}

const START: i64 = 1_800_057_600_000_000_000;
const YEAR_2050: i64 = 2_524_608_000_000_000_000;
const SECOND: i64 = 1_000_000_000;
const MINUTE: i64 = 60 * SECOND;
const YEAR_2100: i64 = 4_102_444_800_000_000_000;
