//! Batches of requests for several limits each, in the routine of MySQL and MariaDB.

use anyhow::ensure;
use tollgate::{Admin, Mode, Quota, Rule, Store, Take, model::Outcome};

use crate::engines::Kind;
use crate::matrix::{Case, Setup, list};
use crate::pools::{Scratch, with_session};
use crate::test_db::TestDb;

pub(crate) fn cases() -> Vec<Case> {
    list!(
        Setup { needs: |engine| engine.kind == Kind::MySql, ..Setup::WITHOUT_LAYERS };
        batches_of_several_limits_are_decided,
        requests_of_many_limits_are_decided,
        several_limits_make_no_bucket_while_all_is_off,
    )
}

/// MariaDB truncates arrays that exceed it.
const SHORT: &str = "set session group_concat_max_len = 4";

async fn requests_of_many_limits_are_decided(db: TestDb) -> anyhow::Result<()> {
    let empty = db.bucket(Quota::once(1)?).await?;
    assert!(db.store().take_one(&Take::from(empty.clone())).await??.is_granted());
    let session = with_session(&db, SHORT).await?.0;
    for limits in [4, 13, 40] {
        let rule = Rule::Quota(Quota::once(1_000_000_000)?);
        let keys: Vec<_> = (0..limits).map(|_| db.key()).collect();
        let all = keys[1..]
            .iter()
            .fold(Take::from(keys[0].clone()).rule(rule.clone()), |all, key| all.and(key.clone(), rule.clone()));
        for left in [999_999_999, 999_999_998] {
            let decision = session.store().take_one(&all).await??;
            assert_eq!(decision.each().len(), limits, "{limits} limits");
            let found: Vec<_> = decision.each().iter().map(|one| (one.is_granted(), one.remaining())).collect();
            assert_eq!(found, vec![(true, Some(left)); limits], "{limits} limits");
        }
        let denied = session.store().take_one(&all.and(empty.clone(), Rule::Provisioned)).await??;
        assert_eq!((denied.is_granted(), denied.limit_index(), denied.each().len()), (false, limits, limits + 1));
    }
    Ok(())
}

async fn batches_of_several_limits_are_decided(db: TestDb) -> anyhow::Result<()> {
    let session = with_session(&db, SHORT).await?.0;
    let (shared, plan) = (db.bucket(Quota::once(30)?).await?, db.key());
    db.store().create_plan(&plan, Quota::once(9)?.into()).await?;
    let rules = [Rule::Plan(plan), Rule::Quota(Quota::once(7)?)];
    let rule = |place: usize| rules[place % 2].clone();
    let several = |place: usize| Take::from(shared.clone()).and(db.key(), rule(place));
    let takes: Vec<Take> = (0..40).map(several).collect();
    let granted = |outcomes: Vec<Outcome>| outcomes.into_iter().map(|outcome| outcome.map(|d| d.is_granted()));
    let outcomes: Vec<bool> = granted(session.store().take(&takes).await?).collect::<Result<_, _>>()?;
    assert_eq!(outcomes, [[true; 30].as_slice(), &[false; 10]].concat());
    let of_one = |take: &Take| Take::from(take.keys().nth(1).expect("two").clone()).rule(Rule::Provisioned).cost(6);
    let outcomes: Vec<bool> = granted(session.store().take(&takes.iter().map(of_one).collect::<Vec<_>>()).await?)
        .collect::<Result<_, _>>()?;
    assert_eq!(outcomes, [true; 40]);
    assert_eq!(db.row(&shared).await?.map(|row| row.granted), Some(30));
    Ok(())
}

async fn several_limits_make_no_bucket_while_all_is_off(db: TestDb) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&db).await?;
    let db = &scratch.db;
    db.store().set_mode(Mode::Off, None, None).await?;
    let rule = Rule::Quota(Quota::once(1)?);
    let keys = [db.key(), db.key(), db.key()];
    let takes = [0, 1, 1, 1].map(|place: usize| {
        Take::from(keys[place].clone()).rule(rule.clone()).and(keys[place + 1].clone(), rule.clone())
    });
    for outcome in db.store().take(&takes).await? {
        ensure!(outcome?.is_granted());
    }
    for key in &keys {
        assert!(db.row(key).await?.is_none());
    }
    Ok(())
}
