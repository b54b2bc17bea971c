//! What is one for a whole database: the mode of every key, and clearing away.

use std::time::Duration;

use anyhow::ensure;
use chrono::{TimeDelta, Utc};
use sqlx::AssertSqlSafe;
use tollgate::{Admin, Filter, Key, Limiter, Mode, Origin, Override, Quota, Rule, Store, Take};
use uuid::Uuid;

use crate::engines::Kind;
use crate::matrix::{Case, Levels, Time, list};
use crate::pools::{Scratch, with_pool};
use crate::rig::Rig;
use crate::store::AnyStore;

pub fn cases() -> Vec<Case> {
    list!(
        Levels::Pools, Time::Real, |_| true;
        a_mode_for_all_rules_until_another_is_set,
        an_end_that_no_clock_reaches_is_as_good_as_none,
        a_sweep_deletes_what_says_nothing_any_more_in_bounded_steps,
        decisions_are_the_same_after_a_sweep,
        a_limiter_sweeps_away_keys_that_were_used_once,
        a_limiter_that_counts_denials_tells_them_when_it_is_closed,
        denials_whose_telling_fails_are_not_counted,
        an_override_whose_end_is_past_rules_nothing_however_it_came_there,
        a_sweep_deletes_denials_of_more_than_two_days_ago,
        views_show_what_rules_and_how_large_the_tables_are,
    )
    .into()
}

fn under(key: &Key, quota: &str) -> anyhow::Result<Take> {
    Ok(Take::from(key.clone()).rule(Rule::try_from(quota)?))
}

async fn a_mode_for_all_rules_until_another_is_set(rig: Rig) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&rig).await?;
    let (rig, store) = (&scratch.rig, scratch.rig.store());
    assert_eq!(store.mode().await?.mode, Mode::Enforce);
    let key = rig.key();
    ensure!(rig.decide(under(&key, "1/h")?).await?.is_granted());
    ensure!(!rig.decide(under(&key, "1/h")?).await?.is_granted());

    let until = Some(Utc::now() + TimeDelta::hours(1));
    store.set_mode(Mode::Shadow, Some("incident 42"), until).await?;
    let switch = store.mode().await?;
    assert_eq!((switch.mode, switch.reason.as_deref()), (Mode::Shadow, Some("incident 42")));
    let millis = |until: Option<chrono::DateTime<Utc>>| until.map(|until| until.timestamp_millis());
    assert_eq!(millis(switch.until), millis(until));
    assert_eq!(rig.decide(under(&key, "1/h")?).await?.mode(), Mode::Shadow);
    let explanation = store.explain(&key, None).await?;
    assert_eq!((explanation.mode, explanation.mode_from), (Mode::Shadow, Some(Origin::All)));
    assert_eq!(explanation.mode_reason.as_deref(), Some("incident 42"));

    store.set_mode(Mode::Block, None, Some(Utc::now() + TimeDelta::hours(1))).await?;
    let denied = rig.decide(under(&rig.key(), "1/h")?).await?;
    ensure!(!denied.is_granted() && denied.retry_after() <= Duration::from_hours(1), "{denied:?}");
    mode_until(
        rig,
        ["now() - interval '1 second'", "utc_timestamp(6) - interval 1 second", "datetime('now', '-1 second')"],
    )
    .await?;
    ensure!(rig.decide(under(&rig.key(), "1/h")?).await?.is_granted());
    store.set_mode(Mode::Enforce, None, None).await?;
    assert_eq!(store.explain(&key, None).await?.mode_from, None);
    Ok(())
}

async fn an_end_that_no_clock_reaches_is_as_good_as_none(rig: Rig) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&rig).await?;
    let (rig, store) = (&scratch.rig, scratch.rig.store());
    store.set_mode(Mode::Block, None, None).await?;
    let endless = Override { mode: Some(Mode::Shadow), ..Override::default() };
    let free = rig.key();
    store.set_override(&free, endless).await?;
    for end in [["'9999-12-31'", "'9999-12-31'", "'9999-12-31 00:00:00'"], ["'infinity'", "'9999-12-31'", "null"]] {
        mode_until(rig, end).await?;
        let table = rig.table().replace("token_buckets", "token_overrides");
        rig.pool.run(format!("update {table} set expires_at = {}", of(rig, end))).await?;
        ensure!(!rig.decide(under(&rig.key(), "1/h")?).await?.is_granted(), "until {end:?}");
        ensure!(rig.decide(under(&free, "1/h")?).await?.is_granted(), "until {end:?}");
        assert_eq!(store.explain(&rig.key(), None).await?.mode, Mode::Block);
        store.sweep(None, 10).await?;
        assert_eq!(store.explain(&free, None).await?.mode, Mode::Shadow, "it was not swept away");
    }
    Ok(())
}

/// By SQL alone; the crate refuses to make one.
async fn an_override_whose_end_is_past_rules_nothing_however_it_came_there(rig: Rig) -> anyhow::Result<()> {
    let key = rig.bucket(Quota::interval(5, Duration::from_hours(24 * 365))?).await?;
    ensure!(rig.take(&key).await?.is_granted());
    let before = rig.row(&key).await?;
    let table = rig.table().replace("token_buckets", "token_overrides");
    let ends = ["now() - interval '1 s'", "utc_timestamp(6) - interval 1 second", "datetime('now', '-2 seconds')"];
    let end = of(&rig, ends);
    let insert = |columns: &str, made: &str| {
        let (id, values) = (rig.literal(&key), "1000, 60, 'block', 'too late'");
        format!(
            "insert into {table} (id, capacity, refill_seconds, mode, reason, expires_at{columns}) \
                 values ({id}, {values}, {end}{made})"
        )
    };
    // SQLite takes it. MySQL and MariaDB compare it with a column, which somebody may set, too.
    if rig.engine.kind != Kind::Sqlite {
        let refusal = rig.refusal(insert("", "")).await?;
        let words = if rig.engine.kind == Kind::Postgres { "which is past" } else { "expires_after_it_is_made" };
        ensure!(refusal.message.contains(words), "{refusal:?}");
    }
    match rig.engine.kind {
        Kind::Postgres => {}
        Kind::MySql => drop(rig.sql(insert(", made_at", &format!(", {end} - interval 1 hour"))).await?),
        Kind::Sqlite => drop(rig.sql(insert("", "")).await?),
    }
    assert_eq!(rig.row(&key).await?, before);
    let decision = rig.decide(Take::from(key.clone()).cost(4)).await?;
    assert_eq!((decision.is_granted(), decision.remaining(), decision.mode()), (true, 0, Mode::Enforce));
    let explained = rig.store().explain(&key, None).await?;
    assert_eq!((explained.quota_from, explained.override_reason), (Some(Origin::Bucket), None));
    Ok(())
}

/// Gives the mode of all an end, in each engine's SQL: PostgreSQL's, MySQL's, SQLite's.
async fn mode_until(rig: &Rig, end: [&str; 3]) -> anyhow::Result<()> {
    let table = rig.table().replace("token_buckets", "token_mode");
    Ok(rig.pool.run(format!("update {table} set until = {}", of(rig, end))).await?)
}

fn of<'a>(rig: &Rig, [postgres, mysql, sqlite]: [&'a str; 3]) -> &'a str {
    match rig.engine.kind {
        Kind::Postgres => postgres,
        Kind::MySql => mysql,
        Kind::Sqlite => sqlite,
    }
}

async fn a_sweep_deletes_what_says_nothing_any_more_in_bounded_steps(rig: Rig) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&rig).await?;
    let (rig, store) = (&scratch.rig, scratch.rig.store());
    let (full, owing) = (keys("full", 10), keys("owing", 3));
    for key in &full {
        ensure!(rig.decide(under(key, "1000/s")?).await?.is_granted());
    }
    for key in &owing {
        ensure!(rig.decide(under(key, "10/h")?).await?.is_granted());
    }
    let provisioned = Key::try_from("provisioned")?;
    store.create_bucket(&provisioned, "10/h".parse()?).await?;
    // Receipts, one of which is held for longer, and overrides likewise.
    for hold in [1, 3_600_000] {
        let take = under(&owing[0], "10/h")?.id(Uuid::new_v4(), Duration::from_millis(hold));
        ensure!(rig.decide(take).await?.is_granted());
    }
    let soon = Utc::now() + TimeDelta::milliseconds(300);
    for (key, end) in full.iter().zip([soon, soon + TimeDelta::hours(1)]) {
        let over = Override { mode: Some(Mode::Off), expires_at: Some(end), ..Override::default() };
        store.set_override(key, over).await?;
    }
    rig.until(soon.timestamp_millis() * MS + MS).await?;

    let (mut after, mut deleted, mut steps) = (None, 0, 0);
    loop {
        let swept = store.sweep(after.as_ref(), 4).await?;
        // The last one deletes as many receipts and overrides too.
        ensure!(swept.deleted <= if swept.next.is_some() { 4 } else { 12 }, "{swept:?}");
        (deleted, steps) = (deleted + swept.deleted, steps + 1);
        after = swept.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!((deleted, steps), (12, 4), "ten buckets, a receipt and an override");
    let left = store.list(&Filter::default(), None, 100).await?;
    let left: Vec<&Key> = left.iter().map(|level| &level.key).collect();
    assert_eq!(left, [&owing[0], &owing[1], &owing[2], &provisioned]);
    assert_eq!(store.sweep(None, 100).await?.deleted, 0);
    ensure!(!store.clear_override(&full[0]).await? && store.clear_override(&full[1]).await?);
    Ok(())
}

async fn decisions_are_the_same_after_a_sweep(rig: Rig) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&rig).await?;
    let (rig, store) = (&scratch.rig, scratch.rig.store());
    let plan = rig.key();
    store.create_plan(&plan, "3/d".parse()?).await?;
    let life = async |sweeps: bool| {
        let (used, idle, planned) = (rig.key(), rig.key(), rig.key());
        let mut granted = Vec::new();
        for cost in [2, 1, 1] {
            for take in [
                under(&used, "3/d")?,
                under(&idle, "3 per 1ms")?,
                Take::from(planned.clone()).rule(Rule::Plan(plan.clone())),
            ] {
                let decision = rig.decide(take.cost(cost)).await?;
                granted.push((decision.is_granted(), decision.remaining()));
            }
            rig.until(rig.now().await? + MS).await?;
            if sweeps {
                ensure!(store.sweep(None, 1000).await?.next.is_none());
                ensure!(store.peek(&idle).await?.is_none() && store.peek(&used).await?.is_some());
            }
        }
        Ok(granted)
    };
    assert_eq!(life(true).await?, life(false).await?);
    Ok(())
}

async fn a_limiter_sweeps_away_keys_that_were_used_once(rig: Rig) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&rig).await?;
    // A machine that is busy with others takes its time for so many.
    let store = scratch.rig.store().deadline(Duration::from_secs(60));
    use_once(&store, 20_000).await?;
    // It counts requests that it need not ask about, too.
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

async fn a_limiter_that_counts_denials_tells_them_when_it_is_closed(rig: Rig) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&rig).await?;
    let store = scratch.rig.store();
    let (often, seldom) = (scratch.rig.key(), scratch.rig.key());
    let limiter = Limiter::builder(store.clone()).count_denials(10).build("1 once")?;
    for (key, requests) in [(&often, 6), (&seldom, 3)] {
        for _ in 0..requests {
            let _ = Box::pin(limiter.allow(key)).await?;
        }
    }
    assert_eq!(store.most_denied(10).await?, []);
    limiter.close().await?;
    let told: Vec<(Key, u64)> = store.most_denied(10).await?.into_iter().map(|d| (d.key, d.denied)).collect();
    assert_eq!(told, [(often.clone(), 5), (seldom, 2)]);
    assert_eq!(store.most_denied(1).await?[0].key, often);
    limiter.close().await?;
    assert_eq!(store.most_denied(1).await?[0].denied, 5, "it is told once");
    Ok(())
}

async fn denials_whose_telling_fails_are_not_counted(rig: Rig) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&rig).await?;
    let (rig, store) = (&scratch.rig, scratch.rig.store());
    let stats = rig.table().replace("token_buckets", "token_stats");
    let (long_ago, no_deletion) = match rig.engine.kind {
        Kind::MySql => ("'2001-01-01'", "for each row signal sqlstate '45000' set message_text = 'kept'"),
        Kind::Postgres => ("'2001-01-01'", "for each row execute function kept()"),
        Kind::Sqlite => ("'2001-01-01T00:00:00.000000Z'", "begin select raise(abort, 'kept'); end"),
    };
    if rig.engine.kind == Kind::Postgres {
        let kept = "create function kept() returns trigger language plpgsql as $$ begin raise 'kept'; end $$";
        rig.pool.run(kept).await?;
    }
    let old = format!("insert into {stats} (hour, id, denied, last_denied_at) values ({long_ago}, 'a', 1, {long_ago})");
    rig.pool.run(old).await?;
    rig.pool.run(format!("create trigger kept before delete on {stats} {no_deletion}")).await?;
    let denials = [(rig.key(), 5)];
    ensure!(store.count_denials(&denials).await.is_err(), "the old row was deleted");
    assert_eq!(store.most_denied(10).await?, [], "who tells again would count twice");
    let on = if rig.engine.kind == Kind::Postgres { format!(" on {stats}") } else { String::new() };
    rig.pool.run(format!("drop trigger kept{on}")).await?;
    store.count_denials(&denials).await?;
    assert_eq!(store.most_denied(10).await?[0].denied, 5);
    Ok(())
}

async fn a_sweep_deletes_denials_of_more_than_two_days_ago(rig: Rig) -> anyhow::Result<()> {
    let scratch = Scratch::migrated(&rig).await?;
    let (rig, store) = (&scratch.rig, scratch.rig.store());
    let stats = rig.table().replace("token_buckets", "token_stats");
    let key = rig.key();
    store.count_denials(&[(key.clone(), 5)]).await?;
    let hours_ago = |hours| match rig.engine.kind {
        Kind::MySql => format!("utc_timestamp() - interval {hours} hour"),
        Kind::Postgres => format!("now() - interval '{hours} hours'"),
        Kind::Sqlite => format!("strftime('%Y-%m-%d %H:00:00.000', 'now', '-{hours} hours')"),
    };
    for (hours, id) in [(47, "kept"), (50, "a"), (96, "b"), (9600, "c")] {
        let at = hours_ago(hours);
        let old = format!("insert into {stats} (hour, id, denied, last_denied_at) values ({at}, '{id}', 1, {at})");
        rig.pool.run(old).await?;
    }
    assert_eq!(store.sweep(None, 2).await?.deleted, 2, "a step is bounded");
    assert_eq!(store.sweep(None, 100).await?.deleted, 1);
    assert_eq!(store.sweep(None, 100).await?.deleted, 0, "the rest is younger than two days");
    assert_eq!(store.most_denied(10).await?[0].denied, 5);
    Ok(())
}

async fn views_show_what_rules_and_how_large_the_tables_are(rig: Rig) -> anyhow::Result<()> {
    type Ruling = (String, Option<String>, Option<i64>, Option<String>, Option<String>, Option<String>);
    let scratch = Scratch::migrated(&rig).await?;
    let (rig, store) = (&scratch.rig, scratch.rig.store());
    let rules = async || {
        let view = rig.table().replace("token_buckets", "token_rules");
        let rules = format!("select kind, name, capacity, mode, mode_from, reason from {view} order by kind, name");
        let rules = AssertSqlSafe(rules);
        let rows: Vec<Ruling> = with_pool!(&rig.pool, pool => sqlx::query_as(rules).fetch_all(pool).await?);
        let text = |row: Ruling| {
            let (kind, name, capacity, mode, from, reason) = row;
            let word = |word: Option<String>| word.unwrap_or_else(|| "-".to_owned());
            let capacity = word(capacity.map(|capacity| capacity.to_string()));
            [kind, word(name), capacity, word(mode), word(from), word(reason)].join(" ")
        };
        anyhow::Ok(rows.into_iter().map(text).collect::<Vec<_>>())
    };
    assert_eq!(rules().await?, ["all - - enforce - -"]);

    let [free, paid] = ["free", "paid"].map(|name| Key::try_from(name).expect("short enough"));
    store.create_plan(&free, "10/h".parse()?).await?;
    store.create_plan(&paid, "100/h".parse()?).await?;
    store.set_plan_mode(&paid, Some(Mode::Off), Some("ticket 7"), None).await?;
    let over = |quota| Override { quota, mode: None, reason: "load test".to_owned(), ..Override::default() };
    store.set_override(&Key::try_from("user:1")?, over(Some("7/h".parse()?))).await?;
    let ended = Override { expires_at: Some(Utc::now() + TimeDelta::milliseconds(300)), ..over(Some("9/h".parse()?)) };
    let end = ended.expires_at.expect("it was given").timestamp_millis() * MS;
    store.set_override(&Key::try_from("user:2")?, ended).await?;
    store.set_mode(Mode::Shadow, Some("incident 42"), Some(Utc::now() + TimeDelta::hours(1))).await?;
    rig.until(end + 10 * MS).await?;
    let expected = [
        "all - - shadow all incident 42",
        "override user:1 7 - - load test",
        "plan free 10 shadow all incident 42",
        "plan paid 100 off plan ticket 7",
    ];
    assert_eq!(rules().await?, expected);
    mode_until(
        rig,
        ["now() - interval '1 second'", "utc_timestamp(6) - interval 1 second", "datetime('now', '-1 second')"],
    )
    .await?;
    assert_eq!(rules().await?[0], "all - - enforce - -");

    let sizes = rig.table().replace("token_buckets", "token_sizes");
    let sizes = AssertSqlSafe(format!("select name from {sizes} where bytes > 0 or live_rows >= 0 order by name"));
    let tables: Vec<(String,)> = with_pool!(&rig.pool, pool => sqlx::query_as(sizes).fetch_all(pool).await?);
    ensure!(tables.iter().any(|(table,)| table == "token_buckets"), "{tables:?}");
    ensure!(tables.iter().any(|(table,)| table == "token_stats"), "{tables:?}");
    Ok(())
}

const MS: i64 = 1_000_000;

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
