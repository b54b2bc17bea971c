//! State of a whole database: the mode of every key, and denial counts.

use std::time::Duration;

use anyhow::{Context, ensure};
use chrono::{DateTime, TimeDelta, Utc};
use sqlx::AssertSqlSafe;
use tollgate::{
    Admin, Key, Limiter, Mode, Quota, Rule, Store, Take, Window,
    admin::{Origin, Override},
    store::Maintenance,
};

use crate::engines::Kind;
use crate::matrix::{Case, Setup, list};
use crate::pools::{Scratch, with_pool, with_session};
use crate::test_db::{AnyPool, TestDb};

pub fn cases() -> Vec<Case> {
    // Without layers: the cases set the mode of a whole database, in a separate database, by operators' functions.
    let mut cases = list!(
        Setup::WITHOUT_LAYERS;
        a_mode_for_all_rules_until_another_is_set,
        end_beyond_every_clock_equals_no_end,
        closing_limiter_reports_its_denials,
        failed_denial_report_is_not_counted,
        expired_override_has_no_effect,
        missing_mode_row_counts_as_enforce_until_a_mode_is_set,
        views_show_effective_rules_and_table_sizes,
    );
    cases.extend(list!(
        Setup { needs: |engine| engine.kind == Kind::Postgres, ..Setup::WITHOUT_LAYERS };
        end_beyond_the_range_of_rust_reads_as_none_or_past,
        rows_loaded_without_triggers_rule_or_are_refused,
    ));
    cases.extend(list!(
        Setup { needs: |engine| engine.has_heap && engine.has_sessions, ..Setup::WITHOUT_LAYERS };
        size_view_shows_that_decisions_write_no_index,
    ));
    cases
}

fn under(key: &Key, quota: &str) -> anyhow::Result<Take> {
    Ok(Take::from(key.clone()).rule(Rule::try_from(quota)?))
}

async fn a_mode_for_all_rules_until_another_is_set(db: TestDb) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&db).await?;
    let (db, store) = (&scratch.db, scratch.db.store());
    assert_eq!(store.mode().await?.mode, Mode::Enforce);
    let key = db.key();
    ensure!(db.decide(under(&key, "1/h")?).await?.is_granted());
    ensure!(!db.decide(under(&key, "1/h")?).await?.is_granted());

    let until = Some(Utc::now() + TimeDelta::hours(1));
    store.set_mode(Mode::Shadow, Some("incident 42"), until).await?;
    let setting = store.mode().await?;
    assert_eq!((setting.mode, setting.reason.as_deref()), (Mode::Shadow, Some("incident 42")));
    let millis = |until: Option<DateTime<Utc>>| until.map(|until| until.timestamp_millis());
    assert_eq!(millis(setting.until), millis(until));
    let passed = db.decide(under(&key, "1/h")?.max_wait(Duration::from_hours(2))).await?;
    assert_eq!((passed.mode(), passed.wait()), (Mode::Shadow, Duration::ZERO));
    let explanation = store.explain(&key, None).await?;
    assert_eq!((explanation.mode, explanation.mode_from), (Mode::Shadow, Some(Origin::All)));
    assert_eq!(explanation.mode_reason.as_deref(), Some("incident 42"));

    store.set_mode(Mode::Block, None, Some(Utc::now() + TimeDelta::hours(1))).await?;
    let denied = db.decide(under(&db.key(), "1/h")?).await?;
    ensure!(
        !denied.is_granted() && denied.retry_after().is_some_and(|time| time <= Duration::from_hours(1)),
        "{denied:?}"
    );
    mode_until(
        db,
        ["now() - interval '1 second'", "utc_timestamp(6) - interval 1 second", "datetime('now', '-1 second')"],
    )
    .await?;
    ensure!(db.decide(under(&db.key(), "1/h")?).await?.is_granted());
    store.set_mode(Mode::Enforce, None, None).await?;
    assert_eq!(store.explain(&key, None).await?.mode_from, None);
    Ok(())
}

async fn end_beyond_every_clock_equals_no_end(db: TestDb) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&db).await?;
    let (db, store) = (&scratch.db, scratch.db.store());
    store.set_mode(Mode::Block, None, None).await?;
    let endless = Override { mode: Some(Mode::Shadow), ..Override::default() };
    let free = db.key();
    store.set_override(&free, endless).await?;
    for end in [["'9999-12-31'", "'9999-12-31'", "'9999-12-31 00:00:00'"], ["'infinity'", "'9999-12-31'", "null"]] {
        mode_until(db, end).await?;
        let table = db.table().replace("token_buckets", "token_overrides");
        db.pool.run(format!("update {table} set expires_at = {}", of(db, end))).await?;
        let denied = db.decide(under(&db.key(), "1/h")?).await?;
        ensure!(!denied.is_granted() && denied.retry_after().is_none(), "until {end:?}: {denied:?}");
        let window = Rule::Window(Window::new(9, Duration::from_hours(1), Duration::from_mins(1))?);
        let denied = db.decide(Take::from(db.key()).rule(window)).await?;
        ensure!(!denied.is_granted() && denied.retry_after().is_none(), "until {end:?}: {denied:?}");
        if db.engine.has_routines {
            let key = db.bucket("1/h".parse()?).await?;
            for (routine, other_arguments) in [("request_token", ""), ("explain", ", null")] {
                let name =
                    if db.engine.kind == Kind::MySql && routine == "explain" { "token_explain" } else { routine };
                let answer = db.call(name, &format!("{}{other_arguments}", db.quoted(key.as_str()))).await?;
                assert_eq!(answer.text("retry_after_ms")?, None, "{routine} until {end:?}");
            }
        }
        ensure!(db.decide(under(&free, "1/h")?).await?.is_granted(), "until {end:?}");
        assert_eq!(store.explain(&db.key(), None).await?.mode, Mode::Block);
        store.sweep(10).await?;
        assert_eq!(store.explain(&free, None).await?.mode, Mode::Shadow, "it was not swept away");
    }
    Ok(())
}

/// PostgreSQL's time reaches further than Rust's types, in both directions.
async fn end_beyond_the_range_of_rust_reads_as_none_or_past(db: TestDb) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&db).await?;
    let (db, store) = (&scratch.db, scratch.db.store());
    let key = db.key();
    store.create_plan(&key, "1/h".parse()?).await?;
    store.set_override(&key, Override { mode: Some(Mode::Shadow), ..Override::default() }).await?;
    for end in ["-infinity", "4000-01-01 BC", "10000-01-01", "290000-01-01", "infinity"] {
        let past = !end.ends_with("0-01-01") && end != "infinity";
        db.pool
            .run(format!(
                "update tollgate.token_mode set mode = 'block', until = '{end}';
                 update tollgate.token_plans set mode = 'shadow', mode_until = '{end}'"
            ))
            .await?;
        let now = DateTime::<Utc>::UNIX_EPOCH;
        assert_eq!(store.mode().await?.until, past.then_some(now), "{end}");
        let plan = store.plan(&key).await?.context("there is none")?;
        assert_eq!(plan.mode.context("it has none")?.until, past.then_some(now), "{end}");
        assert_eq!(store.plans(None, 10).await?.len(), 1);
        assert_eq!(store.explain(&db.key(), None).await?.mode == Mode::Block, !past, "{end}");
        if !past {
            db.pool.run(format!("update tollgate.token_overrides set expires_at = '{end}'")).await?;
            assert_eq!(store.overrides(None, 10).await?[0].1.expires_at, None, "{end}");
        }
    }
    Ok(())
}

/// Written by SQL, because the crate refuses to create an expired override.
async fn expired_override_has_no_effect(db: TestDb) -> anyhow::Result<()> {
    let key = db.bucket(Quota::interval(5, Duration::from_hours(24 * 365))?).await?;
    ensure!(db.take(&key).await?.is_granted());
    let before = db.row(&key).await?;
    let table = db.table().replace("token_buckets", "token_overrides");
    let ends = ["now() - interval '1 s'", "utc_timestamp(6) - interval 1 second", "datetime('now', '-2 seconds')"];
    let end = of(&db, ends);
    let id = db.literal(&key);
    let insert = format!(
        "insert into {table} (id, capacity, refill_seconds, mode, reason, expires_at) \
         values ({id}, 1000, 60, 'block', 'too late', {end})"
    );
    db.pool.run(insert).await?;
    assert_eq!(db.row(&key).await?, before);
    let decision = db.decide(Take::from(key.clone()).cost(4)).await?;
    assert_eq!((decision.is_granted(), decision.remaining(), decision.mode()), (true, Some(0), Mode::Enforce));
    let explained = db.store().explain(&key, None).await?;
    assert_eq!((explained.quota_from, explained.override_reason), (Some(Origin::Bucket), None));
    Ok(())
}

async fn missing_mode_row_counts_as_enforce_until_a_mode_is_set(db: TestDb) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&db).await?;
    let (db, store) = (&scratch.db, scratch.db.store());
    db.pool.run(format!("delete from {}", db.table().replace("token_buckets", "token_mode"))).await?;
    let [blocked, free, other] = [(); 3].map(|()| db.key());
    for key in [&blocked, &free, &other] {
        db.create(key, "99/h".parse()?).await?;
    }
    let block = Override { mode: Some(Mode::Block), reason: "abuse".to_owned(), ..Override::default() };
    store.set_override(&blocked, block).await?;
    let window = Window::new(9, Duration::from_hours(1), Duration::from_mins(1))?;
    for (key, granted) in [(&blocked, false), (&free, true)] {
        let one = Take::from(key.clone());
        ensure!(db.decide(one.clone()).await?.is_granted() == granted, "one of {key}");
        for answer in store.take(&vec![one.clone(); 8]).await? {
            ensure!(answer?.is_granted() == granted, "one of several of {key}");
        }
        let both = one.clone().and(other.clone(), Rule::Provisioned);
        ensure!(db.decide(both).await?.is_granted() == granted, "{key} and another");
        ensure!(db.decide(one.rule(Rule::Window(window))).await?.is_granted() == granted, "the window of {key}");
        let expected = if granted { Mode::Enforce } else { Mode::Block };
        assert_eq!(store.explain(key, None).await?.mode, expected);
    }
    assert_eq!(store.mode().await?.mode, Mode::Enforce);

    store.set_mode(Mode::Block, Some("incident 42"), None).await?;
    assert_eq!(store.mode().await?.mode, Mode::Block);
    ensure!(!db.take(&free).await?.is_granted(), "it is blocked");
    Ok(())
}

/// `session_replication_role = replica`, `pg_restore --disable-triggers` and loaders of test data write such rows.
async fn rows_loaded_without_triggers_rule_or_are_refused(db: TestDb) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&db).await?;
    let (db, store) = (&scratch.db, scratch.db.store());
    let bucket = |id: &str| {
        format!("insert into tollgate.token_buckets (id, capacity, refill_seconds) values ('{id}', 2, 3600)")
    };
    let over = |id: &str| {
        format!(
            "insert into tollgate.token_overrides (id, capacity, refill_seconds, reason) values ('{id}', 1, 3600, '')"
        )
    };
    let replica = |sql: String| format!("begin; set local session_replication_role = replica; {sql}; commit");
    let disabled = |table: &str, sql: String| {
        format!("begin; alter table {table} disable trigger all; {sql}; alter table {table} enable trigger all; commit")
    };
    for (id, load) in
        [("replica", replica(over("replica"))), ("disabled", disabled("tollgate.token_overrides", over("disabled")))]
    {
        db.pool.run(bucket(id)).await?;
        let key = Key::try_from(id)?;
        ensure!(db.take(&key).await?.is_granted());
        db.pool.run(load).await?;
        let explained = store.explain(&key, None).await?;
        assert_eq!(explained.quota_from, Some(Origin::Override), "{id}");
        ensure!(db.take(&key).await?.is_granted(), "{id}: of two tokens one is left");
        ensure!(!db.take(&key).await?.is_granted(), "{id}: under its override it holds one");
        let level = store.peek(&key).await?.context("it is there")?;
        assert_eq!((level.is_overridden(), level.quota()), (true, "1/h".parse()?), "{id}");
    }

    db.pool.run(replica(bucket("loaded"))).await?;
    let loaded = Key::try_from("loaded")?;
    db.pool.run(replica("update tollgate.token_buckets set capacity = 1 where id = 'loaded'".to_owned())).await?;
    ensure!(db.take(&loaded).await?.is_granted());
    ensure!(!db.take(&loaded).await?.is_granted(), "it holds one");
    let refused = db.refusal(disabled("tollgate.token_buckets", bucket("bare"))).await?;
    ensure!(refused.sqlstate == "23502", "{refused:?}");
    Ok(())
}

/// Sets the end of the mode of every key, in each engine's SQL: PostgreSQL's, MySQL's, SQLite's.
async fn mode_until(db: &TestDb, end: [&str; 3]) -> anyhow::Result<()> {
    let table = db.table().replace("token_buckets", "token_mode");
    Ok(db.pool.run(format!("update {table} set until = {}", of(db, end))).await?)
}

fn of<'a>(db: &TestDb, [postgres, mysql, sqlite]: [&'a str; 3]) -> &'a str {
    match db.engine.kind {
        Kind::Postgres => postgres,
        Kind::MySql => mysql,
        Kind::Sqlite => sqlite,
    }
}

async fn closing_limiter_reports_its_denials(db: TestDb) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&db).await?;
    let store = scratch.db.store();
    let (often, seldom) = (scratch.db.key(), scratch.db.key());
    let limiter = Limiter::builder(store.clone()).count_denials(10).build("1 once")?;
    for (key, requests) in [(&often, 6), (&seldom, 3)] {
        for _ in 0..requests {
            let _ = Box::pin(limiter.allow(key)).await?;
        }
    }
    assert_eq!(store.most_denied(10).await?, []);
    limiter.close().await?;
    let reported: Vec<(Key, u64)> = store.most_denied(10).await?.into_iter().map(|d| (d.key, d.denied)).collect();
    assert_eq!(reported, [(often.clone(), 5), (seldom, 2)]);
    assert_eq!(store.most_denied(1).await?[0].key, often);
    limiter.close().await?;
    assert_eq!(store.most_denied(1).await?[0].denied, 5, "it is told once");
    Ok(())
}

async fn failed_denial_report_is_not_counted(db: TestDb) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&db).await?;
    let (db, store) = (&scratch.db, scratch.db.store());
    let stats = db.table().replace("token_buckets", "token_stats");
    let (long_ago, no_deletion) = match db.engine.kind {
        Kind::MySql => ("'2001-01-01'", "for each row signal sqlstate '45000' set message_text = 'kept'"),
        Kind::Postgres => ("'2001-01-01'", "for each row execute function kept()"),
        Kind::Sqlite => ("'2001-01-01T00:00:00.000000Z'", "begin select raise(abort, 'kept'); end"),
    };
    if db.engine.kind == Kind::Postgres {
        let kept = "create function kept() returns trigger language plpgsql as $$ begin raise 'kept'; end $$";
        db.pool.run(kept).await?;
    }
    let old = format!("insert into {stats} (hour, id, denied, last_denied_at) values ({long_ago}, 'a', 1, {long_ago})");
    db.pool.run(old).await?;
    db.pool.run(format!("create trigger kept before delete on {stats} {no_deletion}")).await?;
    let denials = [(db.key(), 5)];
    ensure!(store.count_denials(&denials).await.is_err(), "the old row was deleted");
    assert_eq!(store.most_denied(10).await?, [], "who tells again would count twice");
    let on = if db.engine.kind == Kind::Postgres { format!(" on {stats}") } else { String::new() };
    db.pool.run(format!("drop trigger kept{on}")).await?;
    store.count_denials(&denials).await?;
    assert_eq!(store.most_denied(10).await?[0].denied, 5);
    Ok(())
}

async fn views_show_effective_rules_and_table_sizes(db: TestDb) -> anyhow::Result<()> {
    type Text = Option<String>;
    type EffectiveRow = (String, Text, Text, Option<i64>, Text, Text, Text);
    let scratch = Scratch::migrated(&db).await?;
    let (db, store) = (&scratch.db, scratch.db.store());
    let rules = async || {
        let view = db.table().replace("token_buckets", "token_rules");
        let rules =
            format!("select kind, name, plan, capacity, mode, mode_from, reason from {view} order by kind, name");
        let rules = AssertSqlSafe(rules);
        let rows: Vec<EffectiveRow> = with_pool!(&db.pool, pool => sqlx::query_as(rules).fetch_all(pool).await?);
        let text = |row: EffectiveRow| {
            let (kind, name, plan, capacity, mode, from, reason) = row;
            let or_dash = |text: Text| text.unwrap_or_else(|| "-".to_owned());
            let capacity = or_dash(capacity.map(|capacity| capacity.to_string()));
            [kind, or_dash(name), or_dash(plan), capacity, or_dash(mode), or_dash(from), or_dash(reason)].join(" ")
        };
        anyhow::Ok(rows.into_iter().map(text).collect::<Vec<_>>())
    };
    assert_eq!(rules().await?, ["all - - - enforce - -"]);

    let [free, paid] = ["free", "paid"].map(|name| Key::try_from(name).expect("short enough"));
    store.create_plan(&free, "10/h".parse()?).await?;
    store.create_plan(&paid, "100/h".parse()?).await?;
    store.set_plan_mode(&paid, Some(Mode::Off), Some("ticket 7"), None).await?;
    let over = |quota| Override { quota, mode: None, reason: "load test".to_owned(), ..Override::default() };
    let [on_plan, on_none, unseen] =
        ["user:1", "user:3", "user:4"].map(|name| Key::try_from(name).expect("short enough"));
    ensure!(db.decide(Take::from(on_plan.clone()).rule(Rule::Plan(free.clone()))).await?.is_granted());
    db.create(&on_none, "1/h".parse()?).await?;
    for key in [&on_plan, &on_none, &unseen] {
        store.set_override(key, over(Some("7/h".parse()?))).await?;
    }
    let ended = Override { expires_at: Some(Utc::now() + TimeDelta::milliseconds(300)), ..over(Some("9/h".parse()?)) };
    let end = ended.expires_at.expect("it was given").timestamp_millis() * MS;
    store.set_override(&Key::try_from("user:2")?, ended).await?;
    store.set_mode(Mode::Shadow, Some("incident 42"), Some(Utc::now() + TimeDelta::hours(1))).await?;
    db.until(end + 10 * MS).await?;
    let expected = [
        "all - - - shadow all incident 42",
        "override user:1 free 7 - - load test",
        "override user:3 - 7 - - load test",
        "override user:4 - 7 - - load test",
        "plan free - 10 shadow all incident 42",
        "plan paid - 100 off plan ticket 7",
    ];
    assert_eq!(rules().await?, expected);
    mode_until(
        db,
        ["now() - interval '1 second'", "utc_timestamp(6) - interval 1 second", "datetime('now', '-1 second')"],
    )
    .await?;
    assert_eq!(rules().await?[0], "all - - - enforce - -");

    let sizes = db.table().replace("token_buckets", "token_sizes");
    let sizes = AssertSqlSafe(format!("select name from {sizes} where bytes > 0 or live_rows >= 0 order by name"));
    let tables: Vec<(String,)> = with_pool!(&db.pool, pool => sqlx::query_as(sizes).fetch_all(pool).await?);
    ensure!(tables.iter().any(|(table,)| table == "token_buckets"), "{tables:?}");
    ensure!(tables.iter().any(|(table,)| table == "token_stats"), "{tables:?}");
    Ok(())
}

async fn size_view_shows_that_decisions_write_no_index(db: TestDb) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&db).await?;
    // A session reports its statistics at the end of a transaction, at most once a second.
    let (session, _) = with_session(&scratch.db, "select 1").await?;
    let AnyPool::Postgres(pool) = &session.pool else { unreachable!("it is PostgreSQL's") };
    let key = session.bucket(Quota::interval(1_000, Duration::from_hours(1))?).await?;
    for _ in 0..100 {
        ensure!(session.take(&key).await?.is_granted());
    }
    let sizes = "select updates, hot_ratio::float8 from tollgate.token_sizes where name = 'token_buckets'";
    loop {
        let (updates, hot_ratio): (i64, Option<f64>) = sqlx::query_as(sizes).fetch_one(pool).await?;
        if updates >= 100 {
            ensure!(hot_ratio.is_some_and(|ratio| ratio > 0.9), "of {updates} updates: {hot_ratio:?}");
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

const MS: i64 = 1_000_000;
