//! Callers that wait for another transaction's lock. A decision counts when its bucket is locked for it. So after any wait, the
//! callers get exactly what the bucket holds at its release.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::fleet::checker::Call;
use tokio::task::JoinSet;
use tollgate::{
    Key, Quota, Store, Take,
    clock::{Clock, SystemClock},
    store::take_within,
};
use uuid::Uuid;

use super::granted;
use crate::caller_sessions::CallerSessions;
use crate::engines::Kind;
use crate::matrix::{Case, IsolationLevels, Setup, list};
use crate::pools::{Scratch, slow_clock, with_pool, with_session};
use crate::test_db::TestDb;
use crate::workers::{faults, nanoseconds};

pub fn cases() -> Vec<Case> {
    // Without layers: the cases wait until each request has a separate session.
    [
        list!(
            Setup { levels: IsolationLevels::Every, needs: |engine| engine.has_sessions, ..Setup::WITHOUT_LAYERS };
            waiters_for_a_lock_have_one_burst,
            lock_waiters_after_a_grant_have_one_burst,
            lock_waiters_with_ids_have_one_burst,
            lock_waiters_get_what_the_holder_left,
        ),
        list!(
            Setup { needs: |engine| engine.has_sessions, ..Setup::WITHOUT_LAYERS };
            lock_waiters_with_token_waits_share_one_burst,
        ),
        list!(
            Setup { needs: |engine| engine.has_routines && engine.has_sessions, ..Setup::WITHOUT_LAYERS };
            lock_waiters_on_slow_storage_have_one_burst,
        ),
    ]
    .concat()
}

async fn waiters_for_a_lock_have_one_burst(db: TestDb) -> anyhow::Result<()> {
    have_one_burst(&db, |take| take).await
}

/// After a grant that leaves tokens, the crate expects another one: on PostgreSQL it calls another routine.
async fn lock_waiters_after_a_grant_have_one_burst(db: TestDb) -> anyhow::Result<()> {
    let key = db.bucket(quota()?).await?;
    let sent = SystemClock.now();
    let is_granted = db.take(&key).await?.is_granted();
    let first = Call { sent, done: SystemClock.now(), at: None, cost: 1, granted: is_granted };
    let mut calls = after_a_rollback(&db, &key, |take| take).await?;
    calls.push(first);
    check(&db, &key, &calls).await
}

async fn lock_waiters_with_token_waits_share_one_burst(db: TestDb) -> anyhow::Result<()> {
    have_one_burst(&db, |take| take.max_wait(Duration::from_millis(1))).await
}

async fn lock_waiters_with_ids_have_one_burst(db: TestDb) -> anyhow::Result<()> {
    have_one_burst(&db, with_id).await
}

async fn lock_waiters_on_slow_storage_have_one_burst(db: TestDb) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&db).await?;
    slow_clock(&scratch.db.pool, Duration::from_millis(3)).await?;
    have_one_burst(&scratch.db, |take| take).await?;
    have_one_burst(&scratch.db, with_id).await
}

fn with_id(take: Take) -> Take {
    take.id(Uuid::new_v4(), Duration::from_hours(1))
}

async fn have_one_burst(db: &TestDb, request: fn(Take) -> Take) -> anyhow::Result<()> {
    let key = db.bucket(quota()?).await?;
    let calls = after_a_rollback(db, &key, request).await?;
    assert!(granted(&calls) >= 10, "{} of the 10 that were there", granted(&calls));
    check(db, &key, &calls).await
}

/// Requests of callers that wait for a lock, whose holder changes nothing.
async fn after_a_rollback(db: &TestDb, key: &Key, request: fn(Take) -> Take) -> anyhow::Result<Vec<Call>> {
    let holder = holder(db).await?;
    holder.pool.run(begin(db)).await?;
    if db.engine.kind != Kind::Sqlite {
        holder.pool.run(format!("select 1 from {} where id = {} for update", db.table(), db.literal(key))).await?;
    }
    released_after_two_seconds(db, key, request, &holder, "rollback").await
}

async fn lock_waiters_get_what_the_holder_left(db: TestDb) -> anyhow::Result<()> {
    let key = db.bucket(quota()?).await?;
    let holder = holder(&db).await?;
    // If the crate decides, it can need its own transaction.
    let decides_in_it = db.engine.kind != Kind::Sqlite;
    if decides_in_it {
        holder.pool.run(begin(&db)).await?;
    }
    let sent = SystemClock.now();
    let take = Take::from(key.clone()).cost(6);
    let decision = if decides_in_it {
        with_pool!(&holder.pool, pool => take_within(&mut *pool.acquire().await?, &take).await??)
    } else {
        holder.decide(take).await?
    };
    let own = Call { sent, done: SystemClock.now(), at: None, cost: 6, granted: decision.is_granted() };
    assert!(own.granted);
    if !decides_in_it {
        holder.pool.run(begin(&db)).await?;
    }

    let mut calls = released_after_two_seconds(&db, &key, |take| take, &holder, "commit").await?;
    assert!(granted(&calls) >= 8, "{} of the 8 that were there: 4 left, and 2 a second", granted(&calls));
    calls.push(own);
    check(&db, &key, &calls).await
}

/// Thirty callers request a token and wait, and the lock is released after two seconds. Then each requests another token,
/// because the remaining tokens must not be credited with the wait again.
async fn released_after_two_seconds(
    db: &TestDb,
    key: &Key,
    request: fn(Take) -> Take,
    holder: &TestDb,
    end: &str,
) -> anyhow::Result<Vec<Call>> {
    let since = db.now().await?;
    let sessions = CallerSessions::new(db, CALLERS).await?;
    let store = sessions.db.store().max_attempts(u32::MAX).deadline(Duration::from_mins(1));
    let started = Arc::new(AtomicUsize::new(0));
    let mut callers = JoinSet::new();
    for _ in 0..CALLERS {
        let (store, key, started) = (store.clone(), key.clone(), Arc::clone(&started));
        callers.spawn(async move {
            let mut calls = Vec::new();
            for _ in 0..2 {
                started.fetch_add(1, Ordering::SeqCst);
                let sent = SystemClock.now();
                let decision = store.take(&[request(Take::from(key.clone()))]).await?.remove(0)?;
                let done = SystemClock.now() + nanoseconds(decision.wait());
                calls.push(Call { sent, done, at: None, cost: 1, granted: decision.is_granted() });
            }
            anyhow::Ok(calls)
        });
    }
    let all = usize::try_from(CALLERS)?;
    if db.engine.kind == Kind::Sqlite {
        // Waits for a file are not visible. A caller that does not wait is denied or granted late, which is correct, too.
        while started.load(Ordering::SeqCst) < all {
            tokio::task::yield_now().await;
        }
    } else {
        sessions.until_waiting(db, all).await?;
    }
    db.until(since + nanoseconds(Duration::from_secs(2))).await?;
    let released = SystemClock.now();
    holder.pool.run(end).await?;

    let mut calls = Vec::new();
    while let Some(caller) = callers.join_next().await {
        // Every decision counts from the release on.
        calls.extend(caller??.into_iter().map(|call| Call { sent: call.sent.max(released), ..call }));
    }
    assert_eq!(calls.len(), 2 * all);
    Ok(calls)
}

async fn check(db: &TestDb, key: &Key, calls: &[Call]) -> anyhow::Result<()> {
    let faults = faults(&quota()?, 0, calls);
    assert!(faults.is_empty(), "{} faults, the first: {}", faults.len(), faults[0]);
    assert_eq!(db.row(key).await?.map(|row| row.granted), Some(granted(calls)), "what is debited was granted");
    Ok(())
}

/// One session, in whose transaction the crate takes tokens like any other statement.
async fn holder(db: &TestDb) -> anyhow::Result<TestDb> {
    let (mut holder, _) = with_session(db, "select 1").await?;
    holder.level = None;
    Ok(holder)
}

fn begin(db: &TestDb) -> &'static str {
    if db.engine.kind == Kind::Sqlite { "begin immediate" } else { "begin" }
}

/// Slow enough that all callers are answered before many more tokens come.
fn quota() -> Result<Quota, tollgate::model::QuotaError> {
    Quota::continuous(10, Duration::from_secs(5))
}

const CALLERS: u32 = 30;
