//! Sweeps of expired rows.

use std::time::Duration;

use anyhow::ensure;
use chrono::{DateTime, TimeDelta, Utc};
use tollgate::{
    Adjusted, Admin, Key, Limiter, Mode, Quota, Receipt, Rule, Store, Take, Throttle, Window,
    admin::{BucketLevel, Filter, Override},
    store::Maintenance,
};
use uuid::Uuid;

use crate::engines::Kind;
use crate::matrix::{Case, Setup, Time, list};
use crate::pools::{Scratch, injected};
use crate::session::Session;
use crate::store::AnyStore;
use crate::test_db::{AnyPool, TestDb};

mod leftovers;

pub(super) use leftovers::age_buckets;
use leftovers::{RowState, TABLES, Table, rows};

pub fn cases() -> Vec<Case> {
    // Without layers: the cases use operators' functions.
    let mut cases = list!(
        Setup { time: Time::Injected, ..Setup::WITHOUT_LAYERS };
        full_bucket_and_empty_window_stay_for_a_minute,
        client_that_returns_within_a_minute_keeps_its_row,
        sweep_deletes_expired_rows_in_bounded_steps,
        decisions_are_the_same_after_a_sweep,
        unsettled_receipt_is_kept_until_its_end,
    );
    cases.extend(list!(
        Setup::WITHOUT_LAYERS;
        a_sweep_walks_through_thousands_of_windows_ids_and_overrides,
        limiter_sweeps_keys_used_once,
        limiter_sweeps_windows_and_ids_used_once,
        sweep_rate_bounds_expired_rows_beside_live_ones,
        a_sweep_deletes_denials_of_more_than_two_days_ago,
        cancelled_reservation_is_kept_until_its_scheduled_time,
        sweep_goes_on_where_another_store_stopped,
        throttled_bucket_is_not_swept,
        forged_receipt_is_forgotten_within_a_year,
    ));
    cases.extend(list!(
        Setup { needs: |engine| engine.has_routines, ..Setup::WITHOUT_LAYERS };
        one_sql_call_runs_all_sweep_steps,
    ));
    cases.extend(list!(
        Setup { needs: |engine| engine.has_routines && engine.has_sessions, ..Setup::WITHOUT_LAYERS };
        sweep_inside_an_open_transaction_is_refused,
    ));
    cases.extend(list!(
        Setup { needs: |engine| engine.kind == Kind::Postgres && engine.has_sessions, ..Setup::WITHOUT_LAYERS };
        sweep_keeps_an_uncommitted_override,
        sweep_reads_only_receipts_of_its_buckets,
        open_sweep_stops_no_operator_and_no_request,
    ));
    cases
}

fn under(key: &Key, quota: &str) -> anyhow::Result<Take> {
    Ok(Take::from(key.clone()).rule(Rule::try_from(quota)?))
}

/// A database for one case, under an injected clock that shows [`START`].
pub(super) async fn alone(db: TestDb) -> anyhow::Result<(Option<Scratch>, TestDb)> {
    let (scratch, db) = if db.engine.has_routines {
        let (scratch, session) = injected(&db).await?;
        (Some(scratch), session)
    } else {
        (None, db)
    };
    db.at(START).await?;
    Ok((scratch, db))
}

/// Most clients come back, and creating a row costs more than updating it.
async fn full_bucket_and_empty_window_stay_for_a_minute(db: TestDb) -> anyhow::Result<()> {
    let (_scratch, db) = alone(db).await?;
    let store = db.store();
    // Full after 0.1 s, at the end of the first period, and at the end of a calendar's minute. Empty 1 s after its second.
    let limits: [(Rule, i64); 4] = [
        ("10/s".parse::<Quota>()?.into(), SECOND / 10),
        (Rule::Window("5 in 1s at 1s".parse()?), 2 * SECOND),
        ("10 per 10s".parse::<Quota>()?.into(), 10 * SECOND),
        (Quota::calendar(10, Duration::from_mins(1))?.into(), 60 * SECOND),
    ];
    for (rule, _) in &limits {
        ensure!(db.decide(Take::from(db.key()).rule(rule.clone())).await?.is_granted());
    }
    for (rule, unused_from) in limits {
        db.at(START + unused_from + MINUTE - 1).await?;
        assert_eq!(store.sweep(100).await?.deleted, 0, "{rule:?}");
        db.at(START + unused_from + MINUTE).await?;
        assert_eq!(store.sweep(100).await?.deleted, 1, "{rule:?}");
    }
    Ok(())
}

async fn client_that_returns_within_a_minute_keeps_its_row(db: TestDb) -> anyhow::Result<()> {
    let (_scratch, db) = alone(db).await?;
    let (key, store) = (db.key(), db.store());
    let window = Take::from(key.clone()).rule(Rule::Window("5 in 1s at 1s".parse()?));
    for visit in 0..3 {
        db.at(START + visit * 59 * SECOND).await?;
        assert_eq!(store.sweep(100).await?.deleted, 0);
        ensure!(db.decide(under(&key, "100/s")?).await?.is_granted());
        ensure!(db.decide(window.clone()).await?.is_granted());
    }
    assert_eq!(store.peek(&key).await?.map(|level| level.granted()), Some(3));
    assert_eq!(store.peek_window(&key).await?.map(|level| level.granted()), Some(3));
    Ok(())
}

async fn sweep_deletes_expired_rows_in_bounded_steps(db: TestDb) -> anyhow::Result<()> {
    let (_scratch, db) = alone(db).await?;
    let (db, store) = (&db, db.store());
    let (full, owing) = (keys("full", 10), keys("owing", 3));
    for key in &full {
        ensure!(db.decide(under(key, "1000/s")?).await?.is_granted());
    }
    for key in &owing {
        ensure!(db.decide(under(key, "10/h")?).await?.is_granted());
    }
    let provisioned = Key::try_from("provisioned")?;
    store.create_bucket(&provisioned, "10/h".parse()?).await?;
    // Windows, one of which counts for longer, and receipts and overrides with such expiry times.
    for (key, interval) in full.iter().zip([1, 3_600_000]) {
        let window = Window::new(10, Duration::from_millis(interval), Duration::from_millis(interval))?;
        ensure!(db.decide(Take::from(key.clone()).rule(Rule::Window(window))).await?.is_granted());
    }
    for hold in [1, 3_600_000] {
        let take = under(&owing[0], "10/h")?.id(Uuid::new_v4(), Duration::from_millis(hold));
        ensure!(db.decide(take).await?.is_granted());
    }
    let soon = DateTime::from_timestamp_nanos(START) + TimeDelta::milliseconds(300);
    for (key, end) in full.iter().zip([soon, soon + TimeDelta::hours(1)]) {
        let over = Override { mode: Some(Mode::Off), expires_at: Some(end), ..Override::default() };
        store.set_override(key, over).await?;
    }
    db.at(START + SECOND + MINUTE).await?;

    assert_eq!(pass(&store, 4).await?, (13, 6), "ten buckets of 14, a window, a receipt and an override of two each");
    assert_eq!(rows(db, "token_windows").await?, 1);
    let left = store.list(&Filter::default(), None, 100).await?;
    let left: Vec<&Key> = left.iter().map(BucketLevel::key).collect();
    assert_eq!(left, [&owing[0], &owing[1], &owing[2], &provisioned]);
    assert_eq!(store.sweep(100).await?.deleted, 0);
    ensure!(!store.clear_override(&full[0]).await? && store.clear_override(&full[1]).await?);
    Ok(())
}

/// Runs steps to the end. Returns the number of deleted rows, and the number of steps.
async fn pass(store: &AnyStore, limit: u32) -> anyhow::Result<(u64, u32)> {
    let (mut deleted, mut steps) = (0, 0);
    loop {
        let swept = store.sweep(limit).await?;
        ensure!(swept.deleted <= u64::from(limit), "a step is bounded: {swept:?}");
        (deleted, steps) = (deleted + swept.deleted, steps + 1);
        if swept.finished {
            return Ok((deleted, steps));
        }
    }
}

async fn cancelled_reservation_is_kept_until_its_scheduled_time(db: TestDb) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&db).await?;
    let (db, key) = (&scratch.db, db.key());
    let limiter = Limiter::new(db.store(), "1/d")?;
    let day = Duration::from_hours(24);
    ensure!(limiter.allow(&key).await?.is_granted());
    let first = under(&key, "1/d")?.max_wait(3 * day);
    let second = first.clone().id(Uuid::new_v4(), Duration::from_hours(1));
    let [first, second] = [limiter.reserve_request(&first).await?, limiter.reserve_request(&second).await?];
    ensure!(first.delay().is_some_and(|delay| delay < day), "{:?}", first.delay());
    ensure!(second.delay().is_some_and(|delay| delay > day), "{:?}", second.delay());
    ensure!(second.cancel().await? == 1, "nobody is behind it");
    // If the receipt were deleted earlier, it could be cancelled again when another request has its scheduled time.
    assert_eq!(rows(db, "token_receipts where expires_at < scheduled_at").await?, 0);
    assert_eq!(rows(db, "token_receipts").await?, 1);

    // The same applies to a window, whose third request waits for two days or more.
    let take = Take::from(key).rule(Rule::Window(Window::new(1, day, day)?)).max_wait(5 * day);
    let [_first, _second] = [limiter.reserve_request(&take).await?, limiter.reserve_request(&take).await?];
    let third = limiter.reserve_request(&take.id(Uuid::new_v4(), Duration::from_hours(1))).await?;
    ensure!(third.delay().is_some_and(|delay| delay > day), "{:?}", third.delay());
    ensure!(third.cancel().await? == 1, "nobody is behind it");
    assert_eq!(rows(db, "token_receipts where expires_at < scheduled_at").await?, 0);
    assert_eq!(rows(db, "token_receipts").await?, 2);
    Ok(())
}

async fn unsettled_receipt_is_kept_until_its_end(db: TestDb) -> anyhow::Result<()> {
    let (_scratch, db) = alone(db).await?;
    let (db, store) = (&db, db.store());
    let limiter = Limiter::new(db.store(), "1000/s")?;
    let (hour, key) = (Duration::from_hours(1), db.key());
    let window = Window::new(10, Duration::from_millis(1), Duration::from_millis(1))?;
    let in_window = Take::from(db.key()).rule(window.into());
    let of_bucket = limiter.reserve_request(&under(&key, "1000/s")?.cost(100).id(Uuid::new_v4(), hour)).await?;
    let of_window = limiter.reserve_request(&in_window.clone().id(Uuid::new_v4(), hour)).await?;
    let without_id = limiter.reserve_request(&under(&db.key(), "1000/s")?.cost(5)).await?;
    db.at(START + 2 * MINUTE).await?;
    assert_eq!(store.sweep(100).await?.deleted, 1, "all are full, and two can be settled");
    assert_eq!(of_bucket.settle(150).await?, Adjusted::Done(-50));
    assert_eq!(of_window.settle(3).await?, Adjusted::Done(-2));
    assert_eq!(store.peek(&key).await?.map(|level| level.granted()), Some(150));
    // The swept bucket was full, so nothing can be given back to it.
    assert_eq!(without_id.refund(2).await?, 0);
    db.at(START + 4 * MINUTE).await?;
    assert_eq!(store.sweep(100).await?.deleted, 2, "what was settled stays settled");
    Ok(())
}

async fn a_sweep_walks_through_thousands_of_windows_ids_and_overrides(db: TestDb) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&db).await?;
    let (db, store) = (&scratch.db, scratch.db.store());
    for table in TABLES {
        table.fill(db, "gone", 1500, RowState::Expired).await?;
        table.fill(db, "lives", 100, RowState::Live).await?;
    }
    assert_eq!(pass(&store, 250).await?, (4500, 20), "4800 rows were looked at, and the last step saw the end");
    for table in TABLES {
        assert_eq!(rows(db, table.name()).await?, 100, "{}", table.name());
    }
    assert_eq!(pass(&store, 1000).await?.0, 0);
    Ok(())
}

async fn sweep_goes_on_where_another_store_stopped(db: TestDb) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&db).await?;
    Table::Windows.fill(&scratch.db, "gone", 20, RowState::Expired).await?;
    let (one, other) = (scratch.db.store(), scratch.db.store());
    for store in [&one, &other] {
        let swept = store.sweep(10).await?;
        assert_eq!((swept.deleted, swept.finished), (10, false));
    }
    assert_eq!(pass(&one, 10).await?, (0, 1), "nothing is left to look at");
    Table::Windows.fill(&scratch.db, "gone", 20, RowState::Expired).await?;
    assert_eq!(pass(&other, 1000).await?, (20, 1), "the next one begins anew");
    Ok(())
}

async fn throttled_bucket_is_not_swept(db: TestDb) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&db).await?;
    let (key, store) = (db.key(), scratch.db.store());
    ensure!(store.throttle(&key, &"10/s".try_into()?, Throttle::retry_after(Duration::from_secs(60))).await?);
    assert_eq!(store.sweep(100).await?.deleted, 0);
    ensure!(!scratch.db.decide(under(&key, "10/s")?).await?.is_granted());
    Ok(())
}

/// A caller can give back tokens with any values in the receipt.
async fn forged_receipt_is_forgotten_within_a_year(db: TestDb) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&db).await?;
    let (db, key) = (&scratch.db, db.key());
    let hour = Duration::from_hours(1);
    ensure!(db.decide(under(&key, "10/h")?).await?.is_granted());
    ensure!(db.decide(Take::from(key.clone()).rule(Window::new(9, hour, hour)?.into())).await?.is_granted());
    let in_2262 = Receipt::new(Uuid::new_v4(), key.clone(), 1).in_window(Duration::MAX);
    assert_eq!(db.store().adjust(&[in_2262.refund(0)]).await?, [Ok(Adjusted::Done(0))]);
    let (id, end) = (db.literal(&key), i64::MAX);
    match db.engine.kind {
        Kind::Postgres => {
            let refund = format!("select tollgate.adjust_v1('refund', gen_random_uuid(), {id}, 1, 0, {end}, 0)");
            db.pool.run(refund).await?;
        }
        Kind::MySql => {
            db.pool.run(format!("call token_adjust_v1('refund', uuid(), {id}, 1, 0, {end}, 0, false)")).await?;
        }
        Kind::Sqlite => {}
    }
    let in_a_year = db.now().await? + 367 * 86_400_000 * MS;
    assert_eq!(rows(db, &format!("token_receipts where expires_at > {in_a_year}")).await?, 0);
    ensure!(rows(db, "token_receipts").await? > 0);
    Ok(())
}

/// The sweep's locks would last as long as the transaction.
async fn sweep_inside_an_open_transaction_is_refused(db: TestDb) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&db).await?;
    let mut caller = Session::begin(&scratch.db).await?;
    let sweeps: &[&str] = match db.engine.kind {
        // The first sweep can be the transaction's only statement.
        Kind::Postgres => {
            caller.run("select tollgate.sweep_v1(10)").await?;
            &["select tollgate.sweep_v1(10)"]
        }
        _ => &["call token_sweep_v1(10)", "call token_sweep()"],
    };
    for sweep in sweeps {
        let error = caller.run(*sweep).await.expect_err(sweep);
        let code = error.as_database_error().and_then(sqlx::error::DatabaseError::code);
        ensure!(code.as_deref() == Some("25001"), "{sweep}: {error}");
    }
    Ok(())
}

/// An application's login can leave a transaction with a sweep open.
async fn open_sweep_stops_no_operator_and_no_request(db: TestDb) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&db).await?;
    let (db, store) = (&scratch.db, scratch.db.store());
    let keys = keys("full", 30);
    for key in &keys {
        ensure!(db.decide(under(key, "1000/s")?).await?.is_granted());
    }
    let plan = db.key();
    store.create_plan(&plan, "10/h".parse()?).await?;
    Table::Overrides.fill(db, "gone", 5, RowState::Expired).await?;
    db.until((Utc::now().timestamp_millis() + 200) * MS).await?;
    age_buckets(db).await?;
    let mut open = Session::begin(db).await?;
    open.run("select tollgate.sweep_v1(10)").await?;
    store.set_mode(Mode::Shadow, None, None).await?;
    store.create_plan(&plan, "20/h".parse()?).await?;
    store.set_override(&keys[0], Override { mode: Some(Mode::Off), ..Override::default() }).await?;
    ensure!(db.decide(under(&keys[10], "1000/s")?).await?.is_granted(), "it holds ten keys and no more");
    let swept = store.sweep(1000).await?;
    assert_eq!((swept.deleted, swept.finished), (0, true), "another session is sweeping");
    open.run("commit").await?;
    open.run("begin; select tollgate.sweep_v1(1000)").await?;
    store.set_override(&keys[1], Override { mode: Some(Mode::Off), ..Override::default() }).await?;
    store.set_mode(Mode::Enforce, None, None).await?;
    Ok(())
}

async fn one_sql_call_runs_all_sweep_steps(db: TestDb) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&db).await?;
    let sweep = match scratch.db.engine.kind {
        Kind::Postgres => "select tollgate.sweep()",
        Kind::MySql => "call token_sweep()",
        Kind::Sqlite => anyhow::bail!("it has no routines"),
    };
    for table in TABLES {
        table.fill(&scratch.db, "gone", 1200, RowState::Expired).await?;
    }
    scratch.db.pool.run(sweep).await?;
    for table in TABLES {
        assert_eq!(rows(&scratch.db, table.name()).await?, 0, "{}", table.name());
    }
    Ok(())
}

async fn sweep_keeps_an_uncommitted_override(db: TestDb) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&db).await?;
    let db = &scratch.db;
    let AnyPool::Postgres(pool) = &db.pool else { anyhow::bail!("PostgreSQL is needed") };
    let key = db.key();
    Table::Overrides.fill(db, "gone", 1, RowState::Expired).await?;
    let mut operator = pool.begin().await?;
    let block = "insert into tollgate.token_overrides (id, mode, reason) values ($1, 'block', 'a test')";
    sqlx::query(block).bind(key.as_str()).execute(&mut *operator).await?;
    assert_eq!(db.store().sweep(1000).await?.deleted, 1);
    operator.commit().await?;
    ensure!(!db.decide(under(&key, "10/h")?).await?.is_granted(), "the override rules");
    Ok(())
}

/// With few buckets, the planner expects to find one of many receipts soon with any plan.
async fn sweep_reads_only_receipts_of_its_buckets(db: TestDb) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&db).await?;
    let db = &scratch.db;
    let AnyPool::Postgres(pool) = &db.pool else { anyhow::bail!("PostgreSQL is needed") };
    for key in keys("full", 20) {
        ensure!(db.decide(under(&key, "1000/s")?).await?.is_granted());
    }
    let others = "insert into tollgate.token_receipts (id, bucket, cost, granted, scheduled_at, state, expires_at)
                  select gen_random_uuid(), 'account ' || i % 2, 1, i, 0, 'open', 9223372036854775807
                    from generate_series(1, 20000) i";
    sqlx::query(others).execute(pool).await?;
    sqlx::query("analyze tollgate.token_receipts").execute(pool).await?;
    db.until((Utc::now().timestamp_millis() + 200) * MS).await?;
    age_buckets(db).await?;
    let mut sweep = pool.begin().await?;
    let step = "select deleted from tollgate.sweep_v1(20)";
    assert_eq!(sqlx::query_scalar::<_, i64>(step).fetch_one(&mut *sweep).await?, 20);
    let read = "select seq_tup_read from pg_stat_xact_user_tables where relname = 'token_receipts'";
    assert_eq!(sqlx::query_scalar::<_, i64>(read).fetch_one(&mut *sweep).await?, 0);
    sweep.commit().await?;
    Ok(())
}

async fn decisions_are_the_same_after_a_sweep(db: TestDb) -> anyhow::Result<()> {
    let (_scratch, db) = alone(db).await?;
    let (db, store) = (&db, db.store());
    let plan = db.key();
    store.create_plan(&plan, "3/d".parse()?).await?;
    let life = async |sweeps: bool| {
        let (used, idle, planned) = (db.key(), db.key(), db.key());
        let mut granted = Vec::new();
        for (visit, cost) in (0..).zip([2, 1, 1]) {
            db.at(START + visit * 2 * MINUTE).await?;
            for take in [
                under(&used, "3/d")?,
                under(&idle, "3 per 1ms")?,
                Take::from(planned.clone()).rule(Rule::Plan(plan.clone())),
            ] {
                let decision = db.decide(take.cost(cost)).await?;
                granted.push((decision.is_granted(), decision.remaining()));
            }
            db.at(START + (visit + 1) * 2 * MINUTE).await?;
            if sweeps {
                ensure!(store.sweep(1000).await?.finished);
                ensure!(store.peek(&idle).await?.is_none() && store.peek(&used).await?.is_some());
            }
        }
        Ok(granted)
    };
    assert_eq!(life(true).await?, life(false).await?);
    Ok(())
}

async fn limiter_sweeps_keys_used_once(db: TestDb) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&db).await?;
    // A busy machine takes long for so many requests.
    let store = scratch.db.store().deadline(Duration::from_secs(60));
    use_once(&store, 20_000).await?;
    age_buckets(&scratch.db).await?;
    // The limiter also counts requests that need no store call.
    let sweeping = Limiter::new(store.clone(), "unlimited")?;
    for _ in 0..1000 {
        for _ in 0..1024 {
            let _ = Box::pin(sweeping.allow("any")).await?;
        }
        if is_empty(&store).await? {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    anyhow::bail!("the limiter left buckets")
}

async fn limiter_sweeps_windows_and_ids_used_once(db: TestDb) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&db).await?;
    let store = scratch.db.store().deadline(Duration::from_secs(60));
    let limiter = Limiter::new(store, "unlimited")?;
    for round in 0..3 {
        for table in [Table::Windows, Table::Receipts] {
            table.fill(&scratch.db, &format!("gone{round}"), 1000, RowState::Expired).await?;
        }
        // As many requests as start one sweep, which reads twice as many rows. No other sweep starts during it.
        for _ in 0..1024 {
            let _ = Box::pin(limiter.allow("any")).await?;
        }
        let all_gone = async {
            while rows(&scratch.db, "token_windows").await? + rows(&scratch.db, "token_receipts").await? > 0 {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            anyhow::Ok(())
        };
        tokio::time::timeout(Duration::from_secs(60), all_gone).await.expect("one run clears away both tables")?;
    }
    Ok(())
}

async fn sweep_rate_bounds_expired_rows_beside_live_ones(db: TestDb) -> anyhow::Result<()> {
    const LIVE: i64 = 3000;

    let scratch = Scratch::migrated(&db).await?;
    let (db, store) = (&scratch.db, scratch.db.store());
    Table::Windows.fill(db, "lives", LIVE, RowState::Live).await?;
    for round in 0..16 {
        // Fills one row per request.
        Table::Windows.fill(db, &format!("gone{round}"), 512, RowState::Expired).await?;
        Table::Receipts.fill(db, &format!("gone{round}"), 512, RowState::Expired).await?;
        for _ in 0..8 {
            if store.sweep(256).await?.finished {
                break;
            }
        }
        let all = rows(db, "token_windows").await? + rows(db, "token_receipts").await?;
        ensure!(all <= 2 * LIVE, "{all} rows in round {round}");
    }
    Ok(())
}

async fn a_sweep_deletes_denials_of_more_than_two_days_ago(db: TestDb) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&db).await?;
    let (db, store) = (&scratch.db, scratch.db.store());
    let stats = db.table().replace("token_buckets", "token_stats");
    let key = db.key();
    store.count_denials(&[(key.clone(), 5)]).await?;
    let hours_ago = |hours| match db.engine.kind {
        Kind::MySql => format!("utc_timestamp() - interval {hours} hour"),
        Kind::Postgres => format!("now() - interval '{hours} hours'"),
        Kind::Sqlite => format!("strftime('%Y-%m-%d %H:00:00.000', 'now', '-{hours} hours')"),
    };
    for (hours, id) in [(47, "kept"), (50, "a"), (96, "b"), (9600, "c")] {
        let at = hours_ago(hours);
        let old = format!("insert into {stats} (hour, id, denied, last_denied_at) values ({at}, '{id}', 1, {at})");
        db.pool.run(old).await?;
    }
    assert_eq!(store.sweep(2).await?.deleted, 2, "a step is bounded");
    assert_eq!(store.sweep(100).await?.deleted, 1);
    assert_eq!(store.sweep(100).await?.deleted, 0, "the rest is younger than two days");
    assert_eq!(store.most_denied(10).await?[0].denied, 5);
    Ok(())
}

fn keys(begin: &str, count: u32) -> Vec<Key> {
    (0..count).map(|n| Key::try_from(format!("{begin}:{n:06}")).expect("short enough")).collect()
}

async fn use_once(store: &AnyStore, count: u32) -> anyhow::Result<()> {
    for keys in keys("once", count).chunks(250) {
        let takes: Vec<Take> = keys.iter().map(|key| under(key, "1000/s")).collect::<anyhow::Result<_>>()?;
        for outcome in store.take(&takes).await? {
            ensure!(outcome?.is_granted());
        }
    }
    Ok(())
}

async fn is_empty(store: &AnyStore) -> anyhow::Result<bool> {
    Ok(store.list(&Filter::default(), None, 1).await?.is_empty())
}

/// In the future, because ends must be in the future by the server's own clock, too. A minute of the calendar begins.
const START: i64 = 2_524_608_000_000_000_000;
const MS: i64 = 1_000_000;
const SECOND: i64 = 1000 * MS;
const MINUTE: i64 = 60 * SECOND;
