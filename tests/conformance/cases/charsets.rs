//! Keys, names and reasons are equal bytes in sessions of every character set.

use std::time::Duration;

use anyhow::ensure;
use tollgate::{
    Admin, Key, Mode, Quota, Receipt, Rule, Store, Take, Throttle, Window,
    admin::{Filter, Override},
    store::{Maintenance, SharedWindows},
};
use uuid::Uuid;

use crate::engines::Kind;
use crate::matrix::{Case, Setup, Time, list};
use crate::pools::{injected, with_session};
use crate::store::AnyStore;
use crate::test_db::TestDb;

pub fn cases() -> Vec<Case> {
    // Without layers: the cases use their own sessions and database.
    list!(
        Setup { time: Time::Injected, needs: |engine| engine.kind == Kind::MySql, ..Setup::WITHOUT_LAYERS };
        session_charset_changes_no_call_of_the_crate,
        routine_refuses_a_key_truncated_by_a_lax_session,
        routine_converts_a_key_of_another_charset,
        tables_refuse_an_id_that_is_not_utf_8,
    )
}

/// Makes every call with a key through a session of each character set, and through a session of utf8mb4.
async fn session_charset_changes_no_call_of_the_crate(db: TestDb) -> anyhow::Result<()> {
    let (_scratch, db) = injected(&db).await?;
    let expected = [journal(&db, &db, false).await?, journal(&db, &db, true).await?];
    for line in expected.iter().flatten() {
        ensure!(!line.contains("Err("), "{line}");
    }
    for charset in CHARSETS {
        for sql_mode in ["@@sql_mode", "''"] {
            let statement = format!("set names {charset}; set sql_mode = {sql_mode}, @tollgate_test_now = 0").leak();
            let (session, _) = with_session(&db, statement).await?;
            let found = [journal(&session, &db, false).await?, journal(&db, &session, true).await?];
            for (expected, found) in expected.iter().flatten().zip(found.iter().flatten()) {
                ensure!(expected == found, "after {statement}:\n{found}\ninstead of\n{expected}");
            }
        }
    }
    Ok(())
}

async fn routine_refuses_a_key_truncated_by_a_lax_session(db: TestDb) -> anyhow::Result<()> {
    for charset in ["utf8", "ascii"] {
        let statement = format!("set names {charset}; set sql_mode = '', @tollgate_test_now = 0").leak();
        let (session, _) = with_session(&db, statement).await?;
        for call in [
            "call request_token('k😀')",
            "call request_planned_tokens('k', 'k😀', 1, 0, 0)",
            r#"call request_tokens_many('[["k😀", 1]]')"#,
            "call rate_limiting_request('k😀', 1, 10)",
            "call request_tokens_in_window('k😀', 5, 60, 5, 1, 0)",
            "call token_throttle('k😀', 0, null, null)",
        ] {
            let refusal = session.refusal(call).await?;
            ensure!(
                refusal.sqlstate == "22023" && refusal.message.contains("set names utf8mb4"),
                "{call}: {refusal:?}"
            );
        }
        session.call("rate_limiting_request", "'k?', 1, 10").await?;
    }
    Ok(())
}

async fn routine_converts_a_key_of_another_charset(db: TestDb) -> anyhow::Result<()> {
    let unique = db.key();
    let key = Key::try_from(format!("{unique}ü水"))?;
    for (charset, sent) in [("latin1", "fc"), ("gbk", "a8b9"), ("utf8mb4", "c3bc")] {
        let id = format!("concat('{unique}', _{charset} x'{sent}', '水')");
        db.call("rate_limiting_request", &format!("{id}, 1, 3")).await?;
    }
    assert_eq!(db.store().peek(&key).await?.map(|level| level.available()), Some(0));
    Ok(())
}

async fn tables_refuse_an_id_that_is_not_utf_8(db: TestDb) -> anyhow::Result<()> {
    for insert in [
        "token_buckets (id, capacity, refill_seconds) values (_latin1 x'6bfc', 1, 1)",
        "token_plans (name, capacity, refill_seconds) values (_latin1 x'6bfc', 1, 1)",
        "token_overrides (id, mode, reason) values (_latin1 x'6bfc', 'block', '')",
    ] {
        db.refusal(format!("insert into {insert}")).await?;
    }
    Ok(())
}

const CHARSETS: [&str; 6] = ["utf8mb4", "utf8", "latin1", "gbk", "ascii", "cp932"];

/// Characters of one to four bytes. A server that replaces characters that it cannot express would merge the last two.
const KEYS: [&str; 5] = ["k", "kü", "k水", "k😀", "k😁"];

/// Records the answers of one session's calls, and those of another session that reads the results.
async fn journal(writer: &TestDb, reader: &TestDb, with_ids: bool) -> anyhow::Result<Vec<String>> {
    for table in ["buckets", "plans", "overrides", "receipts", "windows", "stats"] {
        reader.sql(format!("delete from token_{table}")).await?;
    }
    let mut lines = Vec::new();
    let keys = KEYS.map(|text| Key::try_from(text).expect("a key"));
    take_and_adjust(&mut lines, &writer.store(), &reader.store(), &keys, with_ids).await?;
    operate(&mut lines, &writer.store(), &reader.store(), &keys).await?;
    Ok(lines)
}

macro_rules! note {
    ($lines:ident, $call:expr) => {
        $lines.push(format!("{}: {:?}", stringify!($call), $call))
    };
}

async fn take_and_adjust(
    lines: &mut Vec<String>,
    store: &AnyStore,
    other: &AnyStore,
    keys: &[Key; 5],
    with_ids: bool,
) -> anyhow::Result<()> {
    let quota = Quota::interval(3, Duration::from_hours(1))?;
    let window = Window::new(3, Duration::from_mins(1), Duration::from_secs(10))?;
    let id = |kind| Uuid::from_bytes([kind; 16]);

    for key in keys {
        note!(lines, store.create_bucket(key, quota).await);
        note!(lines, other.peek(key).await);
        note!(lines, store.peek(key).await);
        note!(lines, store.take_one(&Take::from(key.clone())).await);
        note!(lines, other.take_one(&Take::from(key.clone()).cost(2)).await);
        note!(lines, store.take_one(&Take::from(key.clone())).await);
        note!(lines, store.reset(key).await);
        note!(lines, store.throttle(key, &Rule::Provisioned, Throttle::remaining(1)).await);
        note!(lines, other.peek(key).await);
        note!(lines, store.reset(key).await);
    }

    // Batches: any requests, uniform requests, and requests for several buckets.
    let any: Vec<Take> = keys.iter().map(|key| Take::from(key.clone())).collect();
    note!(lines, store.take(&any).await);
    let alike: Vec<Take> =
        keys.iter().map(|key| Take::from(named("alike ", key)).rule(Rule::Quota(quota)).cost(3)).collect();
    note!(lines, store.take(&alike).await);
    note!(lines, other.take_one(&alike[4]).await);
    let several: Vec<Take> =
        keys.iter().map(|key| Take::from(key.clone()).and(named("alike ", key), Rule::Quota(quota))).collect();
    note!(lines, store.take_one(&several[1]).await);
    note!(lines, store.take(&several).await);
    for key in keys {
        note!(lines, other.peek(key).await);
        note!(lines, other.peek(&named("alike ", key)).await);
    }

    for key in keys {
        let take = Take::from(key.clone()).rule(Rule::Window(window));
        note!(lines, store.take_one(&take).await);
        note!(lines, other.count(key, &window, 1).await);
        note!(lines, store.count(key, &window, 0).await);
        note!(lines, other.peek_window(key).await);
        note!(lines, store.peek_window(key).await);
        note!(lines, store.windows(Some(key), None, 9).await);
    }

    if with_ids {
        let mut refunds = Vec::new();
        for key in keys {
            let (of_bucket, of_window) = (id(1), id(2));
            let take = Take::from(key.clone()).id(of_bucket, Duration::from_hours(1));
            note!(lines, store.take_one(&take).await);
            note!(lines, other.take_one(&take).await);
            note!(lines, store.adjust(&[Receipt::new(of_bucket, key.clone(), 1).cancel()]).await);
            let receipt = || Receipt::new(of_window, key.clone(), 1).in_window(Duration::ZERO);
            note!(lines, store.adjust(&[receipt().refund(1)]).await);
            note!(lines, other.adjust(&[receipt().refund(1)]).await);
            refunds.push(Receipt::new(id(3), key.clone(), 1).refund(1));
        }
        note!(lines, store.adjust(&refunds).await);
    }
    Ok(())
}

async fn operate(lines: &mut Vec<String>, store: &AnyStore, other: &AnyStore, keys: &[Key; 5]) -> anyhow::Result<()> {
    let quota = Quota::interval(3, Duration::from_hours(1))?;
    for key in keys {
        note!(lines, store.create_plan(key, quota.into()).await);
        note!(lines, store.set_plan_mode(key, Some(Mode::Shadow), Some(key.as_str()), None).await);
        note!(lines, other.plan(key).await);
        note!(lines, store.plan(key).await);
        let planned = Take::from(named("planned ", key)).rule(Rule::Plan(key.clone()));
        note!(lines, store.take_one(&planned).await);
        note!(lines, store.take(&[planned.clone(), planned]).await);
        note!(lines, other.explain(&named("planned ", key), None).await);
        note!(lines, store.explain(&named("planned ", key), None).await);
        note!(lines, store.explain(&named("unknown ", key), Some(key)).await);
        note!(lines, store.list(&Filter::default().plan(key.clone()), None, 9).await);
        note!(lines, store.peek(&named("planned ", key)).await);
    }
    note!(lines, store.plans(Some(&keys[1]), 9).await);

    for key in keys {
        let block = || Override { mode: Some(Mode::Block), reason: key.to_string(), ..Override::default() };
        note!(lines, store.set_override(key, block()).await);
        note!(lines, store.take_one(&Take::from(key.clone())).await);
        note!(lines, other.take_one(&Take::from(key.clone())).await);
        note!(lines, other.explain(key, None).await);
        note!(lines, store.explain(key, None).await);
        note!(lines, store.set_mode(Mode::Shadow, Some(key.as_str()), None).await);
        note!(lines, other.mode().await);
        note!(lines, store.mode().await);
        note!(lines, store.set_mode(Mode::Enforce, None, None).await);
    }
    note!(lines, store.overrides(Some(&keys[1]), 9).await);
    note!(lines, store.count_denials(&keys.clone().map(|key| (key, 2))).await);
    let denied = |denials: tollgate::admin::Page<tollgate::admin::DenialCount>| {
        denials.into_iter().map(|of| (of.key, of.denied)).collect::<Vec<_>>()
    };
    note!(lines, other.most_denied(9).await.map(denied));
    note!(lines, store.most_denied(9).await.map(denied));
    note!(lines, store.list(&Filter::default().prefix(keys[1].clone()), None, 9).await);
    note!(lines, store.list(&Filter::default(), Some(&keys[1]), 99).await);
    for key in keys {
        note!(lines, store.clear_override(key).await);
        note!(lines, store.delete(key).await);
        note!(lines, store.delete_plan(key).await);
    }
    note!(lines, other.list(&Filter::default(), None, 99).await);
    note!(lines, store.sweep(99).await.map(|swept| swept.deleted));
    Ok(())
}

/// The second bucket for a key.
fn named(prefix: &str, key: &Key) -> Key {
    Key::try_from(format!("{prefix}{key}")).expect("a key")
}
