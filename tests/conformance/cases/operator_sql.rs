//! SQL that operators write by hand, in their own sessions and databases.

use anyhow::ensure;
use tollgate::{Admin, Mode, Quota, Rule, Store, Take, admin::Override};
use uuid::Uuid;

use crate::engines::Kind;
use crate::matrix::{Case, Setup, list};
use crate::pools::{Scratch, with_session};
use crate::session::Session;
use crate::test_db::TestDb;

pub fn cases() -> Vec<Case> {
    // Without layers: the cases use operators' SQL, with their own sessions and databases.
    [
        list!(
            Setup { needs: |engine| engine.kind == Kind::Postgres, ..Setup::WITHOUT_LAYERS };
            modes_and_overrides_are_set_though_all_tables_are_published,
            an_override_made_in_an_old_snapshot_rules_or_fails,
            expired_overrides_change_with_all_other_overrides,
            window_uses_the_mode_when_its_row_is_locked,
        ),
        list!(
            Setup { needs: |engine| engine.kind == Kind::MySql, ..Setup::WITHOUT_LAYERS };
            words_with_a_space_behind_them_are_refused,
            id_with_trailing_line_feed_is_refused,
            bucket_takes_its_new_limits_at_once_unless_requests_wait,
            requests_longer_than_the_sessions_maximum_are_answered,
        ),
        list!(
            Setup { needs: |engine| engine.kind != Kind::Sqlite, ..Setup::WITHOUT_LAYERS };
            bucket_that_never_refills_ignores_refill_seconds,
        ),
    ]
    .concat()
}

async fn modes_and_overrides_are_set_though_all_tables_are_published(db: TestDb) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&db).await?;
    let db = &scratch.db;
    db.pool.run("create publication everything for all tables").await?;
    let key = db.bucket(Quota::once(1)?).await?;
    db.store().set_override(&key, Override { mode: Some(Mode::Block), ..Override::default() }).await?;
    assert!(!db.take(&key).await?.is_granted());
    assert!(db.store().clear_override(&key).await?);
    db.store().set_mode(Mode::Off, None, None).await?;
    assert!(db.decide(Take::from(key.clone()).cost(2)).await?.is_granted());
    db.pool.run("select tollgate.sweep()").await?;
    Ok(())
}

async fn an_override_made_in_an_old_snapshot_rules_or_fails(db: TestDb) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&db).await?;
    let db = &scratch.db;
    let other = db.key();
    for level in ["repeatable read", "serializable"] {
        let key = db.bucket(Quota::once(9)?).await?;
        db.store().set_override(&other, Override { mode: Some(Mode::Off), ..Override::default() }).await?;
        assert!(db.store().clear_override(&other).await?);
        let mut operator = Session::begin(db).await?;
        operator.run(format!("rollback; begin isolation level {level}")).await?;
        operator.run("select from tollgate.token_plans").await?;
        db.pool.run("select tollgate.sweep()").await?;
        let block = format!(
            "insert into tollgate.token_overrides (id, mode, reason) values ({}, 'block', 'abuse')",
            db.literal(&key)
        );
        match operator.run(block).await {
            Ok(()) => {
                operator.commit().await?;
                assert!(!db.take(&key).await?.is_granted(), "{level}");
            }
            Err(error) => {
                let code = error.as_database_error().and_then(sqlx::error::DatabaseError::code);
                ensure!(code.as_deref() == Some("40001"), "{level}: {error}");
            }
        }
    }
    Ok(())
}

async fn expired_overrides_change_with_all_other_overrides(db: TestDb) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&db).await?;
    let db = &scratch.db;
    let (expired, lasting) = (db.bucket(Quota::once(9)?).await?, db.bucket(Quota::once(9)?).await?);
    for (key, end) in [(&expired, "clock_timestamp() + interval '20 ms'"), (&lasting, "null")] {
        let id = db.literal(key);
        let values = format!("({id}, 'shadow', 'a trial', {end})");
        db.pool
            .run(format!("insert into tollgate.token_overrides (id, mode, reason, expires_at) values {values}"))
            .await?;
    }
    db.until(db.now().await? + 20_000_000).await?;
    db.pool.run("update tollgate.token_overrides set mode = 'block'").await?;
    assert!(db.take(&expired).await?.is_granted());
    assert!(!db.take(&lasting).await?.is_granted());
    // A restore can write an end in the past. Such an override has no effect.
    db.pool.run("update tollgate.token_overrides set expires_at = clock_timestamp() - interval '1 s'").await?;
    assert!(db.take(&lasting).await?.is_granted());
    Ok(())
}

async fn window_uses_the_mode_when_its_row_is_locked(db: TestDb) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&db).await?;
    let db = &scratch.db;
    let key = db.key();
    let window = Take::from(key.clone()).rule(Rule::Window("10 in 60s at 5s".parse()?));
    assert!(db.decide(window.clone()).await?.is_granted());
    let mut holder = Session::begin(db).await?;
    holder.run(format!("select from tollgate.token_windows where id = {} for update", db.literal(&key))).await?;
    let (waiting, blocked) = tokio::join!(db.decide(window), async {
        holder.until_blocking(db).await?;
        db.store().set_mode(Mode::Block, None, None).await?;
        holder.commit().await?;
        anyhow::Ok(())
    });
    blocked?;
    assert!(!waiting?.is_granted());
    Ok(())
}

async fn words_with_a_space_behind_them_are_refused(db: TestDb) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&db).await?;
    let db = &scratch.db;
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
        let refusal = db.refusal(wrong).await?;
        ensure!(["HY000", "23000", "23514"].contains(&refusal.sqlstate.as_str()), "{wrong}: {refusal:?}");
    }
    Ok(())
}

async fn id_with_trailing_line_feed_is_refused(db: TestDb) -> anyhow::Result<()> {
    let key = db.bucket(Quota::once(9)?).await?;
    let id = Uuid::new_v4().simple().to_string();
    let once = |id: String| format!("call request_tokens_once({}, 1, 0, 0, {id})", db.literal(&key));
    let refusal = db.refusal(once(format!("concat('{id}', char(10))"))).await?;
    assert_eq!(refusal.sqlstate, "22023", "{refusal:?}");
    db.pool.run(once(format!("'{id}'"))).await?;
    assert_eq!(db.row(&key).await?.map(|row| row.granted), Some(1));
    Ok(())
}

async fn bucket_takes_its_new_limits_at_once_unless_requests_wait(db: TestDb) -> anyhow::Result<()> {
    let key = db.bucket(Quota::once(9)?).await?;
    let id = db.literal(&key);
    let under = format!("select under_capacity from token_buckets where id = {id}");
    db.pool.run(format!("update token_buckets set capacity = 20 where id = {id}")).await?;
    db.pool.run(format!("call token_create_bucket({id}, 2, 3600, 'continuous')")).await?;
    assert_eq!(db.sql(under.clone()).await?[0].number("under_capacity")?, 9, "those that were written wait");
    assert!(db.take(&key).await?.is_granted());
    assert_eq!(db.sql(under.clone()).await?[0].number("under_capacity")?, 2);
    db.pool.run(format!("call token_create_bucket({id}, 4, 3600, 'continuous')")).await?;
    assert_eq!(db.sql(under.clone()).await?[0].number("under_capacity")?, 4);
    db.store().set_override(&key, Override { quota: Some(Quota::once(5)?), ..Override::default() }).await?;
    assert!(db.take(&key).await?.is_granted());
    db.pool.run(format!("call token_create_bucket({id}, 3, 3600, 'continuous')")).await?;
    assert_eq!(db.sql(under).await?[0].number("under_capacity")?, 5, "the override rules");
    Ok(())
}

/// MariaDB truncates an array that exceeds `group_concat_max_len`.
async fn requests_longer_than_the_sessions_maximum_are_answered(db: TestDb) -> anyhow::Result<()> {
    let session = with_session(&db, "set session group_concat_max_len = 4").await?.0;
    let key = db.bucket(Quota::once(100)?).await?;
    let array = vec![format!("[\"{key}\", 1]"); 60].join(",");
    assert_eq!(session.sql(format!("call request_tokens_many('[{array}]')")).await?.len(), 60);
    assert_eq!(db.row(&key).await?.map(|row| row.granted), Some(60));
    let window = db.key();
    for expected in [1, 1, 0] {
        let rows = session.sql(format!("call request_tokens_in_window('{window}', 2, 3600, 60, 1, 0)")).await?;
        assert_eq!(rows[0].number("granted")?, expected);
    }
    let refund = format!(
        "call token_adjust_window_v1('refund', uuid(), '{window}', 1, unix_timestamp() * 1000000000, 1, false)"
    );
    assert_eq!(session.sql(refund).await?[0].text("outcome")?, Some("done"));
    assert_eq!(session.sql("select @@group_concat_max_len as n").await?[0].number("n")?, 4);
    Ok(())
}

async fn bucket_that_never_refills_ignores_refill_seconds(db: TestDb) -> anyhow::Result<()> {
    let (coupon, once) = (db.key(), Rule::Quota(Quota::once(3)?));
    let routine = if db.engine.kind == Kind::Postgres { "create_bucket" } else { "token_create_bucket" };
    db.sql(db.calling(routine, &format!("{}, 3, 60, 'once'", db.literal(&coupon)))).await?;
    let other = Take::from(db.key()).rule(once.clone());
    let take = Take::from(coupon.clone()).rule(once);
    for takes in [vec![take.clone()], vec![take.clone(), other], vec![take]] {
        for decision in db.store().take(&takes).await? {
            ensure!(decision?.is_granted());
        }
    }
    assert_eq!(db.row(&coupon).await?.map(|row| row.granted), Some(3));
    Ok(())
}
