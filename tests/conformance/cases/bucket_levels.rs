//! Current levels, read without taking tokens: the view `token_bucket_levels`, and the store's listing.

use std::time::Duration;

use anyhow::{Context, ensure};
use tollgate::model::bucket::BucketQuota;
use tollgate::{
    Admin, Key, Quota, Rule, Take, Window,
    admin::{BucketLevel, Filter},
};

use crate::engines::Kind;
use crate::matrix::{Case, Setup, list};
use crate::test_db::TestDb;

pub(crate) fn cases() -> Vec<Case> {
    // Without layers: the cases read a view and operators' lists.
    list!(
        Setup::WITHOUT_LAYERS;
        a_row_of_id_capacity_and_refill_seconds_is_a_full_bucket,
        the_view_shows_tokens_and_instants,
        level_listing_equals_the_view,
        window_view_equals_the_listing,
    )
}

async fn a_row_of_id_capacity_and_refill_seconds_is_a_full_bucket(db: TestDb) -> anyhow::Result<()> {
    let key = db.key();
    let (table, id) = (db.table(), db.literal(&key));
    db.sql(format!("insert into {table} (id, capacity, refill_seconds) values ({id}, 3, 2500000.5)")).await?;
    for left in [2, 1, 0] {
        let decision = db.take(&key).await?;
        ensure!(decision.is_granted() && decision.remaining() == Some(left), "{decision:?}");
    }
    let decision = db.take(&key).await?;
    ensure!(!decision.is_granted(), "{decision:?}");
    // The first period starts at the insert, and all tokens come back at its end.
    let period = Duration::from_millis(2_500_000_500);
    let is_within_period = |time: Duration| !time.is_zero() && time <= period;
    ensure!(decision.retry_after().is_some_and(is_within_period), "{decision:?}");
    assert_eq!(decision.retry_after(), decision.reset_after());
    let level = listed(&db, &key).await?;
    assert_eq!((level.quota().capacity(), level.quota().refill_time(), level.is_provisioned()), (3, period, true));
    Ok(())
}

async fn the_view_shows_tokens_and_instants(db: TestDb) -> anyhow::Result<()> {
    for (quota, costs, available, tokens_until_full) in lives()? {
        let key = live(&db, quota, &costs).await?;
        let row = db.row(&key).await?.expect("made");
        let (full_at, next) = (micros(&db, "full_at"), micros(&db, "next_refill_at"));
        let view =
            if db.engine.kind == Kind::Postgres { "tollgate.token_bucket_levels" } else { "token_bucket_levels" };
        let id = db.quoted(key.as_str());
        let sql = format!(
            "select capacity, available, granted, {full_at} as full_us, {next} as next_us from {view} where id = {id}"
        );
        let levels = db.sql(sql).await?;
        ensure!(levels.len() == 1, "{levels:?}");
        let shown = levels[0].numbers(["capacity", "available", "granted"])?;
        ensure!(shown == [i64::try_from(quota.capacity())?, available, row.granted], "{quota}: {shown:?}");

        let Some(tokens) = tokens_until_full else {
            assert_eq!((levels[0].text("full_us")?, levels[0].text("next_us")?), (None, None), "{quota}");
            continue;
        };
        let limits = BucketQuota::at(&quota, 0);
        let instant = |tick| limits.instant(row.anchor, tick) / 1000;
        // The last token comes when the bucket is full, and the next one `tokens - 1` tokens earlier.
        close(&db, levels[0].number("full_us")?, instant(row.full_at))?;
        close(&db, levels[0].number("next_us")?, instant(row.full_at - (tokens - 1) * limits.token_ticks))?;
    }
    Ok(())
}

async fn window_view_equals_the_listing(db: TestDb) -> anyhow::Result<()> {
    let day = Duration::from_secs(86_400);
    for (requests, available) in [(1, 2), (3, 0)] {
        let key = db.key();
        let take = Take::from(key.clone()).rule(Rule::Window(Window::new(3, day, day / 24)?));
        for _ in 0..requests {
            ensure!(db.decide(take.clone()).await?.is_granted());
        }
        let level = db.store().windows(Some(&key), None, 2).await?;
        ensure!(level.len() == 1 && level[0].available() == available, "{level:?}");
        let id = db.quoted(key.as_str());
        let shown = match db.engine.kind {
            Kind::MySql => db.call("token_list_windows", &format!("{id}, null, 2")).await?,
            kind => {
                let schema = if kind == Kind::Postgres { "tollgate." } else { "" };
                let levels = db.sql(format!("select * from {schema}token_window_levels where id = {id}")).await?;
                levels.into_iter().next().context("it is there")?
            }
        };
        let counts = shown.numbers(["max_requests", "counted", "available", "granted"])?;
        assert_eq!(counts, [3, requests, available, requests]);
        // SQL rounds up.
        let later = i64::try_from(level[0].retry_after().as_millis())? - shown.number("retry_after_ms")?;
        ensure!((-1..600_000).contains(&later), "{later} ms later: {level:?}");
        ensure!((available == 0) == (level[0].retry_after() > day), "{level:?}");
    }
    Ok(())
}

async fn level_listing_equals_the_view(db: TestDb) -> anyhow::Result<()> {
    for (quota, costs, available, tokens_until_full) in lives()? {
        let key = live(&db, quota, &costs).await?;
        let row = db.row(&key).await?.expect("made");
        let level = listed(&db, &key).await?;
        ensure!(level.quota() == quota && level.is_provisioned() && level.available() == available, "{level:?}");
        assert_eq!(level.granted(), row.granted.unsigned_abs());
        let shown = |instant: Option<chrono::DateTime<chrono::Utc>>| instant.map(|instant| instant.timestamp_micros());
        let limits = BucketQuota::at(&quota, 0);
        let instant = |tick| limits.instant(row.anchor, tick) / 1000;
        match tokens_until_full {
            None => assert_eq!((level.full_at(), level.next_refill_at()), (None, None)),
            Some(tokens) => {
                close(&db, shown(level.full_at()).context("full")?, instant(row.full_at))?;
                let next = instant(row.full_at - (tokens - 1) * limits.token_ticks);
                close(&db, shown(level.next_refill_at()).context("full")?, next)?;
            }
        }
    }
    // A bucket created by its first request is listed as not provisioned.
    let key = db.key();
    let quota = Quota::continuous(5, Duration::from_secs(1_000_000))?;
    ensure!(db.decide(Take::from(key.clone()).rule(Rule::Quota(quota))).await?.is_granted());
    let level = listed(&db, &key).await?;
    ensure!(level.quota() == quota && !level.is_provisioned() && level.available() == 4, "{level:?}");
    Ok(())
}

/// A quota so slow that no token comes during a test, the costs requested with an unlimited wait, the tokens available
/// afterwards, and the tokens still to come.
type Life = (Quota, Vec<u64>, i64, Option<i64>);

fn lives() -> Result<[Life; 6], tollgate::model::QuotaError> {
    let days = |days: u64| Duration::from_secs(days * 86_400);
    Ok([
        (Quota::interval(10, days(10_000))?, vec![], 10, None),
        (Quota::continuous(10, days(10_000))?, vec![], 10, None),
        // All of a period's tokens come at once.
        (Quota::interval(10, days(10_000))?, vec![1, 2], 7, Some(1)),
        (Quota::continuous(10, days(10_000))?, vec![1, 2], 7, Some(3)),
        // Promised tokens: the next token still comes, and goes to a waiter.
        (Quota::interval(2, days(90))?, vec![2, 2], -2, Some(3)),
        (Quota::continuous(2, days(60))?, vec![2, 1], -1, Some(3)),
    ])
}

async fn live(db: &TestDb, quota: Quota, costs: &[u64]) -> anyhow::Result<Key> {
    let key = db.bucket(quota).await?;
    for &cost in costs {
        let decision = db.decide(Take::from(key.clone()).cost(cost).max_wait(Duration::MAX)).await?;
        ensure!(decision.is_granted(), "{decision:?}");
    }
    Ok(key)
}

/// Finds a key among the levels: the first one after its prefix.
async fn listed(db: &TestDb, key: &Key) -> anyhow::Result<BucketLevel> {
    let begins = Key::try_from(&key.as_str()[..key.as_str().len() - 1])?;
    let levels = db.store().list(&Filter::default(), Some(&begins), 1).await?;
    let level = levels.into_iter().next().context("nothing is listed")?;
    ensure!(level.key() == key, "{level:?} is listed instead of {key}");
    Ok(level)
}

/// An instant of the view, in microseconds since 1970.
fn micros(db: &TestDb, column: &str) -> String {
    match db.engine.kind {
        Kind::Postgres => format!("(extract(epoch from {column}) * 1000000)::bigint"),
        Kind::MySql => format!("timestampdiff(microsecond, '1970-01-01', {column})"),
        Kind::Sqlite => format!("cast(round(unixepoch({column}, 'subsec') * 1000) as integer) * 1000"),
    }
}

/// The view shows microseconds, or milliseconds on SQLite.
fn close(db: &TestDb, shown: i64, exact: i64) -> anyhow::Result<()> {
    let tolerance = if db.engine.kind == Kind::Sqlite { 1000 } else { 1 };
    ensure!((shown - exact).abs() <= tolerance, "{shown} is shown for {exact}");
    Ok(())
}
