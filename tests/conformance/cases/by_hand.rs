//! SQL that operators write by hand, in their own sessions and databases.

use anyhow::ensure;
use tollgate::{Admin, Mode, Quota, Rule, Store, Take, admin::Override};
use uuid::Uuid;

use crate::engines::Kind;
use crate::held::Held;
use crate::matrix::{Case, Levels, Time, list};
use crate::pools::{Scratch, with_session};
use crate::rig::Rig;

pub fn cases() -> Vec<Case> {
    [
        list!(Levels::Pools, Time::Real, |engine| engine.kind == Kind::Postgres;
            modes_and_overrides_are_set_though_all_tables_are_published,
            an_override_made_in_an_old_snapshot_rules_or_fails,
            expired_overrides_change_with_all_other_overrides,
            a_window_is_ruled_as_when_its_row_is_locked)
        .to_vec(),
        list!(Levels::Pools, Time::Real, |engine| engine.kind == Kind::MySql;
            words_with_a_space_behind_them_are_refused,
            id_with_trailing_line_feed_is_refused,
            bucket_takes_its_new_limits_at_once_unless_requests_wait,
            requests_with_truncated_array_are_refused_or_answered)
        .to_vec(),
        list!(Levels::Pools, Time::Real, |engine| engine.kind != Kind::Sqlite;
            bucket_that_never_refills_ignores_refill_seconds)
        .to_vec(),
    ]
    .concat()
}

async fn modes_and_overrides_are_set_though_all_tables_are_published(rig: Rig) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&rig).await?;
    let rig = &scratch.rig;
    rig.pool.run("create publication everything for all tables").await?;
    let key = rig.bucket(Quota::once(1)?).await?;
    rig.store().set_override(&key, Override { mode: Some(Mode::Block), ..Override::default() }).await?;
    assert!(!rig.take(&key).await?.is_granted());
    assert!(rig.store().clear_override(&key).await?);
    rig.store().set_mode(Mode::Off, None, None).await?;
    assert!(rig.decide(Take::from(key.clone()).cost(2)).await?.is_granted());
    rig.pool.run("select tollgate.sweep()").await?;
    Ok(())
}

async fn an_override_made_in_an_old_snapshot_rules_or_fails(rig: Rig) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&rig).await?;
    let rig = &scratch.rig;
    let other = rig.key();
    for level in ["repeatable read", "serializable"] {
        let key = rig.bucket(Quota::once(9)?).await?;
        rig.store().set_override(&other, Override { mode: Some(Mode::Off), ..Override::default() }).await?;
        assert!(rig.store().clear_override(&other).await?);
        let mut operator = Held::open(rig).await?;
        operator.run(format!("rollback; begin isolation level {level}")).await?;
        operator.run("select from tollgate.token_plans").await?;
        rig.pool.run("select tollgate.sweep()").await?;
        let block = format!(
            "insert into tollgate.token_overrides (id, mode, reason) values ({}, 'block', 'abuse')",
            rig.literal(&key)
        );
        match operator.run(block).await {
            Ok(()) => {
                operator.commit().await?;
                assert!(!rig.take(&key).await?.is_granted(), "{level}");
            }
            Err(error) => {
                let code = error.as_database_error().and_then(sqlx::error::DatabaseError::code);
                ensure!(code.as_deref() == Some("40001"), "{level}: {error}");
            }
        }
    }
    Ok(())
}

async fn expired_overrides_change_with_all_other_overrides(rig: Rig) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&rig).await?;
    let rig = &scratch.rig;
    let (expired, lasting) = (rig.bucket(Quota::once(9)?).await?, rig.bucket(Quota::once(9)?).await?);
    for (key, end) in [(&expired, "clock_timestamp() + interval '20 ms'"), (&lasting, "null")] {
        let id = rig.literal(key);
        let values = format!("({id}, 'shadow', 'a trial', {end})");
        rig.pool
            .run(format!("insert into tollgate.token_overrides (id, mode, reason, expires_at) values {values}"))
            .await?;
    }
    rig.until(rig.now().await? + 20_000_000).await?;
    rig.pool.run("update tollgate.token_overrides set mode = 'block'").await?;
    assert!(rig.take(&expired).await?.is_granted());
    assert!(!rig.take(&lasting).await?.is_granted());
    // A restore can write an end in the past. Such an override has no effect.
    rig.pool.run("update tollgate.token_overrides set expires_at = clock_timestamp() - interval '1 s'").await?;
    assert!(rig.take(&lasting).await?.is_granted());
    Ok(())
}

async fn a_window_is_ruled_as_when_its_row_is_locked(rig: Rig) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&rig).await?;
    let rig = &scratch.rig;
    let key = rig.key();
    let window = Take::from(key.clone()).rule(Rule::Window("10 in 60s at 5s".parse()?));
    assert!(rig.decide(window.clone()).await?.is_granted());
    let mut holder = Held::open(rig).await?;
    holder.run(format!("select from tollgate.token_windows where id = {} for update", rig.literal(&key))).await?;
    let (waiting, blocked) = tokio::join!(rig.decide(window), async {
        holder.blocks(rig).await?;
        rig.store().set_mode(Mode::Block, None, None).await?;
        holder.commit().await?;
        anyhow::Ok(())
    });
    blocked?;
    assert!(!waiting?.is_granted());
    Ok(())
}

async fn words_with_a_space_behind_them_are_refused(rig: Rig) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&rig).await?;
    let rig = &scratch.rig;
    for wrong in [
        "update token_mode set mode = 'off '",
        "insert into token_overrides (id, mode, reason) values ('a', 'off ', '')",
        "insert into token_overrides (id, capacity, refill_seconds, refill, reason) values ('a', 1, 1, 'once ', '')",
        "insert into token_plans (name, capacity, refill_seconds, refill) values ('a', 1, 1, 'once ')",
        "insert into token_plans (name, capacity, refill_seconds, mode) values ('a', 1, 1, 'block ')",
        "insert into token_buckets (id, capacity, refill_seconds, refill) values ('a', 1, 1, 'once ')",
        "call token_create_bucket('a', 1, 1, 'once ')",
        "call token_create_plan('a', 1, 1, 'interval ')",
    ] {
        let refusal = rig.refusal(wrong).await?;
        ensure!(["HY000", "23000", "23514"].contains(&refusal.sqlstate.as_str()), "{wrong}: {refusal:?}");
    }
    Ok(())
}

async fn id_with_trailing_line_feed_is_refused(rig: Rig) -> anyhow::Result<()> {
    let key = rig.bucket(Quota::once(9)?).await?;
    let id = Uuid::new_v4().simple().to_string();
    let once = |id: String| format!("call request_tokens_once({}, 1, 0, 0, {id})", rig.literal(&key));
    let refusal = rig.refusal(once(format!("concat('{id}', char(10))"))).await?;
    assert_eq!(refusal.sqlstate, "22023", "{refusal:?}");
    rig.pool.run(once(format!("'{id}'"))).await?;
    assert_eq!(rig.row(&key).await?.map(|row| row.granted), Some(1));
    Ok(())
}

async fn bucket_takes_its_new_limits_at_once_unless_requests_wait(rig: Rig) -> anyhow::Result<()> {
    let key = rig.bucket(Quota::once(9)?).await?;
    let id = rig.literal(&key);
    let under = format!("select under_capacity from token_buckets where id = {id}");
    rig.pool.run(format!("update token_buckets set capacity = 20 where id = {id}")).await?;
    rig.pool.run(format!("call token_create_bucket({id}, 2, 3600, 'continuous')")).await?;
    assert_eq!(rig.sql(under.clone()).await?[0].number("under_capacity")?, 9, "those that were written wait");
    assert!(rig.take(&key).await?.is_granted());
    assert_eq!(rig.sql(under.clone()).await?[0].number("under_capacity")?, 2);
    rig.pool.run(format!("call token_create_bucket({id}, 4, 3600, 'continuous')")).await?;
    assert_eq!(rig.sql(under.clone()).await?[0].number("under_capacity")?, 4);
    rig.store().set_override(&key, Override { quota: Some(Quota::once(5)?), ..Override::default() }).await?;
    assert!(rig.take(&key).await?.is_granted());
    rig.pool.run(format!("call token_create_bucket({id}, 3, 3600, 'continuous')")).await?;
    assert_eq!(rig.sql(under).await?[0].number("under_capacity")?, 5, "the override rules");
    Ok(())
}

/// MariaDB truncates the array that its routines aggregate; MySQL does not.
async fn requests_with_truncated_array_are_refused_or_answered(rig: Rig) -> anyhow::Result<()> {
    let session = with_session(&rig, "set session group_concat_max_len = 1024").await?.0;
    let key = rig.bucket(Quota::once(100)?).await?;
    for requests in 1..60_i64 {
        let array = vec![format!("[\"{key}\", 1]"); usize::try_from(requests)?].join(",");
        let before = rig.row(&key).await?.map(|row| row.granted);
        match session.sql(format!("call request_tokens_many('[{array}]')")).await {
            Ok(rows) => ensure!(rows.len() == usize::try_from(requests)?, "{} rows of {requests}", rows.len()),
            Err(error) => {
                let error = error.into_database_error();
                ensure!(error.is_some_and(|error| error.message().contains("group_concat_max_len")), "{requests}");
                assert_eq!(rig.row(&key).await?.map(|row| row.granted), before);
            }
        }
    }
    Ok(())
}

async fn bucket_that_never_refills_ignores_refill_seconds(rig: Rig) -> anyhow::Result<()> {
    let (coupon, once) = (rig.key(), Rule::Quota(Quota::once(3)?));
    let routine = if rig.engine.kind == Kind::Postgres { "create_bucket" } else { "token_create_bucket" };
    rig.sql(rig.calling(routine, &format!("{}, 3, 60, 'once'", rig.literal(&coupon)))).await?;
    let other = Take::from(rig.key()).rule(once.clone());
    let take = Take::from(coupon.clone()).rule(once);
    for takes in [vec![take.clone()], vec![take.clone(), other], vec![take]] {
        for decision in rig.store().take(&takes).await? {
            ensure!(decision?.is_granted());
        }
    }
    assert_eq!(rig.row(&coupon).await?.map(|row| row.granted), Some(3));
    Ok(())
}
