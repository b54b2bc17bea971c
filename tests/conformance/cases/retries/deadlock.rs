//! A deadlock of a request for several buckets with another session.

use tollgate::{Rule, Store, Take};

use super::{LONG, in_order};
use crate::engines::Kind;
use crate::held::Held;
use crate::matrix::{Case, Levels, Time, list};
use crate::pools::Scratch;
use crate::rig::Rig;

pub fn cases() -> Vec<Case> {
    [
        list!(Levels::Pools, Time::Real, |engine| engine.kind == Kind::Postgres; a_deadlock_is_retried).to_vec(),
        list!(Levels::Every, Time::Real, |engine| engine.kind == Kind::MySql; a_deadlock_is_retried).to_vec(),
    ]
    .concat()
}

async fn a_deadlock_is_retried(rig: Rig) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&rig).await?;
    let rig = &scratch.rig;
    let (first, second) = in_order(rig).await?;

    let mut held = Held::bucket(rig, &second).await?;
    make_it_the_survivor(rig, &mut held).await?;
    let store = rig.store().deadline(LONG);
    let both = Take::from(first.clone()).and(second.clone(), Rule::Provisioned);
    let taking = tokio::spawn(async move { store.take_one(&both).await });
    held.blocks(rig).await?;
    // The request holds the first bucket and waits for the second. Now the other session waits for the first.
    held.take(rig, &first).await?;
    held.commit().await?;

    let decision = taking.await???;
    assert!(decision.is_granted());
    assert!(decision.attempts() > 1, "no deadlock was met");
    for key in [&first, &second] {
        assert_eq!(rig.row(key).await?.map(|row| row.granted), Some(2), "one of the other's, one of ours");
    }
    Ok(())
}

/// PostgreSQL ends the session that detects the deadlock first, InnoDB the one with fewer changes.
async fn make_it_the_survivor(rig: &Rig, held: &mut Held) -> Result<(), sqlx::Error> {
    if rig.engine.kind == Kind::Postgres {
        return held.run("set local deadlock_timeout = '60s'").await;
    }
    rig.pool.run("create table host_rows (n int)").await?;
    let rows: Vec<String> = (0..200).map(|n| format!("({n})")).collect();
    held.run(format!("insert into host_rows values {}", rows.join(","))).await
}
