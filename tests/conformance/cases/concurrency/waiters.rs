//! Callers that wait for another transaction's lock. A decision counts when its bucket is locked for it. So after any wait, the
//! callers get exactly what the bucket holds at its release.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;
use tollgate::{
    Key, Quota, Store, Take,
    clock::{Clock, SystemClock},
    store::take_within,
};
use uuid::Uuid;

use super::granted;
use crate::checker::Call;
use crate::crowd::Crowd;
use crate::engines::{Engine, Kind};
use crate::matrix::{Case, Levels, Time, list};
use crate::pools::{Scratch, slow_clock, with_pool, with_session};
use crate::rig::Rig;
use crate::workers::{faults, nanoseconds};

pub fn cases() -> Vec<Case> {
    [
        list!(Levels::Every, Time::Real, |engine: &Engine| engine.has_sessions;
            waiters_for_a_lock_have_one_burst, lock_waiters_with_ids_have_one_burst,
            lock_waiters_get_what_the_holder_left)
        .to_vec(),
        list!(Levels::Pools, Time::Real, |engine: &Engine| engine.has_sessions;
            lock_waiters_with_token_waits_share_one_burst)
        .to_vec(),
        list!(Levels::Pools, Time::Real, |engine: &Engine| engine.has_routines && engine.has_sessions;
            lock_waiters_on_slow_storage_have_one_burst)
        .to_vec(),
    ]
    .concat()
}

async fn waiters_for_a_lock_have_one_burst(rig: Rig) -> anyhow::Result<()> {
    have_one_burst(&rig, |take| take).await
}

async fn lock_waiters_with_token_waits_share_one_burst(rig: Rig) -> anyhow::Result<()> {
    have_one_burst(&rig, |take| take.max_wait(Duration::from_millis(1))).await
}

async fn lock_waiters_with_ids_have_one_burst(rig: Rig) -> anyhow::Result<()> {
    have_one_burst(&rig, with_id).await
}

async fn lock_waiters_on_slow_storage_have_one_burst(rig: Rig) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&rig).await?;
    slow_clock(&scratch.rig.pool, Duration::from_millis(3)).await?;
    have_one_burst(&scratch.rig, |take| take).await?;
    have_one_burst(&scratch.rig, with_id).await
}

fn with_id(take: Take) -> Take {
    take.id(Uuid::new_v4(), Duration::from_hours(1))
}

async fn have_one_burst(rig: &Rig, request: fn(Take) -> Take) -> anyhow::Result<()> {
    let key = rig.bucket(quota()?).await?;
    let holder = holder(rig).await?;
    holder.pool.run(begin(rig)).await?;
    if rig.engine.kind != Kind::Sqlite {
        holder.pool.run(format!("select 1 from {} where id = {} for update", rig.table(), rig.literal(&key))).await?;
    }

    let calls = released_after_two_seconds(rig, &key, request, &holder, "rollback").await?;
    assert!(granted(&calls) >= 10, "{} of the 10 that were there", granted(&calls));
    check(rig, &key, &calls).await
}

async fn lock_waiters_get_what_the_holder_left(rig: Rig) -> anyhow::Result<()> {
    let key = rig.bucket(quota()?).await?;
    let holder = holder(&rig).await?;
    // If the crate decides, it can need its own transaction.
    let decides_in_it = rig.engine.kind != Kind::Sqlite;
    if decides_in_it {
        holder.pool.run(begin(&rig)).await?;
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
        holder.pool.run(begin(&rig)).await?;
    }

    let mut calls = released_after_two_seconds(&rig, &key, |take| take, &holder, "commit").await?;
    assert!(granted(&calls) >= 8, "{} of the 8 that were there: 4 left, and 2 a second", granted(&calls));
    calls.push(own);
    check(&rig, &key, &calls).await
}

/// Thirty callers request a token and wait, and the lock is released after two seconds. Then each requests another token,
/// because the remaining tokens must not be credited with the wait again.
async fn released_after_two_seconds(
    rig: &Rig,
    key: &Key,
    request: fn(Take) -> Take,
    holder: &Rig,
    end: &str,
) -> anyhow::Result<Vec<Call>> {
    let since = rig.now().await?;
    let crowd = Crowd::new(rig, CALLERS).await?;
    let store = crowd.rig.store().max_attempts(u32::MAX).deadline(Duration::from_mins(1));
    let asked = Arc::new(AtomicUsize::new(0));
    let mut callers = JoinSet::new();
    for _ in 0..CALLERS {
        let (store, key, asked) = (store.clone(), key.clone(), Arc::clone(&asked));
        callers.spawn(async move {
            let mut calls = Vec::new();
            for _ in 0..2 {
                asked.fetch_add(1, Ordering::SeqCst);
                let sent = SystemClock.now();
                let decision = store.take(&[request(Take::from(key.clone()))]).await?.remove(0)?;
                let done = SystemClock.now() + nanoseconds(decision.wait());
                calls.push(Call { sent, done, at: None, cost: 1, granted: decision.is_granted() });
            }
            anyhow::Ok(calls)
        });
    }
    let all = usize::try_from(CALLERS)?;
    if rig.engine.kind == Kind::Sqlite {
        // Waits for a file are not visible. A caller that does not wait is denied or granted late, which is correct, too.
        while asked.load(Ordering::SeqCst) < all {
            tokio::task::yield_now().await;
        }
    } else {
        crowd.wait(rig, all).await?;
    }
    rig.until(since + nanoseconds(Duration::from_secs(2))).await?;
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

async fn check(rig: &Rig, key: &Key, calls: &[Call]) -> anyhow::Result<()> {
    let faults = faults(&quota()?, 0, calls);
    assert!(faults.is_empty(), "{} faults, the first: {}", faults.len(), faults[0]);
    assert_eq!(rig.row(key).await?.map(|row| row.granted), Some(granted(calls)), "what is debited was granted");
    Ok(())
}

/// One session, in whose transaction the crate takes tokens like any other statement.
async fn holder(rig: &Rig) -> anyhow::Result<Rig> {
    let (mut holder, _) = with_session(rig, "select 1").await?;
    holder.level = None;
    Ok(holder)
}

fn begin(rig: &Rig) -> &'static str {
    if rig.engine.kind == Kind::Sqlite { "begin immediate" } else { "begin" }
}

/// Slow enough that all callers are answered before many more tokens come.
fn quota() -> Result<Quota, tollgate::model::QuotaError> {
    Quota::continuous(10, Duration::from_secs(5))
}

const CALLERS: u32 = 30;
