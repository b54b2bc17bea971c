//! Plans with several limits, requests for several buckets, and charges, as any SQL client calls them.

use anyhow::ensure;
use tollgate::Admin;

use super::MS;
use crate::engines::Kind;
use crate::matrix::{Case, Setup, Time, list};
use crate::pools::with_pool;
use crate::test_db::TestDb;

pub(crate) fn cases() -> Vec<Case> {
    list!(
        Setup { time: Time::Injected, needs: |engine| engine.has_routines, ..Setup::WITHOUT_LAYERS };
        request_tokens_all_takes_from_all_or_none,
        a_request_under_a_plan_takes_from_each_of_its_limits,
        a_charge_takes_more_than_the_bucket_holds,
        limits_of_a_plan_are_refused_if_invalid,
        several_limits_are_part_of_the_callers_transaction,
    )
}

async fn request_tokens_all_takes_from_all_or_none(db: TestDb) -> anyhow::Result<()> {
    db.at(ON_THE_GRID).await?;
    let keys = [db.key(), db.key()];
    for (key, capacity) in keys.iter().zip([5, 3]) {
        run(&db, "create_bucket", &format!("{}, {capacity}, 1, 'interval'", db.quoted(key.as_str()))).await?;
    }
    let ids = keys.map(|key| db.quoted(key.as_str()));
    for (tokens, expected) in
        [([2, 3], [[1, 1, 3, 0, 1000], [1, 1, 0, 1000, 1000]]), ([1, 1], [[0, 1, 3, 0, 1000], [0, 0, 0, 1000, 1000]])]
    {
        let arguments = if db.engine.kind == Kind::Postgres {
            format!("array[{}], array[{}, {}]", ids.join(", "), tokens[0], tokens[1])
        } else {
            let pairs = ids.iter().zip(tokens).map(|(id, tokens)| format!("json_array({id}, {tokens})"));
            format!("json_array({}), 0, 0, null", pairs.collect::<Vec<_>>().join(", "))
        };
        let rows = db.sql(db.calling("request_tokens_all", &arguments)).await?;
        let mut answers = Vec::new();
        for row in &rows {
            answers.push(row.numbers(["granted", "affords", "remaining", "retry_after_ms", "reset_after_ms"])?);
        }
        ensure!(answers == expected, "{tokens:?}: {answers:?}");
    }
    Ok(())
}

async fn a_request_under_a_plan_takes_from_each_of_its_limits(db: TestDb) -> anyhow::Result<()> {
    db.at(ON_THE_GRID).await?;
    let (plan, key) = (db.key(), db.key());
    let (name, id) = (db.quoted(plan.as_str()), db.quoted(key.as_str()));
    plan_of_two(&db, &name).await?;
    // Milliseconds and tokens; then the answer: the tightest limit's.
    for (ms, tokens, expected) in
        [(0, 4, [1, 1, 0, 60_000, 60_000]), (1000, 2, [0, 1, 0, 59_000, 59_000]), (1000, 1, [1, 0, 0, 59_000, 59_000])]
    {
        db.at(ON_THE_GRID + ms * MS).await?;
        let answer = if db.engine.kind == Kind::Postgres {
            db.call("request_tokens", &format!("{id}, {tokens}, p_plan => {name}")).await?
        } else {
            db.call("request_planned_tokens", &format!("{id}, {name}, {tokens}, 0, 0")).await?
        };
        let answer = answer.numbers(["granted", "remaining", "wait_ms", "retry_after_ms", "reset_after_ms"])?;
        ensure!(answer == expected, "{tokens} after {ms} ms: {answer:?}");
    }
    run(&db, "create_plan_limit", &format!("{name}, 'model', 9, 60, 'interval', 'tokens'")).await?;
    let call = if db.engine.kind == Kind::Postgres {
        db.calling("request_tokens", &format!("{id}, 1, p_plan => {name}"))
    } else {
        db.calling("request_planned_tokens", &format!("{id}, {name}, 1, 0, 0"))
    };
    assert_eq!(db.refusal(call).await?.sqlstate, "22023", "a cost with a name is missing");
    let deleted = db.call(routine(&db, "delete_plan"), &name).await?;
    let column = if db.engine.kind == Kind::Postgres { "delete_plan" } else { "found" };
    assert_eq!(deleted.text(column)?.map(|found| found == "1" || found == "t" || found == "true"), Some(true));
    Ok(())
}

async fn a_charge_takes_more_than_the_bucket_holds(db: TestDb) -> anyhow::Result<()> {
    db.at(ON_THE_GRID).await?;
    let (plan, key) = (db.key(), db.key());
    let (name, id) = (db.quoted(plan.as_str()), db.quoted(key.as_str()));
    plan_of_two(&db, &name).await?;
    let charge = routine(&db, "charge");
    let request = db.quoted("00000000-0000-0000-0000-00000000c0de");
    for (tokens, request, expected) in
        [(3, "null", [1, 2]), (4, &request, [1, -2]), (4, &request, [0, -2]), (1, "null", [1, -3])]
    {
        let answer = db.call(charge, &format!("{id}, {tokens}, {name}, {request}")).await?;
        let answer = answer.numbers(["charged", "available"])?;
        ensure!(answer == expected, "{tokens}, {request}: {answer:?}");
    }
    let unknown = db.quoted(db.key().as_str());
    for (arguments, sqlstate) in [
        (format!("{id}, 0, {name}, null"), "22023"),
        (format!("{id}, 1.5, {name}, null"), "22023"),
        (format!("null, 1, {name}, null"), "22023"),
        (format!("{unknown}, 1, null, null"), if db.engine.kind == Kind::Postgres { "P0002" } else { "45000" }),
        (format!("{unknown}, 1, {unknown}, null"), if db.engine.kind == Kind::Postgres { "P0002" } else { "45000" }),
    ] {
        assert_eq!(db.refusal(db.calling(charge, &arguments)).await?.sqlstate, sqlstate, "{arguments}");
    }
    Ok(())
}

async fn limits_of_a_plan_are_refused_if_invalid(db: TestDb) -> anyhow::Result<()> {
    let name = db.quoted(db.key().as_str());
    let create = routine(&db, "create_plan_limit");
    let missing = db.refusal(db.calling(create, &format!("{name}, 'day', 5, 60, 'interval', null"))).await?;
    assert_eq!(missing.sqlstate, if db.engine.kind == Kind::Postgres { "P0002" } else { "45000" });
    plan_of_two(&db, &name).await?;
    for arguments in [
        "'2nd', 5, 60, 'interval', null",
        "'a b', 5, 60, 'interval', null",
        "'', 5, 60, 'interval', null",
        "'day', 0, 60, 'interval', null",
        "'day', 5, 60, 'interval', 'a b'",
    ] {
        let refusal = db.refusal(db.calling(create, &format!("{name}, {arguments}"))).await?;
        ensure!(["22023", "23514", "HY000", "23000"].contains(&&*refusal.sqlstate), "{arguments}: {refusal:?}");
    }
    Ok(())
}

async fn several_limits_are_part_of_the_callers_transaction(db: TestDb) -> anyhow::Result<()> {
    let (plan, key) = (db.key(), db.key());
    let (name, id) = (db.quoted(plan.as_str()), db.quoted(key.as_str()));
    plan_of_two(&db, &name).await?;
    let calls = if db.engine.kind == Kind::Postgres {
        vec![
            db.calling("request_tokens", &format!("{id}, 1, p_plan => {name}")),
            db.calling("request_tokens_all", &format!("array[{id}], array[1], array[{name}]")),
            db.calling("charge", &format!("{id}, 3, {name}")),
            db.calling("create_plan_limit", &format!("{name}, 'hour', 9, 3600")),
            db.calling("delete_plan", &name),
        ]
    } else {
        vec![
            db.calling("request_planned_tokens", &format!("{id}, {name}, 1, 0, 0")),
            db.calling("request_tokens_all", &format!("json_array(json_array({id}, 1, {name})), 0, 0, null")),
            db.calling("token_charge", &format!("{id}, 3, {name}, null")),
            db.calling("token_create_plan_limit", &format!("{name}, 'hour', 9, 3600, 'interval', null")),
            db.calling("token_delete_plan", &name),
        ]
    };
    let before = db.store().plans(None, 1000).await?.len();
    for call in calls {
        with_pool!(&db.pool, pool => {
            let mut transaction = pool.begin().await?;
            sqlx::raw_sql(sqlx::AssertSqlSafe(call.clone())).execute(&mut *transaction).await?;
            transaction.rollback().await?;
        });
        ensure!(db.row(&key).await?.is_none(), "{call}: the bucket stays");
        ensure!(db.store().plans(None, 1000).await?.len() == before, "{call}: the plan changed");
    }
    Ok(())
}

/// A plan of five tokens an interval of a second, and of five a minute.
async fn plan_of_two(db: &TestDb, name: &str) -> anyhow::Result<()> {
    run(db, "create_plan", &format!("{name}, 5, 1, 'interval'")).await?;
    run(db, "create_plan_limit", &format!("{name}, 'minute', 5, 60, 'interval', null")).await
}

/// Calls a routine without a result.
async fn run(db: &TestDb, name: &'static str, arguments: &str) -> anyhow::Result<()> {
    db.sql(db.calling(routine(db, name), arguments)).await?;
    Ok(())
}

/// The engine's name of a routine.
fn routine(db: &TestDb, name: &'static str) -> &'static str {
    match (db.engine.kind, name) {
        (Kind::Postgres, name) => name,
        (_, "charge") => "token_charge",
        (_, "create_bucket") => "token_create_bucket",
        (_, "create_plan") => "token_create_plan",
        (_, "create_plan_limit") => "token_create_plan_limit",
        (_, "delete_plan") => "token_delete_plan",
        (_, other) => other,
    }
}

/// The start of a minute.
const ON_THE_GRID: i64 = 1_800_000_000_000_000_000;
