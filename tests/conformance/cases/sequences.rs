//! Random sequences of every method and of operators' changes, on buckets and sliding windows. Each answer of an engine equals
//! that of the in-memory store.
//!
//! Even seeds also set the mode of every key and overrides, in a separate database.
//!
//! A failure names its seed and the shortest sequence that fails.

use std::time::Instant;

use tokio::runtime::Builder;
use tokio::task::block_in_place;

use crate::engines::Kind;
use crate::matrix::{Case, Setup, Time, list};
use crate::pools::injected;
use crate::random::seeds;
use crate::test_db::TestDb;

mod answers;
mod operations;
mod play;
mod waiting;

use play::Play;
use waiting::HUNG;

pub(crate) fn cases() -> Vec<Case> {
    list!(
        Setup { time: Time::Injected, is_random: true, ..Setup::LAYERED_EVERYWHERE };
        any_sequence_is_answered_as_in_memory,
    )
}

async fn any_sequence_is_answered_as_in_memory(db: TestDb) -> anyhow::Result<()> {
    let own = if db.engine.kind == Kind::Sqlite { None } else { Some(injected(&db).await?) };
    let own_database = own.as_ref().map_or(&db, |(_, session)| session);
    // Waiters' time can be moved only if one thread does everything.
    block_in_place(|| {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(all_are_answered(&db, own_database, seeds((1..=SEEDS).chain(FAULT_SEEDS))?))
    })
}

async fn all_are_answered(db: &TestDb, own_database: &TestDb, seeds: Vec<u64>) -> anyhow::Result<()> {
    for seed in seeds {
        let _named = Named(seed);
        let db = if sets_modes(seed) { own_database } else { db };
        let mut kept: Vec<usize> = (0..OPERATIONS).collect();
        let started = Instant::now();
        let Err(mut failure) = Box::pin(Play::of(db, seed, &kept).run()).await else { continue };
        // A call without an answer would be waited for in each of the runs below.
        let is_slow = started.elapsed() > HUNG;
        // Removes the operations after the failure, and those before it without influence.
        kept.retain(|place| *place <= failure.place);
        for place in (0..failure.place).rev().filter(|_| !is_slow) {
            let fewer: Vec<usize> = kept.iter().copied().filter(|other| *other != place).collect();
            if let Err(same) = Box::pin(Play::of(db, seed, &fewer).run()).await {
                (failure, kept) = (same, fewer);
                kept.retain(|place| *place <= failure.place);
            }
        }
        anyhow::bail!("TOLLGATE_SEED={seed} replays this:\n{}\n{:#}", failure.log, failure.error);
    }
    Ok(())
}

/// Whether a seed's operations set the mode of every key and overrides.
fn sets_modes(seed: u64) -> bool {
    seed.is_multiple_of(2)
}

/// Prints its seed on a panic.
struct Named(u64);

impl Drop for Named {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("TOLLGATE_SEED={} replays this", self.0);
        }
    }
}

const SEEDS: u64 = 9;
/// Found a fault in an earlier run.
const FAULT_SEEDS: [u64; 3] = [11_930_067_647_510_445_419, 16_065_990_330_986_745_879, 10_248_400_447_813_396_701];
const OPERATIONS: usize = 60;
