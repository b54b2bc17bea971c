//! Conflicts that the databases report, and their effects on the caller.

use std::time::Duration;

use tollgate::{Error, Key, Quota, Store, Take, store::Isolation};

use crate::engines::{Engine, Kind};
use crate::matrix::{Case, IsolationLevels, Setup, list};
use crate::pools::with_session;
use crate::session::Session;
use crate::store::AnyStore;
use crate::test_db::TestDb;

mod adjusting;
mod deadlock;
mod mariadb;
mod postgres;

pub fn cases() -> Vec<Case> {
    // Without layers: the cases count attempts. A cached answer has none, and a batched answer has those of another request.
    [
        list!(
            Setup { levels: IsolationLevels::Every, needs: |engine| engine.has_sessions, ..Setup::WITHOUT_LAYERS };
            lock_that_is_released_in_time_is_acquired,
            lock_that_is_kept_fails_after_the_attempts,
        ),
        list!(
            Setup {
                levels: IsolationLevels::Every,
                needs: |engine| engine.has_sessions && engine.has_statement_timeout,
                ..Setup::WITHOUT_LAYERS
            };
            statement_timeouts_fail_after_the_attempts,
        ),
        list!(
            Setup {
                levels: IsolationLevels::Every,
                needs: |engine| engine.has_transaction_timeout && engine.has_sessions,
                ..Setup::WITHOUT_LAYERS
            };
            transaction_timeouts_fail_after_the_attempts,
        ),
        list!(
            Setup { needs: |engine| engine.has_sessions && engine.kind != Kind::Sqlite, ..Setup::WITHOUT_LAYERS };
            locked_batch_is_rolled_back_as_a_whole,
        ),
        list!(
            Setup { needs: |engine| engine.kind == Kind::Sqlite, ..Setup::WITHOUT_LAYERS };
            persistent_contention_ends_by_the_deadline,
        ),
        adjusting::cases(),
        deadlock::cases(),
        mariadb::cases(),
        postgres::cases(),
    ]
    .concat()
}

/// Whether waiters at this level fail once the row that they waited for has changed.
fn is_snapshot(level: Option<Isolation>) -> bool {
    matches!(level, Some(Isolation::RepeatableRead | Isolation::Serializable))
}

async fn lock_that_is_released_in_time_is_acquired(db: TestDb) -> anyhow::Result<()> {
    let key = db.bucket(a_hundred_a_day()).await?;
    let lock_holder = Session::lock_bucket(&db, &key).await?;
    let (impatient, acquisitions) = with_session(&db, impatient(db.engine)).await?;
    let before = acquisitions.count();
    let taking = take(impatient.store().max_attempts(u32::MAX).deadline(LONG), &key);
    while acquisitions.count() < before + 3 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    lock_holder.commit().await?;

    let decision = taking.await??;
    assert!(decision.is_granted());
    assert!(decision.attempts() >= 3, "{} attempts", decision.attempts());
    assert_eq!(db.row(&key).await?.map(|row| row.granted), Some(2), "one of the other's, one of ours");
    Ok(())
}

async fn lock_that_is_kept_fails_after_the_attempts(db: TestDb) -> anyhow::Result<()> {
    ends_after_the_attempts(&db, impatient(db.engine)).await
}

async fn statement_timeouts_fail_after_the_attempts(db: TestDb) -> anyhow::Result<()> {
    ends_after_the_attempts(&db, statement_timeout(db.engine).expect("the engine has one")).await
}

/// Since PostgreSQL 17. The server also closes the connection, so the next attempt uses another one.
async fn transaction_timeouts_fail_after_the_attempts(db: TestDb) -> anyhow::Result<()> {
    let key = db.bucket(a_hundred_a_day()).await?;
    let lock_holder = Session::lock_bucket(&db, &key).await?;
    let (impatient, _) = with_session(&db, "set transaction_timeout = '100ms'").await?;
    let error = take(impatient.store().max_attempts(2).deadline(LONG), &key).await?.expect_err("it is locked");
    assert!(matches!(error, Error::Contended { attempts: 2, .. }), "{error:?}");
    lock_holder.commit().await?;
    assert_eq!(db.row(&key).await?.map(|row| row.granted), Some(1), "the other's alone");
    assert!(db.take(&key).await?.is_granted());
    Ok(())
}

/// Runs in a session that starts with a statement.
async fn ends_after_the_attempts(db: &TestDb, impatient: &'static str) -> anyhow::Result<()> {
    let key = db.bucket(a_hundred_a_day()).await?;
    let lock_holder = Session::lock_bucket(db, &key).await?;
    let (impatient, acquisitions) = with_session(db, impatient).await?;
    let before = acquisitions.count();

    let error = take(impatient.store().max_attempts(2).deadline(LONG), &key).await?.expect_err("it is locked");
    assert!(matches!(error, Error::Contended { attempts: 2, .. }), "{error:?}");
    assert!(!error.is_outcome_unknown());
    assert_eq!(acquisitions.count(), before + 2);

    lock_holder.commit().await?;
    assert_eq!(db.row(&key).await?.map(|row| row.granted), Some(1), "the other's alone");
    // The failure does not affect the next request on the connection.
    let next = impatient.take(&key).await?;
    assert!(next.is_granted());
    // Transactions of other tests on the same pages can cost an attempt.
    if !is_snapshot(db.level) {
        assert_eq!(next.attempts(), 1);
    }
    assert_eq!(db.row(&key).await?.map(|row| row.granted), Some(2));
    Ok(())
}

async fn locked_batch_is_rolled_back_as_a_whole(db: TestDb) -> anyhow::Result<()> {
    let (free, locked) = (db.bucket(a_hundred_a_day()).await?, db.bucket(a_hundred_a_day()).await?);
    let lock_holder = Session::lock_bucket(&db, &locked).await?;
    let batch = [free.clone(), locked].map(Take::from);
    let store = db.store().deadline(LONG).max_attempts(1);
    let error = store.take(&batch).await.expect_err("one of them is locked");
    assert!(matches!(error, Error::Contended { attempts: 1, .. }), "{error:?}");
    assert_eq!(db.row(&free).await?.map(|row| row.granted), Some(0));
    lock_holder.commit().await?;
    Ok(())
}

async fn persistent_contention_ends_by_the_deadline(db: TestDb) -> anyhow::Result<()> {
    let key = db.bucket(a_hundred_a_day()).await?;
    let _lock_holder = Session::lock_bucket(&db, &key).await?;
    let (impatient, _) = with_session(&db, impatient(db.engine)).await?;
    for _ in 0..10 {
        let store = impatient.store().max_attempts(u32::MAX).deadline(Duration::from_millis(500));
        match take(store, &key).await?.expect_err("it is locked") {
            Error::Contended { attempts: 2.., .. } => return Ok(()),
            // The deadline was reached during an attempt.
            Error::DeadlineExceeded(_) => {}
            other => return Err(other.into()),
        }
    }
    anyhow::bail!("an attempt is under way each time")
}

/// The shortest lock timeout of an engine's sessions.
fn impatient(engine: &Engine) -> &'static str {
    match engine.kind {
        Kind::MySql => "set innodb_lock_wait_timeout = 1",
        Kind::Postgres => "set lock_timeout = '20ms'",
        Kind::Sqlite => "pragma busy_timeout = 0",
    }
}

/// A statement timeout, on engines that have one.
fn statement_timeout(engine: &Engine) -> Option<&'static str> {
    match engine.kind {
        Kind::MySql => Some("set max_statement_time = 0.1"),
        Kind::Postgres => Some("set statement_timeout = '100ms'"),
        Kind::Sqlite => None,
    }
}

/// Two buckets, in the order in which a batch locks them.
async fn in_order(db: &TestDb) -> anyhow::Result<(Key, Key)> {
    let (a, b) = (db.bucket(a_hundred_a_day()).await?, db.bucket(a_hundred_a_day()).await?);
    Ok(if a < b { (a, b) } else { (b, a) })
}

fn take(store: AnyStore, key: &Key) -> tokio::task::JoinHandle<Result<tollgate::Decision, Error>> {
    let take = Take::from(key.clone());
    tokio::spawn(async move {
        let outcome = store.take(&[take]).await?.pop();
        Ok(outcome.expect("one answer to one request")?)
    })
}

fn a_hundred_a_day() -> Quota {
    Quota::interval(100, Duration::from_secs(86_400)).expect("a quota")
}

/// A deadline that no case reaches.
const LONG: Duration = Duration::from_secs(120);
