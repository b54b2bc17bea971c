//! Changes by an operator, while another transaction holds the rows.

use std::time::Duration;

use tollgate::{Admin, Error, Key, Mode, admin::Override};

use super::SHORT;
use crate::engines::Kind;
use crate::matrix::{Case, Setup, list};
use crate::pools::{Scratch, all_given_back};
use crate::session::Session;
use crate::store::AnyStore;
use crate::test_db::TestDb;

pub(super) fn cases() -> Vec<Case> {
    list!(
        Setup { needs: |engine| engine.has_sessions || engine.kind == Kind::Sqlite, ..Setup::LAYERED_EVERYWHERE };
        change_that_misses_its_deadline_is_never_made,
        change_of_a_cancelled_caller_is_never_made,
    )
}

async fn change_that_misses_its_deadline_is_never_made(db: TestDb) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&db).await?;
    let world = World::new(&scratch.db).await?;
    let lock_holder = world.hold().await?;
    for change in 0..CHANGES {
        let error = world.make(change, SHORT).await.expect_err("its row is locked");
        // Earlier changes can still use all connections.
        assert!(matches!(error, Error::Contended { .. } | Error::Unavailable(_)), "{change}: {error:?}");
        assert!(!error.is_outcome_unknown());
    }
    lock_holder.commit().await?;
    world.is_as_it_was().await
}

async fn change_of_a_cancelled_caller_is_never_made(db: TestDb) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&db).await?;
    let world = World::new(&scratch.db).await?;
    let lock_holder = world.hold().await?;
    let long = Duration::from_secs(60);
    // Fewer changes than connections.
    for change in [0, 1, 4] {
        let dropped = tokio::time::timeout(SHORT, world.make(change, long)).await;
        assert!(dropped.is_err(), "{change}: {dropped:?}");
    }
    lock_holder.commit().await?;
    world.is_as_it_was().await
}

/// A bucket, a plan, an override and a mode.
struct World<'a> {
    db: &'a TestDb,
    store: AnyStore,
    key: Key,
}

impl<'a> World<'a> {
    async fn new(db: &'a TestDb) -> anyhow::Result<Self> {
        let (store, key) = (db.store(), db.key());
        store.create_bucket(&key, "2/d".parse()?).await?;
        store.create_plan(&key, "2/d".parse()?).await?;
        assert!(db.take(&key).await?.is_granted());
        store.set_override(&key, Override { mode: Some(Mode::Shadow), ..Override::default() }).await?;
        Ok(Self { db, store, key })
    }

    /// Locks all of it in a transaction that stays open.
    async fn hold(&self) -> anyhow::Result<Session> {
        let mut lock_holder = Session::begin(self.db).await?;
        let (buckets, id) = (self.db.table(), self.db.literal(&self.key));
        let table = |name| buckets.replace("token_buckets", name);
        lock_holder.run(format!("update {} set reason = 'held' where one = true", table("token_mode"))).await?;
        lock_holder.run(format!("update {} set mode_reason = 'held' where name = {id}", table("token_plans"))).await?;
        lock_holder.run(format!("update {} set reason = 'held' where id = {id}", table("token_overrides"))).await?;
        lock_holder.run(format!("update {buckets} set provisioned = true, granted = granted where id = {id}")).await?;
        Ok(lock_holder)
    }

    /// Makes the change with this number.
    async fn make(&self, change: usize, deadline: Duration) -> Result<(), Error> {
        let (store, key) = (self.store.clone().deadline(deadline), &self.key);
        let other = Override { mode: Some(Mode::Block), ..Override::default() };
        match change {
            0 => Ok(store.set_mode(Mode::Block, None, None).await?),
            1 => Ok(store.create_plan(key, "9/d".parse()?).await?),
            2 => Ok(store.set_plan_mode(key, Some(Mode::Block), None, None).await.map(drop)?),
            3 => store.delete_plan(key).await.map(drop),
            4 => Ok(store.set_override(key, other).await?),
            5 => store.clear_override(key).await.map(drop),
            6 => Ok(store.create_bucket(key, "9/d".parse()?).await?),
            7 => store.reset(key).await.map(drop),
            _ => store.delete(key).await.map(drop),
        }
    }

    async fn is_as_it_was(&self) -> anyhow::Result<()> {
        let Self { db, store, key } = self;
        all_given_back(&db.pool).await;
        assert_eq!(store.mode().await?.mode, Mode::Enforce);
        let plan = store.plan(key).await?.expect("it is there");
        assert_eq!((plan.quota, plan.mode), ("2/d".parse()?, None));
        assert_eq!(store.overrides(None, 9).await?[0].1.mode, Some(Mode::Shadow));
        let bucket = store.peek(key).await?.expect("it is there");
        assert_eq!((bucket.quota(), bucket.granted()), ("2/d".parse()?, 1));
        Ok(())
    }
}

const CHANGES: usize = 9;
