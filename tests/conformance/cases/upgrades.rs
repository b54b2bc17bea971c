//! A plan that an operator changes by one statement rules in every process within a second, whatever each has in memory.

use std::time::Duration;

use tokio::time::Instant;
use tollgate::{Key, Limiter, Rule};

use crate::matrix::{Case, Levels, Time, list};
use crate::pools::with_session;
use crate::rig::Rig;
use crate::scenarios::World;
use crate::store::AnyStore;

pub fn cases() -> Vec<Case> {
    list!(Levels::Pools, Time::Real, |_| true; one_update_rules_in_every_process_within_a_second).into()
}

async fn one_update_rules_in_every_process_within_a_second(rig: Rig) -> anyhow::Result<()> {
    let (key, plan) = (rig.key(), rig.key());
    World::plan(&rig, &plan, "1/h".parse()?, None).await?;
    let mut processes = [Process::new(&rig, &plan).await?, Process::new(&rig, &plan).await?];
    assert!(processes[0].limiter.allow(&key).await?.is_granted());
    for process in &mut processes {
        assert!(!process.limiter.allow(&key).await?.is_granted());
        process.denied = Instant::now();
    }

    let (plans, name) = (rig.table().replace("token_buckets", "token_plans"), rig.literal(&plan));
    rig.pool.run(format!("update {plans} set capacity = 1000, refill_seconds = 1 where name = {name}")).await?;
    for process in processes {
        process.is_granted_in_time(&key).await?;
    }
    Ok(())
}

/// A limiter as a process of its own would have it: its own pool and store, and what it remembers of denials.
struct Process {
    limiter: Limiter<AnyStore>,
    /// When it was answered by the database last.
    denied: Instant,
}

impl Process {
    async fn new(rig: &Rig, plan: &Key) -> anyhow::Result<Self> {
        let (own, _) = with_session(rig, "select 1").await?;
        let limiter = Limiter::new(own.store(), Rule::Plan(plan.clone()))?;
        Ok(Self { limiter, denied: Instant::now() })
    }

    /// Asks until it is granted. However long each question takes, the old plan answers none that is put more than a second
    /// after the database denied the one before.
    async fn is_granted_in_time(&self, key: &Key) -> anyhow::Result<()> {
        loop {
            let asked = Instant::now();
            let decision = self.limiter.allow(key).await?;
            if decision.is_granted() {
                return Ok(());
            }
            let is_by_old_plan = decision.retry_after() > Duration::from_mins(1);
            assert!(!is_by_old_plan || asked < self.denied + Duration::from_secs(1), "the old plan: {decision:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}
