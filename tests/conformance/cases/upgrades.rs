//! An operator's change of a plan or a mode by one statement applies in every process within a second, regardless of the
//! denials that processes have cached.

use std::time::Duration;

use tokio::runtime::Builder;
use tokio::task::block_in_place;
use tokio::time::{Instant, advance, pause, resume};
use tollgate::{Key, Limiter, Mode, Rule};
use tollgate_tests::scenarios::World;

use crate::matrix::{Case, Setup, list};
use crate::pools::{Scratch, with_session};
use crate::store::AnyStore;
use crate::test_db::TestDb;

pub fn cases() -> Vec<Case> {
    // Without layers: the cases build a limiter for each process.
    list!(
        Setup::WITHOUT_LAYERS;
        one_update_applies_in_every_process_within_a_second,
        mode_change_applies_in_every_process_within_a_second,
    )
}

async fn one_update_applies_in_every_process_within_a_second(db: TestDb) -> anyhow::Result<()> {
    let (key, plan) = (db.key(), db.key());
    World::plan(&db, &plan, "1/h".parse()?, None).await?;
    let mut processes = [Process::new(&db, &plan).await?, Process::new(&db, &plan).await?];
    assert!(processes[0].limiter.allow(&key).await?.is_granted());
    for process in &mut processes {
        assert!(!process.limiter.allow(&key).await?.is_granted());
        process.denied = Instant::now();
    }

    let (plans, name) = (db.table().replace("token_buckets", "token_plans"), db.literal(&plan));
    db.pool.run(format!("update {plans} set capacity = 1000, refill_seconds = 1 where name = {name}")).await?;
    for process in processes {
        process.is_granted_in_time(&key).await?;
    }
    Ok(())
}

async fn mode_change_applies_in_every_process_within_a_second(db: TestDb) -> anyhow::Result<()> {
    // The mode of every key applies to a whole database.
    let scratch = Scratch::migrated(&db).await?;
    // The time of cached denials can be moved only if one thread does everything.
    block_in_place(|| {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(modes_rule_within_a_second(&scratch.db))
    })
}

async fn modes_rule_within_a_second(db: &TestDb) -> anyhow::Result<()> {
    let (key, plan) = (db.key(), db.key());
    World::plan(db, &plan, "1/h".parse()?, None).await?;
    let processes = [Process::new(db, &plan).await?, Process::new(db, &plan).await?];
    assert!(processes[0].limiter.allow(&key).await?.is_granted());
    let table = |name| db.table().replace("token_buckets", name);
    let (plans, all, name) = (table("token_plans"), table("token_mode"), db.literal(&plan));
    let of_plan = |mode| format!("update {plans} set mode = {mode} where name = {name}");
    let of_all = |mode| format!("update {all} set mode = '{mode}'");
    for (update, granted, mode) in [
        (of_plan("'off'"), true, Mode::Off),
        (of_plan("'block'"), false, Mode::Block),
        (of_plan("'shadow'"), true, Mode::Shadow),
        (of_plan("null"), false, Mode::Enforce),
        (of_all("off"), true, Mode::Off),
        (of_all("enforce"), false, Mode::Enforce),
        (of_all("shadow"), true, Mode::Shadow),
        (of_all("block"), false, Mode::Block),
        (of_all("off"), true, Mode::Off),
    ] {
        // Each process caches the denial.
        for process in &processes {
            let _ = process.limiter.allow(&key).await?;
        }
        db.pool.run(update.clone()).await?;
        pause();
        advance(Duration::from_secs(1)).await;
        resume();
        for process in &processes {
            let decision = process.limiter.allow(&key).await?;
            assert_eq!((decision.is_granted(), decision.mode()), (granted, mode), "{update}");
        }
    }
    Ok(())
}

/// A limiter as in a separate process, with its own pool, store and deny cache.
struct Process {
    limiter: Limiter<AnyStore>,
    /// When the database last answered the process.
    denied: Instant,
}

impl Process {
    async fn new(db: &TestDb, plan: &Key) -> anyhow::Result<Self> {
        let (own, _) = with_session(db, "select 1").await?;
        let limiter = Limiter::new(own.store(), Rule::Plan(plan.clone()))?;
        Ok(Self { limiter, denied: Instant::now() })
    }

    /// Sends requests until one is granted. The old plan must not decide a request that is sent more than a second after the
    /// database's last denial, however long each request takes.
    async fn is_granted_in_time(&self, key: &Key) -> anyhow::Result<()> {
        loop {
            let sent = Instant::now();
            let decision = self.limiter.allow(key).await?;
            if decision.is_granted() {
                return Ok(());
            }
            let is_by_old_plan = decision.retry_after().is_none_or(|time| time > Duration::from_mins(1));
            assert!(!is_by_old_plan || sent < self.denied + Duration::from_secs(1), "the old plan: {decision:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}
