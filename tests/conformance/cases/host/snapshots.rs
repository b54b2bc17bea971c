//! Calls within the host's transaction on MySQL and MariaDB, whose snapshot is older than changes by others to the rows of the
//! call.

use std::time::Duration;

use anyhow::{Context, ensure};
use sqlx::mysql::MySqlDatabaseError;
use tollgate::{Admin, Key, Limiter, Mode, Quota, Rule, Take, Window};
use uuid::Uuid;

use crate::client::Row;
use crate::engines::Kind;
use crate::matrix::{Case, Setup, list};
use crate::pools::{Scratch, with_session};
use crate::test_db::{TestDb, hex};

pub fn cases() -> Vec<Case> {
    list!(
        Setup { needs: |engine| engine.kind == Kind::MySql, ..Setup::WITHOUT_LAYERS };
        window_created_after_the_snapshot_counts,
        longer_interval_stored_after_the_snapshot_counts,
        reservations_made_after_the_snapshot_stay,
        plan_that_blocks_applies_to_buckets_made_after_the_snapshot,
        plan_of_the_request_applies_although_the_snapshot_has_it,
    )
}

async fn window_created_after_the_snapshot_counts(db: TestDb) -> anyhow::Result<()> {
    let (host, key) = (Host::new(&db).await?, db.key());
    let _ = db.decide(Take::from(key.clone()).rule(window(2, 60))).await?;
    let granted = host.take_times(&key, 60, 2).await?;
    ensure!(granted.is_none_or(|granted| granted == [true, false]), "one was there");
    Ok(())
}

async fn longer_interval_stored_after_the_snapshot_counts(db: TestDb) -> anyhow::Result<()> {
    let key = db.key();
    let _ = db.decide(Take::from(key.clone()).rule(window(2, 1))).await?;
    let host = Host::new(&db).await?;
    let _ = db.decide(Take::from(key.clone()).rule(window(2, 3600))).await?;
    host.take_times(&key, 1, 1).await?;
    host.commit().await?;
    let level = db.store().peek_window(&key).await?.context("it is there")?;
    assert_eq!(level.window().interval(), Duration::from_secs(3600));
    Ok(())
}

async fn reservations_made_after_the_snapshot_stay(db: TestDb) -> anyhow::Result<()> {
    let key = db.bucket(Quota::continuous(10, Duration::from_secs(10))?).await?;
    let host = Host::new(&db).await?;
    let limiter = Limiter::new(db.store(), Rule::Provisioned)?;
    let _promised = limiter.reserve_n(key.clone(), 10).await?;
    let _later = limiter.reserve_n(key.clone(), 10).await?;
    let promised = db.row(&key).await?.context("it is there")?.max_granted_wait;
    assert!(promised > 0);
    let arguments = format!("'refund', '{}', '{key}', 1, 1, 0, 1, false", Uuid::new_v4());
    host.call("token_adjust_v1", &arguments).await?;
    host.commit().await?;
    assert_eq!(db.row(&key).await?.context("it is there")?.max_granted_wait, promised);
    Ok(())
}

async fn plan_that_blocks_applies_to_buckets_made_after_the_snapshot(db: TestDb) -> anyhow::Result<()> {
    // Requires that no other plan has a mode.
    let scratch = Scratch::migrated(&db).await?;
    let (db, plan, mut keys) = (&scratch.db, scratch.db.key(), [scratch.db.key(), scratch.db.key()]);
    db.store().create_plan(&plan, Quota::once(5)?.into()).await?;
    db.store().set_plan_mode(&plan, Some(Mode::Block), None, None).await?;
    let host = Host::new(db).await?;
    for key in &keys {
        assert!(!db.decide(Take::from(key.clone()).rule(Rule::Plan(plan.clone()))).await?.is_granted());
    }
    keys.sort();
    let limit = |key: &Key| {
        format!("[\"{}\",1,0,null,null,null,\"{}\"]", hex(key.as_str().as_bytes()), hex(plan.as_str().as_bytes()))
    };
    let limits = db.quoted(&format!("[{},{}]", limit(&keys[0]), limit(&keys[1])));
    host.call("token_take_all_v1", &format!("{limits}, 0, null, 0, false, @answers")).await?;
    host.commit().await?;
    for key in &keys {
        assert_eq!(db.row(key).await?.context("it is there")?.granted, 0);
    }
    Ok(())
}

async fn plan_of_the_request_applies_although_the_snapshot_has_it(db: TestDb) -> anyhow::Result<()> {
    let (key, small, large) = (db.key(), db.key(), db.key());
    db.store().create_plan(&small, Quota::once(1)?.into()).await?;
    db.store().create_plan(&large, Quota::once(9)?.into()).await?;
    let follow = |plan: &Key| db.decide(Take::from(key.clone()).rule(Rule::Plan(plan.clone())));
    assert!(follow(&small).await?.is_granted());
    let host = Host::new(&db).await?;
    assert!(!follow(&large).await?.is_granted(), "a larger capacity brings no tokens");
    let follows = format!("select plan = '{small}' as follows from token_buckets where id = '{key}'");
    ensure!(db.sql(follows.clone()).await?[0].number("follows")? == 0);
    host.call("request_planned_tokens", &format!("'{key}', '{small}', 1, 0, 0")).await?;
    host.commit().await?;
    ensure!(db.sql(follows).await?[0].number("follows")? == 1, "decided under the limits of the other plan");
    Ok(())
}

fn window(most: u64, seconds: u64) -> Rule {
    Window::new(most, Duration::from_secs(seconds), Duration::from_secs(seconds.div_ceil(60))).expect("a window").into()
}

/// A transaction at REPEATABLE READ with a snapshot of its creation time.
struct Host(TestDb);

impl Host {
    async fn new(db: &TestDb) -> anyhow::Result<Self> {
        let session = with_session(db, "set session transaction isolation level repeatable read").await?.0;
        session.pool.run("start transaction").await?;
        session.sql("select count(*) from token_buckets").await?;
        Ok(Self(session))
    }

    /// Sends `times` requests for a window of two, and returns the grants.
    async fn take_times(&self, key: &Key, seconds: u64, times: u32) -> anyhow::Result<Option<Vec<bool>>> {
        let mut granted = Vec::new();
        for _ in 0..times {
            let arguments = format!("'{key}', 2, {seconds}, 1, 1, 0");
            let Some(rows) = self.call("request_tokens_in_window", &arguments).await? else { return Ok(None) };
            let row = rows.first().context("a row")?;
            granted.push(row.text("granted")? == Some("1"));
        }
        Ok(Some(granted))
    }

    /// The rows of a call. None if a later MariaDB refuses to lock rows that changed after the snapshot.
    async fn call(&self, routine: &str, arguments: &str) -> anyhow::Result<Option<Vec<Row>>> {
        let rows = match self.0.sql(self.0.calling(routine, arguments)).await {
            Err(error) if number(&error) == Some(1020) => return Ok(None),
            rows => rows?,
        };
        Ok(Some(rows))
    }

    async fn commit(self) -> anyhow::Result<()> {
        Ok(self.0.pool.run("commit").await?)
    }
}

fn number(error: &sqlx::Error) -> Option<u16> {
    error.as_database_error()?.try_downcast_ref::<MySqlDatabaseError>().map(MySqlDatabaseError::number)
}
