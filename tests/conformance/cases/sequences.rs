//! Random sequences of every verb: each engine answers, one by one, what the store in this process does.
//!
//! Even seeds set the mode of every key and overrides too, in a database that nobody else uses.
//!
//! The same seeds in every run, and a fresh one. Whatever fails names its seed, which `TOLLGATE_SEED` replays.

use std::fmt::Write as _;

use anyhow::ensure;
use chrono::{DateTime, Utc};
use tollgate::{
    Adjusted, Adjustment, Admin, Decision, Error, Limiter, Mode, Outcome, Override, Quota, Receipt, Reservation, Store,
    Take, TakeError,
};

use crate::engines::Kind;
use crate::matrix::{Case, Levels, Time, list};
use crate::pools::injected;
use crate::rig::Rig;
use crate::scenarios::World;
use crate::scenarios::memory::Memory;

mod operations;

use operations::{Cast, Operation, operations};

pub(crate) fn cases() -> Vec<Case> {
    list!(Levels::Pools, Time::Injected, |_| true; any_sequence_is_answered_as_in_memory).into()
}

async fn any_sequence_is_answered_as_in_memory(rig: Rig) -> anyhow::Result<()> {
    let seeds: Vec<u64> = match std::env::var("TOLLGATE_SEED") {
        Ok(seed) => vec![seed.parse()?],
        Err(_) => (1..=SEEDS).chain([fastrand::u64(..)]).collect(),
    };
    let own = if rig.engine.kind == Kind::Sqlite { None } else { Some(injected(&rig).await?) };
    let ruled = own.as_ref().map_or(&rig, |(_, session)| session);
    for seed in seeds {
        let _named = Named(seed);
        let rig = if is_ruled(seed) { ruled } else { &rig };
        let mut kept: Vec<usize> = (0..OPERATIONS).collect();
        let Err(mut failure) = Box::pin(Play::of(rig, seed, &kept).run()).await else { continue };
        // Whatever comes after it, or before it and makes no difference, is left out.
        kept.retain(|place| *place <= failure.place);
        for place in (0..failure.place).rev() {
            let fewer: Vec<usize> = kept.iter().copied().filter(|other| *other != place).collect();
            if let Err(same) = Box::pin(Play::of(rig, seed, &fewer).run()).await {
                (failure, kept) = (same, fewer);
                kept.retain(|place| *place <= failure.place);
            }
        }
        anyhow::bail!("TOLLGATE_SEED={seed} replays this:\n{}\n{:#}", failure.told, failure.error);
    }
    Ok(())
}

/// Whether a seed's operations set the mode of every key and overrides.
fn is_ruled(seed: u64) -> bool {
    seed.is_multiple_of(2)
}

/// Names its seed when something panics.
struct Named(u64);

impl Drop for Named {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("TOLLGATE_SEED={} replays this", self.0);
        }
    }
}

/// One run of a sequence, in memory and on an engine.
struct Play<'a> {
    rig: &'a Rig,
    /// In a database that nobody else uses.
    alone: bool,
    model: Memory,
    cast: Cast,
    operations: Vec<(usize, Operation)>,
    now: i64,
    /// What each operation took, in memory and on the engine.
    receipts: Vec<(Vec<Receipt>, Vec<Receipt>)>,
}

struct Failure {
    place: usize,
    told: String,
    error: anyhow::Error,
}

impl<'a> Play<'a> {
    fn of(rig: &'a Rig, seed: u64, kept: &[usize]) -> Self {
        let keys = |count| (0..count).map(|_| rig.key()).collect();
        let cast = Cast { keys: keys(7), plans: keys(3) };
        let mut operations: Vec<_> =
            operations(seed, &cast, OPERATIONS, is_ruled(seed)).into_iter().enumerate().collect();
        operations.retain(|(place, _)| kept.contains(place));
        let receipts = vec![(Vec::new(), Vec::new()); OPERATIONS];
        // An end must be past neither by the injected clock nor by the server's own.
        let start = if is_ruled(seed) { YEAR_2050 } else { START };
        let now = start + i64::try_from(seed % 3).unwrap_or(0) * 123_456_789;
        Self {
            rig,
            alone: is_ruled(seed) || rig.engine.kind == Kind::Sqlite,
            model: Memory::new(),
            cast,
            operations,
            now,
            receipts,
        }
    }

    async fn run(mut self) -> Result<(), Failure> {
        let mut told = String::new();
        // What ruled every key in the run before is over.
        if self.alone
            && let Err(error) = self.rig.store().set_mode(Mode::Enforce, None, None).await
        {
            return Err(Failure { place: 0, told, error: error.into() });
        }
        for (place, operation) in std::mem::take(&mut self.operations) {
            let _ = writeln!(told, "{place} at {}: {}", self.now, self.named(&operation));
            if let Err(error) = Box::pin(self.perform(place, operation)).await {
                return Err(Failure { place, told, error });
            }
        }
        Ok(())
    }

    async fn perform(&mut self, place: usize, operation: Operation) -> anyhow::Result<()> {
        self.model.at(self.now).await?;
        World::at(self.rig, self.now).await?;
        let (model, engine) = (self.model.store(), self.rig.store());
        match operation {
            Operation::Clock(step) => {
                self.now = self.now.saturating_add(step).clamp(0, YEAR_2100);
                // After the clock was set back, the first request that looks at a bucket's tokens empties it. Whether one
                // that need not look at them does so too (repeated, spared, never possible) is each engine's own: so here
                // comes one of the others first, for every bucket.
                if step < -SECOND {
                    for key in self.cast.keys.clone() {
                        Box::pin(self.perform(place, Operation::Take(Take::from(key)))).await?;
                    }
                }
            }
            Operation::Create(key, quota) => {
                self.model.create(&key, quota).await?;
                World::create(self.rig, &key, quota).await?;
            }
            Operation::Plan(name, quota, mode) => {
                self.model.plan(&name, quota, mode).await?;
                World::plan(self.rig, &name, quota, mode).await?;
            }
            Operation::Mode(mode, end) => {
                let until = end.map(|end| self.end(end));
                model.set_mode(mode, None, until).await?;
                engine.set_mode(mode, None, until).await?;
            }
            Operation::Override(key, over, end) => {
                let over = Override { expires_at: end.map(|end| self.end(end)), ..over };
                model.set_override(&key, over.clone()).await?;
                engine.set_override(&key, over).await?;
            }
            Operation::ClearOverride(key) => {
                let (expected, found) = (model.clear_override(&key).await?, engine.clear_override(&key).await?);
                ensure!(expected == found, "whether there was an override of {key:?}: {found}, not {expected}");
            }
            Operation::Take(take) => {
                let expected = Limiter::new(model, Quota::unlimited())?.reserve_all(&take).await;
                let found = Box::pin(Limiter::new(engine, Quota::unlimited())?.reserve_all(&take)).await;
                let decided = outcome(expected.as_ref().map(Reservation::decision))?;
                agree(&decided, &outcome(found.as_ref().map(Reservation::decision))?)?;
                if let (Ok(expected), Ok(found)) = (expected, found) {
                    self.receipts[place] = (expected.receipts().to_vec(), found.receipts().to_vec());
                }
            }
            Operation::Batch(takes) => {
                let (expected, found) = (model.take(&takes).await?, engine.take(&takes).await?);
                ensure!(expected.len() == found.len(), "{} answers, not {}", found.len(), expected.len());
                for (number, (expected, found)) in expected.iter().zip(&found).enumerate() {
                    agree(expected, found).map_err(|error| error.context(format!("of the batch, {number}")))?;
                }
            }
            Operation::HoldBack(key, rule, hold) => {
                let (expected, found) =
                    (model.hold_back(&key, &rule, hold).await, engine.hold_back(&key, &rule, hold).await);
                let same = match (&expected, &found) {
                    (Ok(expected), Ok(found)) => expected == found,
                    (Err(expected), Err(found)) => expected.to_string() == found.to_string(),
                    _ => false,
                };
                ensure!(same, "holding back is answered {found:?}\nand not {expected:?}");
            }
            Operation::Adjust(changes) => {
                let (mut of_model, mut of_engine): (Vec<Adjustment>, Vec<Adjustment>) = Default::default();
                for change in changes {
                    let (expected, found) = &self.receipts[change.operation];
                    if let (Some(expected), Some(found)) = (expected.get(change.bucket), found.get(change.bucket)) {
                        of_model.push(change.of(expected));
                        of_engine.push(change.of(found));
                    }
                }
                let expected: Vec<Result<Adjusted, TakeError>> = model.adjust(&of_model).await?;
                let found = engine.adjust(&of_engine).await?;
                ensure!(found == expected, "{of_engine:?} is answered {found:?}\nand not {expected:?}");
            }
        }
        Ok(())
    }

    /// An instant that every engine can hold, in milliseconds.
    fn end(&self, after: i64) -> DateTime<Utc> {
        DateTime::from_timestamp_millis(self.now.saturating_add(after) / 1_000_000 + 1).expect("in this era")
    }

    /// With a letter for each key.
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

/// What can be said of the request, unless there is no answer at all.
fn outcome(answer: Result<&Decision, &Error>) -> anyhow::Result<Outcome> {
    match answer {
        Ok(decision) => Ok(Ok(decision.clone())),
        Err(Error::Take(refused)) => Ok(Err(refused.clone())),
        Err(error) => Err(error.clone().into()),
    }
}

fn agree(expected: &Outcome, found: &Outcome) -> anyhow::Result<()> {
    let shown = |decision: &Decision| {
        (
            (decision.is_granted(), decision.remaining(), decision.limit(), decision.mode(), decision.source()),
            (decision.wait(), decision.retry_after(), decision.reset_after()),
        )
    };
    let same = match (expected, found) {
        // What was asked again, because others were in the way, says so.
        (Ok(expected), Ok(found)) if found.attempts() > 1 => shown(expected) == shown(found),
        _ => expected == found,
    };
    ensure!(same, "the answer is {found:?}\nand not {expected:?}");
    Ok(())
}

const SEEDS: u64 = 24;
const OPERATIONS: usize = 60;
const START: i64 = 1_800_057_600_000_000_000;
const YEAR_2050: i64 = 2_524_608_000_000_000_000;
const SECOND: i64 = 1_000_000_000;
const YEAR_2100: i64 = 4_102_444_800_000_000_000;
