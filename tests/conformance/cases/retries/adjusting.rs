//! Adjustments of many keys, one of which another transaction holds.

use std::sync::Arc;

use tokio::task::JoinSet;
use tollgate::{Adjusted, Adjustment, Admin, Error, Key, Receipt, Store, Take, layers::Batcher};
use uuid::Uuid;

use super::{LONG, a_hundred_a_day};
use crate::engines::Kind;
use crate::matrix::{Case, Setup, list};
use crate::session::Session;
use crate::test_db::TestDb;

pub fn cases() -> Vec<Case> {
    list!(
        Setup { needs: |engine| engine.has_sessions && engine.kind != Kind::Sqlite, ..Setup::WITHOUT_LAYERS };
        refund_with_one_locked_key_completes_for_the_others,
        refund_that_meets_a_lock_is_applied_when_released,
    )
}

/// Keys without tokens, and the adjustments that give them back, in two parts each.
async fn taken(db: &TestDb) -> anyhow::Result<(Vec<Key>, Vec<Adjustment>)> {
    let (mut keys, mut refunds) = (Vec::new(), Vec::new());
    for _ in 0..20 {
        let take = Take::from(db.bucket(a_hundred_a_day()).await?).cost(5);
        assert!(db.decide(take.clone()).await?.is_granted());
        keys.push(take.key().clone());
        refunds.extend([2, 3].map(|tokens| Receipt::new(Uuid::new_v4(), take.key().clone(), 5).refund(tokens)));
    }
    Ok((keys, refunds))
}

async fn refund_with_one_locked_key_completes_for_the_others(db: TestDb) -> anyhow::Result<()> {
    let (keys, refunds) = taken(&db).await?;
    let lock_holder = Session::lock_bucket(&db, &keys[10]).await?;
    let batcher = Arc::new(Batcher::new(db.store().deadline(LONG)));
    let (mut others, mut locked) = (JoinSet::new(), JoinSet::new());
    for refund in refunds {
        let callers = if refund.receipt().key() == &keys[10] { &mut locked } else { &mut others };
        let batcher = Arc::clone(&batcher);
        callers.spawn(async move { batcher.adjust(&[refund]).await });
    }
    // All of them finish before the lock is released.
    while let Some(adjusted) = others.join_next().await {
        assert!(matches!(adjusted??[..], [Ok(Adjusted::Done(2 | 3))]));
    }
    assert!(locked.try_join_next().is_none());
    lock_holder.commit().await?;
    while let Some(adjusted) = locked.join_next().await {
        assert!(matches!(adjusted??[..], [Ok(Adjusted::Done(2 | 3))]));
    }
    for key in &keys {
        assert_eq!(db.store().peek(key).await?.map(|level| level.available()), Some(100), "{key}");
    }
    Ok(())
}

async fn refund_that_meets_a_lock_is_applied_when_released(db: TestDb) -> anyhow::Result<()> {
    let (keys, refunds) = taken(&db).await?;
    let (lock_holder, store) = (Session::lock_bucket(&db, &keys[10]).await?, db.store().deadline(LONG).max_attempts(1));
    let error = store.adjust(&refunds).await.expect_err("one of them is locked");
    assert!(matches!(error, Error::Contended { attempts: 1, .. }), "{error:?}");
    for key in &keys {
        assert_eq!(store.peek(key).await?.map(|level| level.available()), Some(95), "{key}");
    }
    lock_holder.commit().await?;
    let adjusted = store.adjust(&refunds).await?;
    assert!(adjusted.iter().all(|it| matches!(it, Ok(Adjusted::Done(2 | 3)))), "{adjusted:?}");
    for key in &keys {
        assert_eq!(db.store().peek(key).await?.map(|level| level.available()), Some(100), "{key}");
    }
    Ok(())
}
