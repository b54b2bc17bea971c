//! Callers that give back tokens of many keys at once, with keys in common.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tollgate::{Adjusted, Adjustment, Error, Quota, Receipt, Rule, Store, Take, Window, store::Isolation};
use uuid::Uuid;

use crate::caller_sessions::CallerSessions;
use crate::engines::{Engine, Kind};
use crate::layers::Layers;
use crate::matrix::{Case, IsolationLevels, Setup, list};
use crate::pools::{Scratch, with_session};
use crate::session::Session;
use crate::store::AnyStore;
use crate::taken::drain;
use crate::test_db::TestDb;

pub fn cases() -> Vec<Case> {
    [
        list!(
            Setup { levels: IsolationLevels::Every, ..Setup::LAYERED_EVERYWHERE };
            calls_with_keys_in_opposite_orders_give_back_all,
        ),
        list!(
            Setup { needs: |engine| engine.kind == Kind::MySql, ..Setup::WITHOUT_LAYERS };
            refunds_without_a_grants_receipt_do_not_wait_for_each_other,
        ),
    ]
    .concat()
}

/// Calls lock in one order, regardless of the order given: no deadlock occurs at READ COMMITTED. Above, failures occur by
/// design, and an adjustment repeated after a failure is done once.
async fn calls_with_keys_in_opposite_orders_give_back_all(db: TestDb) -> anyhow::Result<()> {
    let sessions = CallerSessions::new(&db, CALLERS).await?;
    let is_exact = matches!(db.level, None | Some(Isolation::ReadCommitted)) && db.layers == Layers::None;
    let mut takes = Vec::new();
    for n in 0..KEYS {
        let take = if n % 3 == 2 {
            Take::from(db.key()).rule(Rule::Window(Window::new(CAPACITY, DAY, Duration::from_hours(1))?))
        } else {
            Take::from(db.bucket(Quota::interval(CAPACITY, DAY)?).await?)
        };
        assert!(db.decide(take.clone().cost(CAPACITY)).await?.is_granted());
        takes.push(take);
    }
    let start = Arc::new(Barrier::new(CALLERS as usize));
    let mut callers = JoinSet::new();
    for caller in 0..CALLERS {
        let mut takes = takes.clone();
        if caller % 2 == 1 {
            takes.reverse();
        }
        let store = if is_exact {
            let (session, _) = with_session(&db, looks_for_deadlocks(db.engine)).await?;
            session.store().max_attempts(1)
        } else {
            sessions.db.store()
        };
        let (store, start) = (store.deadline(Duration::from_mins(1)), Arc::clone(&start));
        let now = Duration::from_nanos(db.now().await?.unsigned_abs());
        callers.spawn(async move {
            start.wait().await;
            for _ in 0..ROUNDS {
                let refunds: Vec<_> = takes.iter().map(|take| refund(take, now)).collect();
                give_back(&store, &refunds).await?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(caller) = callers.join_next().await {
        caller??;
    }
    for take in takes {
        assert_eq!(drain(&db, &take).await?, i64::from(CALLERS * ROUNDS), "{take:?}");
    }
    Ok(())
}

/// At REPEATABLE READ, a read of a missing receipt would lock the gap into which the other transaction inserts its receipt.
async fn refunds_without_a_grants_receipt_do_not_wait_for_each_other(db: TestDb) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&db).await?;
    let db = &scratch.db;
    let bucket = (Rule::Quota(Quota::once(CAPACITY)?), "token_adjust_v1('refund', uuid(), 'KEY', 1, 0, 0, 1, false)");
    let window = (
        Rule::Window(Window::new(CAPACITY, DAY, Duration::from_hours(1))?),
        "token_adjust_window_v1('refund', uuid(), 'KEY', 1, 0, 1, false)",
    );
    for (rule, refund) in [bucket, window] {
        let mut transactions = Vec::new();
        for key in [db.key(), db.key()] {
            assert!(db.decide(Take::from(key.clone()).rule(rule.clone())).await?.is_granted());
            let mut session = Session::idle(db).await?;
            session.run("set session transaction isolation level repeatable read").await?;
            session.run("set session innodb_lock_wait_timeout = 1").await?;
            session.run("begin").await?;
            transactions.push((session, format!("call {}", refund.replace("KEY", key.as_str()))));
        }
        for _ in 0..2 {
            for (session, call) in &mut transactions {
                session.run(call.as_str()).await?;
            }
        }
    }
    Ok(())
}

/// The time after which PostgreSQL searches for deadlocks during a wait for a row.
fn looks_for_deadlocks(engine: &Engine) -> &'static str {
    if engine.kind == Kind::Postgres { "set deadlock_timeout = '10ms'" } else { "select 1" }
}

/// Refunds one of the tokens taken.
fn refund(take: &Take, taken_at: Duration) -> Adjustment {
    let receipt = Receipt::new(Uuid::new_v4(), take.key().clone(), 1);
    if take.limits().any(|limit| matches!(limit.rule(), Rule::Window(_))) {
        receipt.in_window(taken_at).refund(1)
    } else {
        receipt.refund(1)
    }
}

/// Gives the tokens back once, with any number of attempts.
async fn give_back(store: &AnyStore, refunds: &[Adjustment]) -> anyhow::Result<()> {
    loop {
        match store.adjust(refunds).await {
            Ok(adjusted) => {
                anyhow::ensure!(adjusted.iter().all(|it| *it == Ok(Adjusted::Done(1))), "{adjusted:?}");
                return Ok(());
            }
            // PostgreSQL's routine waits a tenth of a second for a row.
            Err(Error::Contended { source, .. }) => {
                let code = source.downcast_ref::<sqlx::Error>().and_then(sqlx::Error::as_database_error);
                let code = code.and_then(|error| error.code().map(Cow::into_owned));
                anyhow::ensure!(!["40P01", "40001"].map(Some).contains(&code.as_deref()), "a deadlock: {source}");
            }
            Err(error) => return Err(error.into()),
        }
    }
}

const CALLERS: u32 = 8;
const ROUNDS: u32 = 5;
const KEYS: u32 = 9;
const CAPACITY: u64 = 1000;
const DAY: Duration = Duration::from_hours(24);
