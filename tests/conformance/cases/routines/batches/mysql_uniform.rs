//! The batch routine of MySQL and MariaDB for requests that differ in the bucket only.

use std::time::Duration;

use anyhow::{Context, ensure};
use proptest::collection::vec;
use proptest::prelude::*;
use tollgate::model::bucket::{Bucket, BucketQuota, BucketRequest};
use tollgate::{Admin, Key, Mode, Quota, Rule, Store, Take, admin::Override};

use super::super::{MS, SECOND, START};
use crate::engines::Kind;
use crate::matrix::{Case, Setup, Time, list};
use crate::pools::{Scratch, with_session};
use crate::random;
use crate::session::Session;
use crate::test_db::{TestDb, hex};

pub(crate) fn cases() -> Vec<Case> {
    [
        list!(
            Setup { time: Time::Injected, needs: |engine| engine.kind == Kind::MySql, ..Setup::WITHOUT_LAYERS };
            uniform_requests_are_decided_as_defined,
            uniform_path_falls_back_after_a_clock_set_back,
        ),
        list!(
            Setup { needs: |engine| engine.kind == Kind::MySql, ..Setup::WITHOUT_LAYERS };
            uniform_path_falls_back_where_other_rules_apply,
            uniform_batch_that_names_a_bucket_twice_is_refused,
            uniform_first_use_counts_from_when_rows_are_locked,
            uniform_first_use_takes_from_a_concurrently_made_bucket,
            uniform_path_falls_back_where_a_plan_has_other_rules,
            uniform_path_leaves_session_settings_unchanged,
        ),
    ]
    .concat()
}

/// Random batches for buckets with one quota or one plan, provisioned or created by their first request.
async fn uniform_requests_are_decided_as_defined(db: TestDb) -> anyhow::Result<()> {
    let refill = prop::sample::select(vec!["interval", "calendar", "continuous", "once"]);
    let quota = (1_u64..30, 1_u64..20, refill, any::<bool>());
    random::check(60, &(quota, vec(batch(), 1..8)), |(quota, batches)| live(&db, quota, batches))
}

#[derive(Clone, Debug)]
struct Batch {
    ms: i64,
    cost: i64,
    min_remaining: i64,
    /// The number of requests for each bucket, if any.
    times: Vec<Option<i64>>,
}

const BUCKETS: usize = 6;

fn batch() -> impl Strategy<Value = Batch> {
    let times = vec(prop::option::weighted(0.7, 1_i64..8), BUCKETS);
    (0_i64..5000, 1_i64..6, 0_i64..4, times).prop_map(|(ms, cost, min_remaining, times)| Batch {
        ms,
        cost,
        min_remaining,
        times,
    })
}

async fn live(
    db: &TestDb,
    (capacity, seconds, refill, planned): (u64, u64, &str, bool),
    batches: Vec<Batch>,
) -> anyhow::Result<()> {
    let mut now = START;
    db.at(now).await?;
    let quota = quota(capacity, seconds, refill)?;
    let limits = BucketQuota::at(&quota, 0);
    let mut buckets: Vec<(Key, Option<Bucket>)> = (0..BUCKETS).map(|_| (db.key(), None)).collect();
    let mut limit_arguments = format!("{capacity}, {seconds}, '{refill}', null");
    if planned {
        let plan = db.key();
        db.store().create_plan(&plan, quota.into()).await?;
        limit_arguments = format!("null, null, null, '{plan}'");
    } else if matches!(refill, "calendar" | "continuous") {
        // The bucket's clock still starts in 1970.
        db.create(&buckets[0].0, quota).await?;
        buckets[0].1 = Some(Bucket::full(&limits, now));
    }
    for Batch { ms, cost, min_remaining, times } in batches {
        now += ms * MS;
        db.at(now).await?;
        let entries: Vec<(usize, i64)> =
            times.iter().enumerate().filter_map(|(at, times)| times.map(|times| (at, times))).collect();
        let ids: Vec<String> = entries.iter().map(|(at, times)| entry(&buckets[*at].0, *times)).collect();
        let answers = call_with(db, &ids, &format!("{cost}, {min_remaining}, {limit_arguments}")).await?;
        if cost + min_remaining > limits.capacity {
            ensure!(answers.is_none(), "never: {answers:?}");
            continue;
        }
        let Some(answers) = answers else {
            ensure!(entries.is_empty(), "nothing was decided of {ids:?}");
            continue;
        };
        ensure!(answers.len() == entries.len(), "{} answers", answers.len());
        for (place, granted_times, full_at, granted) in answers {
            let (at, times) = entries[usize::try_from(place - 1)?];
            let (key, state) = &mut buckets[at];
            let state = state.get_or_insert_with(Bucket::default);
            let grants = (0..times)
                .filter(|_| state.take(&limits, now, BucketRequest { cost, max_wait: 0, min_remaining }).granted)
                .count();
            ensure!(granted_times == i64::try_from(grants)?, "{grants} should be granted, not {granted_times}");
            let tokens = granted_times * cost;
            let after = (full_at + tokens * limits.token_ticks, granted + tokens);
            ensure!(after.1 == state.granted, "{after:?} instead of {state:?}");
            ensure!(granted_times == 0 || after.0 == state.full_at, "{after:?} instead of {state:?}");
            ensure!(granted_times == times || after.0 == state.full_at, "{after:?} instead of {state:?}");
            ensure!(db.row(key).await?.as_ref() == Some(&*state), "the row is not {state:?}");
        }
    }
    Ok(())
}

async fn uniform_path_falls_back_after_a_clock_set_back(db: TestDb) -> anyhow::Result<()> {
    let keys = [db.key(), db.key()];
    let ids = keys.each_ref().map(|key| entry(key, 1));
    db.at(START).await?;
    assert!(call(&db, &ids, "1, 0, 5, 10, 'continuous'").await?.is_some());
    db.at(START - 100 * SECOND).await?;
    assert_eq!(call(&db, &ids, "1, 0, 5, 10, 'continuous'").await?, None);
    for key in &keys {
        assert_eq!(db.row(key).await?.context("made")?.granted, 1);
    }
    Ok(())
}

async fn uniform_path_falls_back_where_other_rules_apply(db: TestDb) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&db).await?;
    let db = &scratch.db;
    let quota = Quota::once(5)?;
    let (key, other, provisioned, planned, plan) = (db.key(), db.key(), db.key(), db.key(), db.key());
    let ids = |keys: &[&Key]| keys.iter().map(|key| entry(key, 1)).collect::<Vec<_>>();
    let usual = ids(&[&key, &other]);
    let new = [db.key(), db.key()];
    let unmade = ids(&new.each_ref());
    assert!(call(db, &usual, ARGUMENTS).await?.is_some());
    db.create(&provisioned, Quota::once(6)?).await?;
    db.store().create_plan(&plan, quota.into()).await?;
    db.pool
        .run(format!(
            "insert into token_buckets (id, capacity, refill_seconds, refill, plan, provisioned, anchor)
         values ('{planned}', 5, 0, 'once', '{plan}', false, 0)"
        ))
        .await?;

    for (ids, limits) in [
        (&ids(&[&key, &provisioned]), ARGUMENTS),
        (&ids(&[&key, &planned]), ARGUMENTS),
        (&usual, "1, 0, 6, 0, 'once'"),
        (&usual, "6, 0, 5, 0, 'once'"),
        (&usual, "1, 5, 5, 0, 'once'"),
        (&usual, "0, 0, 5, 0, 'once'"),
        (&usual, "null, 0, 5, 0, 'once'"),
        (&usual, "1, -1, 5, 0, 'once'"),
        (&usual, "1, -9223372036854775808, 5, 0, 'once'"),
        (&usual, "1, null, 5, 0, 'once'"),
        (&usual, "1, 0, null, 0, 'once'"),
        (&usual, "1, 0, 5, null, 'interval'"),
        (&usual, "1, 0, 5, 0, 'interval'"),
        (&usual, "1, 0, 5, 0.000000001, 'continuous'"),
        (&usual, "1, 0, 5, 9999999999, 'continuous'"),
        (&usual, "1, 0, 9223372036854775807, 1, 'continuous'"),
        (&usual, "1, 0, 5, 0, null"),
        (&usual, "1, 0, 5, 0, 'never'"),
        (&vec![entry(&key, 0), entry(&other, 1)], ARGUMENTS),
        (&vec![entry(&key, -1)], ARGUMENTS),
        (&vec!["\"\"".to_owned(), entry(&key, 1)], ARGUMENTS),
        (&vec![format!("\"{}\"", "61".repeat(256)), entry(&key, 1)], ARGUMENTS),
        (&vec!["null".to_owned(), entry(&key, 1)], ARGUMENTS),
        (&vec![], ARGUMENTS),
        (&unmade, "1, 0, 3, 0.000000004, 'continuous'"),
        (&unmade, "6, 0, 5, 0, 'once'"),
    ] {
        ensure!(call(db, ids, limits).await?.is_none(), "{ids:?} under {limits}");
    }
    for key in &new {
        assert_eq!(db.row(key).await?, None, "made under figures that make no bucket, or for what is never granted");
    }
    for mode in [Mode::Shadow, Mode::Off, Mode::Block] {
        db.store().set_mode(mode, None, None).await?;
        ensure!(call(db, &usual, ARGUMENTS).await?.is_none(), "{mode:?}");
    }
    db.store().set_mode(Mode::Enforce, None, None).await?;
    db.store().set_override(&other, Override { mode: Some(Mode::Block), ..Override::default() }).await?;
    ensure!(call(db, &usual, ARGUMENTS).await?.is_none(), "an override");
    db.pool.run("delete from token_overrides").await?;
    for by_hand in [
        "capacity = 6",
        "refill = 'interval', refill_seconds = 1",
        "under_capacity = 6",
        "overridden = true",
        "burst = 6",
        "anchor = 1",
    ] {
        let session = with_session(db, "start transaction").await?.0;
        session.pool.run(format!("update token_buckets set {by_hand} where id = '{key}'")).await?;
        ensure!(call(&session, &usual, ARGUMENTS).await?.is_none(), "{by_hand}");
        session.pool.run("rollback").await?;
    }
    db.store().set_override(&provisioned, Override { mode: Some(Mode::Block), ..Override::default() }).await?;
    assert!(call(db, &usual, ARGUMENTS).await?.is_some(), "an override of another's");
    for (key, granted) in [(&key, 2), (&other, 2), (&provisioned, 0), (&planned, 0)] {
        assert_eq!(db.row(key).await?.context("made")?.granted, granted);
    }
    Ok(())
}

async fn uniform_batch_that_names_a_bucket_twice_is_refused(db: TestDb) -> anyhow::Result<()> {
    let (key, other) = (db.key(), db.key());
    let (one, another) = (entry(&key, 1), entry(&other, 1));
    assert!(call(&db, &[one.clone(), another.clone()], ARGUMENTS).await?.is_some());
    for ids in [[one.clone(), another, one.clone()].as_slice(), &[one.clone(), one.clone()]] {
        let error = call(&db, ids, ARGUMENTS).await.expect_err("decided");
        ensure!(format!("{error:#}").contains("distinct"), "{error:#}");
    }
    let new = db.key();
    for times in [1, 2] {
        let error = call(&db, &[entry(&new, 1), entry(&new, times)], ARGUMENTS).await.expect_err("decided");
        ensure!(format!("{error:#}").contains("distinct"), "{error:#}");
        assert_eq!(db.row(&new).await?.context("made")?.granted, 0);
    }
    // An error on MySQL.
    let answers = call(&db, &["\"no hexadecimal\"".to_owned(), one], ARGUMENTS).await;
    ensure!(!matches!(answers, Ok(Some(_))), "{answers:?}");
    for key in [&key, &other] {
        assert_eq!(db.row(key).await?.context("made")?.granted, 1);
    }
    Ok(())
}

/// Tokens come during the insert of the rows. Without that, a bucket that is created, emptied, refilled and swept in the
/// meantime would grant more than its capacity.
async fn uniform_first_use_counts_from_when_rows_are_locked(db: TestDb) -> anyhow::Result<()> {
    let keys = [db.key(), db.key()];
    let ids = [entry(&keys[0], 1), entry(&keys[1], 3)];
    // One token per nanosecond.
    let answers = call(&db, &ids, "2, 0, 1000000000, 1, 'continuous'").await?.context("decided")?;
    for (place, granted_times, full_at, granted) in answers {
        let row = db.row(&keys[usize::try_from(place - 1)?]).await?.context("made")?;
        let tokens = granted_times * 2;
        ensure!(row.granted == granted + tokens, "{row:?} after {granted_times} times");
        ensure!(row.full_at > full_at + tokens, "{row:?} after {full_at}");
    }
    Ok(())
}

async fn uniform_first_use_takes_from_a_concurrently_made_bucket(db: TestDb) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&db).await?;
    let db = &scratch.db;
    let mut keys: Vec<Key> = (0..4).map(|_| db.key()).collect();
    keys.sort_by(|one, other| one.as_str().cmp(other.as_str()));
    // Locks the gap of the missing rows.
    let mut lock_holder = Session::idle(db).await?;
    for sql in ["set transaction isolation level repeatable read", "begin"] {
        lock_holder.run(sql).await?;
    }
    lock_holder.run(format!("select * from token_buckets where id = {} for update", db.literal(&keys[0]))).await?;
    let ids: Vec<String> = keys.iter().zip([1, 2, 9, 1]).map(|(key, times)| entry(key, times)).collect();
    let session = with_session(db, "do 0").await?.0;
    let calling = tokio::spawn(async move { call(&session, &ids, ARGUMENTS).await });
    lock_holder.until_blocking(db).await?;
    for (key, granted) in [(&keys[1], 4), (&keys[3], 5)] {
        lock_holder
            .run(format!(
            "insert into token_buckets (id, capacity, refill_seconds, refill, provisioned, anchor, full_at, granted)
             values ({}, 5, 0, 'once', false, 0, {granted}, {granted})",
            db.literal(key)
        ))
            .await?;
    }
    lock_holder.commit().await?;
    let answers = calling.await??.context("decided")?;
    assert_eq!(answers, [(1, 1, 0, 0), (2, 1, 4, 4), (3, 5, 0, 0), (4, 0, 5, 5)]);
    for (key, granted) in keys.iter().zip([1, 5, 5, 5]) {
        let row = db.row(key).await?.context("made")?;
        assert_eq!((row.full_at, row.granted), (granted, granted));
    }
    Ok(())
}

async fn uniform_path_falls_back_where_a_plan_has_other_rules(db: TestDb) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&db).await?;
    let db = &scratch.db;
    let (followers, provisioned, plan, other) = ([db.key(), db.key()], db.key(), db.key(), db.key());
    let both = followers.each_ref().map(|key| entry(key, 1));
    let grants = async |ids: &[String], plan: &Key| {
        let answers = call_with(db, ids, &format!("1, 0, null, null, null, '{plan}'")).await?;
        anyhow::Ok(answers.map(|answers| answers.iter().map(|(_, granted, ..)| *granted).collect::<Vec<_>>()))
    };
    assert_eq!(grants(&both, &plan).await?, None, "there is no such plan");
    for plan in [&plan, &other] {
        db.store().create_plan(plan, Quota::once(2)?.into()).await?;
    }
    assert_eq!(grants(&both, &plan).await?, Some(vec![1, 1]), "they are made");
    assert_eq!(grants(&both, &other).await?, None, "they follow another one");
    assert_eq!(call(db, &both, "1, 0, 2, 0, 'once'").await?, None, "they follow one");
    db.create(&provisioned, Quota::once(2)?).await?;
    assert_eq!(grants(&[entry(&provisioned, 1), both[0].clone()], &plan).await?, None, "one has limits of its own");
    for mode in ["enforce", "shadow", "off", "block"] {
        db.pool.run(format!("update token_plans set mode = '{mode}' where name = '{plan}'")).await?;
        assert_eq!(grants(&both, &plan).await?, None, "{mode}");
    }
    db.pool.run("update token_plans set mode = null").await?;
    db.store().create_plan(&plan, Quota::once(4)?.into()).await?;
    assert_eq!(grants(&both, &plan).await?, None, "the plan was changed, and they were not settled");
    for key in &followers {
        assert_eq!(db.row(key).await?.context("made")?.granted, 1);
        let _ = db.store().take_one(&Take::from(key.clone()).rule(Rule::Plan(plan.clone()))).await??;
    }
    assert_eq!(grants(&both, &plan).await?, Some(vec![0, 0]), "now they are, and none is left");
    Ok(())
}

async fn uniform_path_leaves_session_settings_unchanged(db: TestDb) -> anyhow::Result<()> {
    const SETTINGS: &str =
        "select concat_ws(' ', @@group_concat_max_len, @@innodb_lock_wait_timeout, @@sql_safe_updates,
                            @@sql_mode) as settings";
    let session =
        with_session(&db, "set session group_concat_max_len = 4, sql_safe_updates = 1, sql_mode = ''").await?.0;
    let settings = async || {
        anyhow::Ok(session.sql(SETTINGS).await?.first().context("a row")?.text("settings")?.map(str::to_owned))
    };
    let before = settings().await?;
    let keys: Vec<Key> = (0..100).map(|_| db.key()).collect();
    let ids: Vec<String> = keys.iter().map(|key| entry(key, 2)).collect();
    for granted in [2, 1, 0] {
        let answers = call(&session, &ids, "1, 0, 3, 0, 'once'").await?.context("decided")?;
        ensure!(answers.len() == 100 && answers.iter().all(|(_, times, ..)| *times == granted), "{answers:?}");
    }
    let answers = call(&session, &[entry(&db.key(), i64::MAX)], "1, 0, 3, 0, 'once'").await?.context("decided")?;
    ensure!(matches!(answers.as_slice(), [(1, 3, ..)]), "{answers:?}");
    // An error on MySQL.
    drop(call(&session, &["[\"61\", 99999999999999999999]".to_owned()], "1, 0, 3, 0, 'once'").await);
    assert_eq!(settings().await?, before);
    Ok(())
}

fn quota(capacity: u64, seconds: u64, refill: &str) -> anyhow::Result<Quota> {
    let period = Duration::from_secs(seconds);
    Ok(match refill {
        "interval" => Quota::interval(capacity, period)?,
        "calendar" => Quota::calendar(capacity, period)?,
        "continuous" => Quota::continuous(capacity, period)?,
        _ => Quota::once(capacity)?,
    })
}

fn entry(key: &Key, times: i64) -> String {
    match (hex(key.as_str().as_bytes()), times) {
        (id, 1) => format!("\"{id}\""),
        (id, times) => format!("[\"{id}\",{times}]"),
    }
}

/// For requests without a plan.
async fn call(db: &TestDb, ids: &[String], arguments: &str) -> anyhow::Result<Option<Vec<(i64, i64, i64, i64)>>> {
    call_with(db, ids, &format!("{arguments}, null")).await
}

/// The routine's answer, if it decides: position, number of grants, `full_at` and `granted`.
async fn call_with(db: &TestDb, ids: &[String], arguments: &str) -> anyhow::Result<Option<Vec<(i64, i64, i64, i64)>>> {
    let ids = db.quoted(&format!("[{}]", ids.join(",")));
    let rows = db.sql(db.calling("token_take_uniform_v1", &format!("{ids}, {arguments}, false"))).await?;
    let Some(answers) = rows.first().context("no row")?.text("answers")? else {
        return Ok(None);
    };
    let parsed = answers.split_terminator(';').map(|answer| {
        let words = answer.split(' ').map(str::parse).collect::<Result<Vec<i64>, _>>()?;
        let &[place, granted_times, full_at, granted] = words.as_slice() else {
            anyhow::bail!("the answer {answer:?}");
        };
        Ok((place, granted_times, full_at, granted))
    });
    parsed.collect::<anyhow::Result<_>>().map(Some)
}

const ARGUMENTS: &str = "1, 0, 5, 0, 'once'";
