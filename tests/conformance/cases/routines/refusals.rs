//! Calls that the routines refuse, with their error codes and without any change.

use std::time::Duration;

use anyhow::ensure;
use tollgate::{Error, Quota, Rule, Store, Take};

use crate::engines::Kind;
use crate::matrix::{Case, Setup, Time, list};
use crate::pools::Scratch;
use crate::test_db::TestDb;

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = list!(
        Setup { time: Time::Injected, needs: |engine| engine.has_routines, ..Setup::WITHOUT_LAYERS };
        unknown_bucket_error_says_how_to_create_it,
        request_tokens_beyond_the_capacity_is_an_error,
        arguments_out_of_range_move_no_token,
        versioned_routines_refuse_values_that_would_mint_tokens,
        nan_and_infinite_values_move_no_token,
        receipts_out_of_range_give_nothing_back,
        rate_limiting_request_refuses_invalid_values,
        a_batch_of_anything_but_ids_and_numbers_moves_no_token,
    );
    cases.extend(list!(
        Setup { needs: |engine| engine.kind == Kind::MySql, ..Setup::WITHOUT_LAYERS };
        bucket_changed_during_every_attempt_is_contended,
    ));
    cases.extend(list!(
        Setup { time: Time::Injected, needs: |engine| engine.kind == Kind::MySql, ..Setup::WITHOUT_LAYERS };
        routine_refuses_a_fraction_for_a_whole_number,
    ));
    cases
}

async fn unknown_bucket_error_says_how_to_create_it(db: TestDb) -> anyhow::Result<()> {
    let key = db.key();
    for (routine, more) in [("request_token", ""), ("request_tokens", ", 1, 0, 0"), ("request_tokens", ", 1, 1000, 0")]
    {
        let arguments = format!("{}{more}", db.quoted(key.as_str()));
        let refusal = db.refusal(db.calling(routine, &arguments)).await?;
        let sqlstate = if db.engine.kind == Kind::Postgres { "P0002" } else { "45000" };
        ensure!(refusal.sqlstate == sqlstate && refusal.message.contains(key.as_str()), "{refusal:?}");
    }
    assert_eq!(db.row(&key).await?, None, "asking for a bucket must not make it");
    Ok(())
}

async fn request_tokens_beyond_the_capacity_is_an_error(db: TestDb) -> anyhow::Result<()> {
    let key = db.bucket(Quota::interval(5, Duration::from_secs(1))?).await?;
    let before = db.row(&key).await?;
    for more in ["6, 0, 0", "5, 0, 1", "1, 31622400000, 5", "9007199254740991, 0, 9007199254740991"] {
        let arguments = format!("{}, {more}", db.quoted(key.as_str()));
        let refusal = db.refusal(db.calling("request_tokens", &arguments)).await?;
        ensure!(refusal.sqlstate == "22023" && refusal.message.contains("holds 5 tokens"), "{more}: {refusal:?}");
    }
    assert_eq!(db.row(&key).await?, before);
    Ok(())
}

async fn routine_refuses_a_fraction_for_a_whole_number(db: TestDb) -> anyhow::Result<()> {
    let key = db.bucket(Quota::interval(5, Duration::from_secs(1))?).await?;
    let before = db.row(&key).await?;
    let id = db.quoted(key.as_str());
    let uuid = "'0123456789abcdef0123456789abcdef'";
    for (routine, arguments, wrong) in [
        ("token_create_bucket", format!("{id}, 2.5, 60, 'interval'"), "capacity"),
        ("token_create_bucket", format!("{id}, 2.5e0, 60, 'interval'"), "capacity"),
        ("token_create_bucket", format!("{id}, '2.5', 60, 'interval'"), "capacity"),
        ("token_create_plan", format!("{id}, 2.5, 60, 'continuous'"), "capacity"),
        ("request_tokens", format!("{id}, 1.5, 0, 0"), "tokens"),
        ("request_tokens", format!("{id}, 1, 0.5, 0"), "max_wait_ms"),
        ("request_tokens", format!("{id}, 1, 0, 0.5"), "min_remaining"),
        ("request_planned_tokens", format!("{id}, 'p', 1.5, 0, 0"), "tokens"),
        ("request_tokens_once", format!("{id}, 1.5, 0, 0, {uuid}"), "tokens"),
        ("request_tokens_many", format!("json_array(json_array({id}, 1.5))"), "tokens"),
        ("rate_limiting_request", format!("{id}, 1.5, 10"), "refill_per_sec"),
        ("rate_limiting_request", format!("{id}, 1, 10.5"), "window_seconds"),
        ("request_tokens_in_window", format!("{id}, 5.5, 60, 5, 1, 0"), "max_requests"),
        ("request_tokens_in_window", format!("{id}, 5, 60, 5, 1.5, 0"), "tokens"),
        ("request_tokens_in_window", format!("{id}, 5, 60, 5, 1, 0.5"), "max_wait_ms"),
        ("token_throttle", format!("{id}, 1.5, null, null"), "remaining"),
        ("token_throttle", format!("{id}, null, 0.5, null"), "retry_after_ms"),
        ("token_throttle", format!("{id}, null, 1, 0.5"), "max_wait_ms"),
        ("token_adjust_v1", format!("'refund', {uuid}, {id}, 1.5, 0, 0, 1, false"), "cost"),
        ("token_adjust_v1", format!("'refund', {uuid}, {id}, 1, 0, 0, 0.5, false"), "tokens"),
        ("token_adjust_window_v1", format!("'refund', {uuid}, {id}, 1, 0, 0.5, false"), "tokens"),
    ] {
        let refusal = db.refusal(db.calling(routine, &arguments)).await?;
        let codes = ["22023", "23514"].contains(&refusal.sqlstate.as_str());
        ensure!(
            codes && ["tollgate: ", wrong, "whole"].iter().all(|word| refusal.message.contains(word)),
            "{routine}({arguments}): {refusal:?}"
        );
    }
    let negative = db.refusal(db.calling("request_tokens", &format!("{id}, -1, 0, 0"))).await?;
    ensure!(!negative.message.contains("whole"), "{negative:?}");
    assert_eq!(db.row(&key).await?, before);
    Ok(())
}

async fn arguments_out_of_range_move_no_token(db: TestDb) -> anyhow::Result<()> {
    let key = db.bucket(Quota::interval(5, Duration::from_secs(1))?).await?;
    db.take(&key).await.map(|decision| assert!(decision.is_granted()))?;
    let before = db.row(&key).await?;
    let least = i64::MIN;
    let id = db.quoted(key.as_str());
    for arguments in [
        format!("{id}, 0, 0, 0"),
        format!("{id}, -1, 0, 0"),
        format!("{id}, {least}, 0, 0"),
        format!("{id}, null, 0, 0"),
        format!("{id}, 1, -1, 0"),
        format!("{id}, 1, {least}, 0"),
        format!("{id}, 1, null, 0"),
        format!("{id}, 1, 0, -1"),
        format!("{id}, 1, 0, {least}"),
        format!("{id}, 1, 0, null"),
        "null, 1, 0, 0".into(),
    ] {
        let refusal = db.refusal(db.calling("request_tokens", &arguments)).await?;
        ensure!(refusal.sqlstate == "22023" && refusal.message.contains("tollgate"), "{arguments}: {refusal:?}");
    }
    let refusal = db.refusal(db.calling("request_token", "null")).await?;
    ensure!(refusal.sqlstate == "22023", "{refusal:?}");
    assert_eq!(db.row(&key).await?, before);
    Ok(())
}

async fn versioned_routines_refuse_values_that_would_mint_tokens(db: TestDb) -> anyhow::Result<()> {
    let key = db.bucket(Quota::interval(5, Duration::from_secs(1))?).await?;
    db.take(&key).await.map(|decision| assert!(decision.is_granted()))?;
    let before = db.row(&key).await?;
    let new = db.key();
    let (least, most) = (i64::MIN, i64::MAX);
    for numbers in [
        "null, 0, 0",
        "0, 0, 0",
        "-1, 0, 0",
        "1, null, 0",
        "1, -1, 0",
        "1, 31622400000000001, 0",
        "1, 0, null",
        "1, 0, -1",
    ]
    .map(str::to_owned)
    .into_iter()
    .chain([format!("{least}, 0, 0"), format!("1, {least}, 0"), format!("1, {most}, 0"), format!("1, 0, {least}")])
    {
        for (key, limits) in [(&key, "null, null, null"), (&key, "5, 1, 'interval'"), (&new, "5, 1, 'interval'")] {
            let arguments = format!("{}, {numbers}, {limits}, null, null, null", db.quoted(key.as_str()));
            let refusal = db.refusal(db.taking(&arguments)).await?;
            ensure!(refusal.sqlstate == "22023", "{arguments}: {refusal:?}");
        }
    }
    // No bucket, no id, and invalid limits.
    for limits in ["0, 1, 'interval'", "-5, 1, 'interval'", "5, 0, 'interval'", "5, -1, 'interval'", "5, 1, 'never'"]
        .into_iter()
        .chain(["5, null, 'interval'", "5, 1, null"])
    {
        db.refusal(db.taking(&format!("{}, 1, 0, 0, {limits}, null, null, null", db.quoted(new.as_str())))).await?;
        db.refusal(db.taking(&format!("null, 1, 0, 0, {limits}, null, null, null"))).await?;
    }
    let unknown = db.sql(db.taking("null, 1, 0, 0, null, null, null, null, null, null")).await?;
    assert_eq!(unknown[0].text("outcome")?, Some("unknown"));
    assert_eq!(db.row(&new).await?, None);
    assert_eq!(db.row(&key).await?, before);
    Ok(())
}

async fn nan_and_infinite_values_move_no_token(db: TestDb) -> anyhow::Result<()> {
    let key = db.bucket(Quota::interval(5, Duration::from_secs(1))?).await?;
    let before = db.row(&key).await?;
    let new = db.key();
    let (known, unknown) = (db.quoted(key.as_str()), db.quoted(new.as_str()));
    let postgres = db.engine.kind == Kind::Postgres;
    let routine = |name: &str| {
        if postgres || name.starts_with("request") { name.to_owned() } else { format!("token_{name}") }
    };
    let own = if postgres { "" } else { ", false, @outcome" };
    // The numbers of MySQL and MariaDB are all finite, so these tests use a text that is not a number.
    let numbers: &[&str] = if postgres {
        &["'NaN'", "'infinity'", "'-infinity'", "1e30", "null"]
    } else {
        &["'NaN'", "'inf'", "'-inf'", "1e30", "1e308", "null"]
    };
    let codes: &[&str] = if postgres {
        &["22003", "22023", "23502", "23514"]
    } else {
        &["22003", "22007", "22023", "23000", "23514", "HY000"]
    };
    for number in numbers {
        for (name, arguments) in [
            ("create_bucket", format!("{known}, 5, {number}, 'continuous'")),
            ("create_bucket", format!("{unknown}, 5, {number}, 'continuous'")),
            ("create_plan", format!("{unknown}, 5, {number}, 'continuous'")),
            ("take_v1", format!("{unknown}, 1, 0, 0, 5, {number}, 'continuous', null, null, null")),
            ("throttle_v1", format!("{unknown}, 1, 0, 5, {number}, 'continuous', null{own}")),
            ("request_tokens_in_window", format!("{unknown}, 5, {number}, 5, 1, 0")),
            ("request_tokens_in_window", format!("{unknown}, 5, 60, {number}, 1, 0")),
        ] {
            let call = if name == "take_v1" { db.taking(&arguments) } else { db.calling(&routine(name), &arguments) };
            let refusal = db.refusal(call).await?;
            ensure!(codes.contains(&&*refusal.sqlstate), "{name}({arguments}): {refusal:?}");
        }
    }
    for table in ["token_buckets", "token_plans", "token_windows"] {
        let (table, id) =
            (db.table().replace("token_buckets", table), if table == "token_plans" { "name" } else { "id" });
        let made = db.sql(format!("select 1 as made from {table} where {id} = {}", db.literal(&new))).await?;
        ensure!(made.is_empty(), "something was made in {table}");
    }
    assert_eq!(db.row(&key).await?, before);
    Ok(())
}

async fn receipts_out_of_range_give_nothing_back(db: TestDb) -> anyhow::Result<()> {
    let key = db.bucket(Quota::interval(5, Duration::from_secs(1))?).await?;
    db.take(&key).await.map(|decision| assert!(decision.is_granted()))?;
    let before = db.row(&key).await?;
    let (prefix, own) = if db.engine.kind == Kind::Postgres { ("", "") } else { ("token_", ", false") };
    let (id, receipt) = (db.quoted(key.as_str()), db.quoted(&uuid::Uuid::new_v4().to_string()));
    let (least, most) = (i64::MIN, i64::MAX);
    for kind in ["cancel", "refund", "settle"] {
        for (cost, granted, scheduled_at, tokens) in [
            ("0", "1", "0", "1"),
            ("-1", "1", "0", "1"),
            ("null", "1", "0", "1"),
            (&*most.to_string(), "1", "0", "1"),
            ("1", &*least.to_string(), &*most.to_string(), "1"),
            ("1", "-1", "0", "1"),
            ("1", "null", "0", "1"),
            ("1", "1", "null", "1"),
            ("1", "1", "0", "-1"),
            ("1", "1", "0", "null"),
            ("1", "1", "0", &*most.to_string()),
        ] {
            let arguments = format!("'{kind}', {receipt}, {id}, {cost}, {granted}, {scheduled_at}, {tokens}{own}");
            let refusal = db.refusal(db.calling(&format!("{prefix}adjust_v1"), &arguments)).await?;
            ensure!(refusal.sqlstate == "22023", "{arguments}: {refusal:?}");
        }
        for (cost, scheduled_at, tokens) in
            [("0", "0", "1"), ("1", &*least.to_string(), "1"), ("1", "-1", "1"), ("1", "null", "1"), ("1", "0", "-1")]
        {
            let arguments = format!("'{kind}', {receipt}, {id}, {cost}, {scheduled_at}, {tokens}{own}");
            let refusal = db.refusal(db.calling(&format!("{prefix}adjust_window_v1"), &arguments)).await?;
            ensure!(refusal.sqlstate == "22023", "{arguments}: {refusal:?}");
        }
    }
    assert_eq!(db.row(&key).await?, before);
    Ok(())
}

async fn rate_limiting_request_refuses_invalid_values(db: TestDb) -> anyhow::Result<()> {
    let key = db.bucket(Quota::interval(10, Duration::from_secs(10))?).await?;
    let before = db.row(&key).await?;
    let refusal =
        db.refusal(db.calling("rate_limiting_request", &format!("{}, 1, 10", db.quoted(key.as_str())))).await?;
    ensure!(refusal.sqlstate == "22023" && refusal.message.contains("provisioned with other limits"), "{refusal:?}");
    assert_eq!(db.row(&key).await?, before);

    let new = db.key();
    let id = db.quoted(new.as_str());
    for arguments in [
        format!("{id}, 0, 10"),
        format!("{id}, -1, 10"),
        format!("{id}, 1000000001, 10"),
        format!("{id}, 1, 0"),
        format!("{id}, 1, -1"),
        format!("{id}, 1, 3155760001"),
        "null, 1, 10".into(),
    ] {
        let refusal = db.refusal(db.calling("rate_limiting_request", &arguments)).await?;
        ensure!(refusal.sqlstate == "22023", "{arguments}: {refusal:?}");
    }
    assert_eq!(db.row(&new).await?, None);
    Ok(())
}

async fn a_batch_of_anything_but_ids_and_numbers_moves_no_token(db: TestDb) -> anyhow::Result<()> {
    let key = db.bucket(Quota::interval(5, Duration::from_secs(1))?).await?;
    let before = db.row(&key).await?;
    let id = key.as_str();
    let batches = match db.engine.kind {
        Kind::Postgres => {
            ["null, null", "array['ID'], null", "array['ID'], array[1, 1]", "array['ID', null], array[1, 1]"]
                .into_iter()
                .chain([
                    "array['ID', 'ID'], array[1, null]",
                    "array['ID', 'ID'], array[1, 0]",
                    "array['ID'], array[-1]",
                ])
                .map(|batch| batch.replace("ID", id))
                .collect::<Vec<_>>()
        }
        _ => ["{}", "1", r#"["ID", 1]"#, r#"["ID"]"#, r#"[["ID"]]"#, r#"[["ID", 1], []]"#, r#"[["ID", 1], [null, 1]]"#]
            .into_iter()
            .chain([r#"[["ID", 1], ["ID", null]]"#, r#"[["ID", 1], ["ID", 0]]"#, r#"[["ID", -1]]"#, r#"[["ID", "x"]]"#])
            // Values that token_take_batch_v1 accepts in addition.
            .chain([r#"[["ID", 1, 0]]"#, r#"[["ID", 1, 0, 0, 5, 1, "interval"]]"#, r#"[["ID", 1"#])
            .map(|batch| db.quoted(&batch.replace("ID", id)))
            .chain(["null".to_owned()])
            .collect(),
    };
    for batch in batches {
        let refusal = db.refusal(db.calling("request_tokens_many", &batch)).await?;
        ensure!(refusal.sqlstate == "22023", "{batch}: {refusal:?}");
    }
    assert_eq!(db.row(&key).await?, before);
    Ok(())
}

async fn bucket_changed_during_every_attempt_is_contended(db: TestDb) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&db).await?;
    let db = &scratch.db;
    let key = db.key();
    let take = |capacity| {
        let quota = Quota::interval(capacity, Duration::from_hours(1)).expect("a quota");
        Take::from(key.clone()).rule(Rule::Quota(quota))
    };
    db.decide(take(5)).await.map(|decision| assert!(decision.is_granted()))?;
    // A trigger of the host changes the limits of the state to others than requested.
    let spoil = "create trigger host_trigger before update on token_buckets
                 for each row set new.under_capacity = new.under_capacity + 1";
    db.pool.run(spoil).await?;
    let before = db.row(&key).await?;
    let call = db.taking(&format!("{}, 1, 0, 0, 6, 3600, 'interval', null, null, null", db.quoted(key.as_str())));
    let refusal = db.refusal(call).await?;
    ensure!(refusal.sqlstate == "40001" && refusal.message.contains("during each of 100 attempts"), "{refusal:?}");
    ensure!(refusal.message.contains(key.as_str()), "{refusal:?}");
    // The library classifies the error: rolled back, and worth another attempt.
    let error = db.store().max_attempts(3).take(&[take(6)]).await.expect_err("it never settles");
    ensure!(matches!(error, Error::Contended { attempts: 3, .. }), "{error:?}");
    assert_eq!(db.row(&key).await?, before);
    Ok(())
}
