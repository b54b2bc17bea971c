//! A token taken in the host's own transaction, in Rust.

use std::time::Duration;

use tollgate::{
    Adjusted, Key, Limit, Mode, Quota, Rule, Store, Take, TakeError, Window,
    store::{adjust_within, take_within},
};
use uuid::Uuid;

use crate::engines::Kind;
use crate::matrix::{Case, Setup, list};
use crate::pools::{Scratch, with_pool};
use crate::session::Session;
use crate::test_db::TestDb;

pub fn cases() -> Vec<Case> {
    let mut cases = list!(
        Setup::WITHOUT_LAYERS;
        rolled_back_transaction_takes_nothing,
        committed_transaction_takes_its_tokens,
        denial_in_a_transaction_leaves_it_usable,
    );
    cases.extend(list!(
        Setup { needs: |engine| engine.kind != Kind::Sqlite && engine.has_sessions, ..Setup::WITHOUT_LAYERS };
        bucket_is_locked_until_the_transaction_ends,
    ));
    cases.extend(list!(
        Setup { needs: |engine| engine.kind == Kind::Sqlite, ..Setup::WITHOUT_LAYERS };
        file_is_locked_until_the_transaction_ends,
        every_request_in_a_transaction_waits_for_the_file,
    ));
    cases
}

async fn rolled_back_transaction_takes_nothing(db: TestDb) -> anyhow::Result<()> {
    let (key, before) = bucket(&db).await?;
    let take = Take::from(key.clone()).cost(3);
    with_pool!(&db.pool, pool => {
        let mut transaction = pool.begin().await?;
        assert_eq!(take_within(&mut *transaction, &take).await??.remaining(), Some(2));
        assert!(!take_within(&mut *transaction, &take).await??.is_granted());
        transaction.rollback().await?;
    });
    assert_eq!(db.row(&key).await?, before);
    Ok(())
}

async fn committed_transaction_takes_its_tokens(db: TestDb) -> anyhow::Result<()> {
    let (key, _) = bucket(&db).await?;
    let (other, window) = (db.key(), db.key());
    let id = Uuid::new_v4();
    let once = Take::from(key.clone()).id(id, Duration::from_hours(1));
    let tried = Limit::new(db.key(), Rule::try_from("1/h")?).cost(2).mode(Mode::Shadow);
    let both = Take::from(key.clone()).and(other.clone(), Rule::try_from("7/h")?).and_limit(tried);
    let counted = Take::from(window).rule(Window::new(2, Duration::from_hours(1), Duration::from_mins(10))?.into());
    with_pool!(&db.pool, pool => {
        let mut transaction = pool.begin().await?;
        assert!(take_within(&mut *transaction, &once).await??.is_granted());
        assert!(take_within(&mut *transaction, &both).await??.is_granted());
        assert!(take_within(&mut *transaction, &counted).await??.is_granted());
        let settle = tollgate::Receipt::new(id, key.clone(), 1).settle(2);
        assert_eq!(adjust_within(&mut *transaction, &settle).await?, Ok(Adjusted::Done(-1)));
        transaction.commit().await?;
    });
    assert_eq!(db.row(&key).await?.map(|row| row.granted), Some(3));
    assert_eq!(db.row(&other).await?.map(|row| row.granted), Some(1));
    assert_eq!(db.decide(counted).await?.remaining(), Some(0));
    Ok(())
}

async fn denial_in_a_transaction_leaves_it_usable(db: TestDb) -> anyhow::Result<()> {
    let (key, _) = bucket(&db).await?;
    let unknown_key = db.key();
    with_pool!(&db.pool, pool => {
        let mut transaction = pool.begin().await?;
        assert!(take_within(&mut *transaction, &Take::from(key.clone())).await??.is_granted());
        let unknown = take_within(&mut *transaction, &Take::from(unknown_key.clone())).await?;
        assert_eq!(unknown.map(drop), Err(TakeError::UnknownBucket(unknown_key)));
        assert_eq!(take_within(&mut *transaction, &Take::from(key.clone()).cost(0)).await?.map(drop), Err(TakeError::ZeroCost));
        transaction.commit().await?;
    });
    assert_eq!(db.row(&key).await?.map(|row| row.granted), Some(1));
    Ok(())
}

async fn bucket_is_locked_until_the_transaction_ends(db: TestDb) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&db).await?;
    let db = &scratch.db;
    let (key, _) = bucket(db).await?;
    let mut lock_holder = Session::begin(db).await?;
    assert!(lock_holder.decide(&Take::from(key.clone()).cost(5)).await?.is_granted());
    let store = db.store().deadline(Duration::from_secs(60));
    let taking = tokio::spawn({
        let take = Take::from(key.clone()).rule(Rule::Provisioned).max_wait(Duration::ZERO);
        async move { store.take_one(&take).await }
    });
    // On PostgreSQL a denial waits for no lock. A request that the committed state grants does wait.
    lock_holder.until_blocking(db).await?;
    lock_holder.run("rollback").await?;
    assert!(taking.await???.is_granted());
    assert_eq!(db.row(&key).await?.map(|row| row.granted), Some(1));
    Ok(())
}

async fn file_is_locked_until_the_transaction_ends(db: TestDb) -> anyhow::Result<()> {
    let (key, before) = bucket(&db).await?;
    let take = Take::from(key.clone());
    let mut lock_holder = Session::begin(&db).await?;
    assert!(lock_holder.decide(&take.clone().cost(5)).await?.is_granted());
    // No other session can write in the meantime, and uncommitted changes are invisible.
    assert!(db.store().deadline(Duration::from_millis(100)).take_one(&take).await.is_err(), "there is no answer");
    assert_eq!(db.row(&key).await?, before);
    lock_holder.run("rollback").await?;
    // The request without an answer can have taken a token since.
    let left = db.decide(take).await?.remaining();
    assert!(matches!(left, Some(3 | 4)), "{left:?} left");
    Ok(())
}

async fn every_request_in_a_transaction_waits_for_the_file(db: TestDb) -> anyhow::Result<()> {
    let (key, _) = bucket(&db).await?;
    let one = Take::from(key.clone());
    let both = one.clone().and(db.key(), Rule::try_from("7/h")?);
    let remembered = one.clone().id(Uuid::new_v4(), Duration::from_hours(1));
    for take in [one.clone(), both, remembered] {
        let mut lock_holder = Session::begin(&db).await?;
        assert!(lock_holder.decide(&one).await?.is_granted());
        let waiting = async {
            with_pool!(&db.pool, pool => {
                let mut transaction = pool.begin().await?;
                let decision = take_within(&mut *transaction, &take).await??;
                transaction.commit().await?;
                anyhow::Ok(decision.is_granted())
            })
        };
        // These statements take longer than the first try for the lock.
        let releasing = async {
            for _ in 0..50 {
                lock_holder.run("select 1").await?;
            }
            lock_holder.run("rollback").await
        };
        let (granted, released) = tokio::join!(waiting, releasing);
        released?;
        assert!(granted?, "{take:?}");
    }
    Ok(())
}

/// A bucket of 5 tokens a day, full.
async fn bucket(db: &TestDb) -> anyhow::Result<(Key, Option<tollgate::model::bucket::Bucket>)> {
    let key = db.bucket(Quota::continuous(5, Duration::from_hours(24))?).await?;
    let row = db.row(&key).await?;
    Ok((key, row))
}
