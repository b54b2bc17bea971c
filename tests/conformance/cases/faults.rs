//! Unreachable or silent databases: a typed error by the deadline, and no lost tokens.

use std::time::Duration;

use tollgate::{Adjusted, Error, Limiter, Quota, Store, Take};
use uuid::Uuid;

use crate::engines::{Engine, Kind};
use crate::matrix::{Case, Setup, list};
use crate::pools::{all_given_back, through_proxy, with_session};
use crate::session::Session;
use crate::test_db::TestDb;

mod changes;
mod given_back;
mod interrupted;
mod journal;
mod leased;
mod lost;
mod nodes;
mod replaced;
mod rotated;
mod secrets;
mod sessions;
mod unreachable;

pub fn cases() -> Vec<Case> {
    [
        list!(
            Setup { needs: |engine| engine.has_sessions, ..Setup::LAYERED_EVERYWHERE };
            a_pool_without_a_free_connection_is_unavailable,
            request_for_locked_bucket_ends_by_its_deadline,
        ),
        list!(Setup::LAYERED_EVERYWHERE; a_closed_pool_is_unavailable, a_limiter_without_a_limit_asks_no_database),
        list!(Setup { needs: has_server, ..Setup::LAYERED_EVERYWHERE }; unresponsive_server_keeps_no_connection),
        changes::cases(),
        given_back::cases(),
        interrupted::cases(),
        journal::cases(),
        leased::cases(),
        lost::cases(),
        nodes::cases(),
        replaced::cases(),
        rotated::cases(),
        secrets::cases(),
        sessions::cases(),
        unreachable::cases(),
    ]
    .concat()
}

async fn a_pool_without_a_free_connection_is_unavailable(db: TestDb) -> anyhow::Result<()> {
    let key = db.bucket(a_hundred_a_day()).await?;
    let (small, _) = with_session(&db, "select 1").await?;
    let only_connection = Session::idle(&small).await?;
    let error = take(&small.store().deadline(SHORT), &key).await.expect_err("somebody has the only connection");
    assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
    assert!(!error.is_outcome_unknown());
    drop(only_connection);
    assert_eq!(small.take(&key).await?.remaining(), Some(99));
    Ok(())
}

async fn a_closed_pool_is_unavailable(db: TestDb) -> anyhow::Result<()> {
    let key = db.bucket(a_hundred_a_day()).await?;
    crate::pools::with_pool!(&db.pool, pool => pool.close().await);
    let error = take(&db.store(), &key).await.expect_err("it is closed");
    assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
    Ok(())
}

/// Every use of the pool would fail, because it is closed.
async fn a_limiter_without_a_limit_asks_no_database(db: TestDb) -> anyhow::Result<()> {
    crate::pools::with_pool!(&db.pool, pool => pool.close().await);
    let limiter = Limiter::new(db.store(), Quota::rate(f64::INFINITY))?;
    let key = db.key();
    assert!(limiter.allow(&key).await?.is_granted());
    assert!(limiter.wait_n(&key, 1_000_000, Duration::ZERO).await?.is_granted());
    let reservation = limiter.reserve_n(&key, u64::MAX).await?;
    assert!(reservation.is_granted() && reservation.delay() == Some(Duration::ZERO));
    assert_eq!(reservation.cancel().await?, 0);
    // Applies to several unlimited limits and to a request with an id, which is not stored.
    let several = limiter.request(&key)?.and(db.key(), limiter.rule()).id(Uuid::new_v4(), Duration::from_hours(1));
    assert!(limiter.decide(&several).await?.is_granted());
    assert_eq!(limiter.wait_request(&several).await?.settle(7).await?, Adjusted::Done(0));
    assert_eq!(limiter.peek(&key).await?.quota(), Quota::unlimited());
    assert_eq!(limiter.close().await?, 0);

    limiter.set_rule("1000000/s")?;
    let decided = limiter.allow(&key).await;
    assert!(matches!(decided, Err(Error::Unavailable(_))), "{decided:?}");
    Ok(())
}

async fn request_for_locked_bucket_ends_by_its_deadline(db: TestDb) -> anyhow::Result<()> {
    let key = db.bucket(a_hundred_a_day()).await?;
    let lock_holder = Session::lock_bucket(&db, &key).await?;
    let error = take(&db.store().deadline(SHORT), &key).await.expect_err("the bucket is locked");
    assert!(matches!(error, Error::Contended { .. } | Error::DeadlineExceeded(SHORT)), "{error:?}");

    lock_holder.commit().await?;
    all_given_back(&db.pool).await;
    // A request with an unknown outcome can have been debited when the lock was released. The next one does not wait for it.
    let granted = db.row(&key).await?.map(|row| row.granted);
    let max_granted = if error.is_outcome_unknown() { 2 } else { 1 };
    assert!(granted.is_some_and(|granted| (1..=max_granted).contains(&granted)), "{granted:?}");
    assert!(db.take(&key).await?.is_granted());
    Ok(())
}

async fn unresponsive_server_keeps_no_connection(db: TestDb) -> anyhow::Result<()> {
    let key = db.bucket(a_hundred_a_day()).await?;
    let (small, proxy) = through_proxy(&db, 1).await?;
    proxy.fail(key.as_str(), crate::proxy::Then::Swallow);
    let error = take(&small.store().deadline(SHORT), &key).await.expect_err("the answer was swallowed");
    assert!(matches!(error, Error::DeadlineExceeded(_)), "{error:?}");
    assert!(small.take(&key).await?.is_granted(), "on a new connection");
    assert_eq!(db.row(&key).await?.map(|row| row.granted), Some(2));
    Ok(())
}

/// A request of one token.
async fn take(store: &impl Store, key: &tollgate::Key) -> Result<tollgate::Decision, Error> {
    let outcome = store.take(&[Take::from(key.clone())]).await?.pop();
    Ok(outcome.expect("one answer to one request")?)
}

fn has_server(engine: &Engine) -> bool {
    engine.kind != Kind::Sqlite
}

fn a_hundred_a_day() -> Quota {
    Quota::interval(100, Duration::from_secs(86_400)).expect("a quota")
}

/// A short deadline.
const SHORT: Duration = Duration::from_millis(150);
