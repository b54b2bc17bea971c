//! Proof that the checker works. Each mutant routine has a common fault and a schedule that exposes it. A sound routine has no
//! fault under the same schedule.

use common::fleet::checker::Fault;

use crate::engines::Kind;
use crate::matrix::{Case, Setup, list};
use crate::test_db::TestDb;

use self::script::Script;

mod script;

pub fn cases() -> Vec<Case> {
    // Without layers: the cases use their own routines.
    [
        list!(
            Setup { needs: |engine| engine.has_routines && engine.has_sessions, ..Setup::WITHOUT_LAYERS };
            a_clock_read_before_the_lock_is_caught,
            a_read_before_an_unlocked_write_is_caught,
            an_unlocked_creation_is_caught,
        ),
        list!(
            Setup { needs: |engine| engine.kind == Kind::Postgres && engine.has_sessions, ..Setup::WITHOUT_LAYERS };
            mutant_that_credits_a_wait_twice_is_detected,
            mutant_that_moves_a_rounded_count_is_detected,
            denial_that_moves_the_clock_is_detected,
            a_key_twice_in_a_batch_is_caught,
        ),
    ]
    .concat()
}

/// The files of a routine, by engine.
macro_rules! routine {
    ($db:expr, $name:literal) => {
        match $db.engine.kind {
            Kind::MySql => include_str!(concat!("../../mutants/mysql/", $name, ".sql")),
            _ => include_str!(concat!("../../mutants/postgres/", $name, ".sql")),
        }
    };
    (postgres $name:literal) => {
        include_str!(concat!("../../mutants/postgres/", $name, ".sql"))
    };
}

async fn a_clock_read_before_the_lock_is_caught(db: TestDb) -> anyhow::Result<()> {
    async fn schedule(script: &mut Script) -> anyhow::Result<()> {
        script.hold_bucket().await?;
        script.queue(2).await?;
        script.set_clock(10_000).await?;
        script.release().await?;
        script.take().await?;
        script.take().await
    }
    let mut script = Script::load(&db, routine!(db, "sound")).await?;
    schedule(&mut script).await?;
    is_sound(&script)?;
    script.reload(routine!(db, "clock_before_lock")).await?;
    schedule(&mut script).await?;
    is_caught(&script, is_too_many)
}

async fn a_read_before_an_unlocked_write_is_caught(db: TestDb) -> anyhow::Result<()> {
    async fn schedule(script: &mut Script) -> anyhow::Result<()> {
        script.take().await?;
        script.hold_bucket().await?;
        script.queue(2).await?;
        script.release().await
    }
    let mut script = Script::load(&db, routine!(db, "sound")).await?;
    schedule(&mut script).await?;
    is_sound(&script)?;
    script.reload(routine!(db, "read_then_write")).await?;
    schedule(&mut script).await?;
    is_caught(&script, is_too_many)
}

async fn an_unlocked_creation_is_caught(db: TestDb) -> anyhow::Result<()> {
    async fn schedule(script: &mut Script) -> anyhow::Result<()> {
        script.hold_absence().await?;
        script.queue(2).await?;
        script.release().await?;
        script.take().await
    }
    let mut script = Script::load(&db, routine!(db, "sound")).await?;
    schedule(&mut script).await?;
    is_sound(&script)?;
    script.reload(routine!(db, "unlocked_creation")).await?;
    schedule(&mut script).await?;
    is_caught(&script, is_too_many)
}

async fn mutant_that_credits_a_wait_twice_is_detected(db: TestDb) -> anyhow::Result<()> {
    async fn schedule(script: &mut Script) -> anyhow::Result<()> {
        script.take().await?;
        script.take().await?;
        script.hold_bucket().await?;
        script.queue(1).await?;
        script.set_clock(5_000).await?;
        script.release().await?;
        script.take().await?;
        script.take().await
    }
    let mut script = Script::load(&db, routine!(postgres "sound")).await?;
    schedule(&mut script).await?;
    is_sound(&script)?;
    script.reload(routine!(postgres "wait_credited_twice")).await?;
    schedule(&mut script).await?;
    is_caught(&script, is_too_many)
}

async fn mutant_that_moves_a_rounded_count_is_detected(db: TestDb) -> anyhow::Result<()> {
    let mut script = Script::load(&db, routine!(postgres "sound")).await?;
    poll(&mut script).await?;
    is_sound(&script)?;
    script.reload(routine!(postgres "rounding")).await?;
    poll(&mut script).await?;
    is_caught(&script, is_lost)
}

async fn denial_that_moves_the_clock_is_detected(db: TestDb) -> anyhow::Result<()> {
    let mut script = Script::load(&db, routine!(postgres "sound")).await?;
    poll(&mut script).await?;
    is_sound(&script)?;
    script.reload(routine!(postgres "denial_moves_clock")).await?;
    poll(&mut script).await?;
    is_caught(&script, is_lost)
}

async fn a_key_twice_in_a_batch_is_caught(db: TestDb) -> anyhow::Result<()> {
    async fn schedule(script: &mut Script) -> anyhow::Result<()> {
        script.take_twice_in_a_batch().await?;
        script.take_twice_in_a_batch().await
    }
    let mut script = Script::load(&db, routine!(postgres "sound")).await?;
    schedule(&mut script).await?;
    is_sound(&script)?;
    script.reload(routine!(postgres "duplicate_key_in_batch")).await?;
    schedule(&mut script).await?;
    is_caught(&script, is_too_many)
}

/// One caller sends four requests a second, which is faster than the refill.
async fn poll(script: &mut Script) -> anyhow::Result<()> {
    for quarter in 0..16 {
        script.set_clock(quarter * 250).await?;
        script.take().await?;
    }
    Ok(())
}

/// The schedule itself contains no request that a sound routine could not answer.
fn is_sound(script: &Script) -> anyhow::Result<()> {
    let faults = script.faults()?;
    assert!(faults.is_empty(), "{} in {:?}", faults[0], script.calls);
    Ok(())
}

fn is_caught(script: &Script, is_expected: fn(&Fault) -> bool) -> anyhow::Result<()> {
    let faults = script.faults()?;
    assert!(faults.iter().any(is_expected), "{faults:?} in {:?}", script.calls);
    Ok(())
}

fn is_too_many(fault: &Fault) -> bool {
    matches!(fault, Fault::TooManyByDatabase(_))
}

fn is_lost(fault: &Fault) -> bool {
    matches!(fault, Fault::LostToDenial { .. })
}
