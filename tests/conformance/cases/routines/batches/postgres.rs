//! PostgreSQL's batch routines `take_batch_v1` and `take_each_v1`, whose entries stand for several equal requests each.

use std::collections::{HashMap, HashSet};
use std::fmt::Write;

use anyhow::{Context, ensure};
use proptest::prelude::*;
use tollgate::Key;

use super::super::{MS, START};
use crate::client::Row;
use crate::engines::Kind;
use crate::matrix::{Case, Setup, Time, list};
use crate::pools::{injected, with_session};
use crate::random;
use crate::test_db::TestDb;

pub(crate) fn cases() -> Vec<Case> {
    [
        list!(
            Setup { time: Time::Injected, needs: |engine| engine.kind == Kind::Postgres, ..Setup::WITHOUT_LAYERS };
            a_batch_decides_as_single_requests_do,
        ),
        list!(
            Setup { needs: |engine| engine.kind == Kind::Postgres && engine.has_sessions, ..Setup::WITHOUT_LAYERS };
            locked_row_does_not_block_the_other_rows,
            batch_counts_from_when_its_row_is_locked,
        ),
    ]
    .concat()
}

/// Each bucket has a twin, which gets the same requests one by one.
async fn a_batch_decides_as_single_requests_do(db: TestDb) -> anyhow::Result<()> {
    let request = (0..KINDS.len(), 1..4_i64, prop_oneof![3 => Just(0_i64), 1 => 1..12_i64], 1..9_i64, 0..8_usize);
    let request = request.prop_map(|(kind, cost, min_remaining, times, change)| BatchEntry {
        kind,
        cost,
        min_remaining,
        times,
        change,
    });
    // Also steps back, further than any bucket's refill time.
    let ms = prop_oneof![6 => 0..3000_i64, 1 => -40_000..0_i64];
    let steps = prop::collection::vec((ms, prop::bool::ANY, prop::collection::vec(request, 1..12)), 1..8);
    // Uses a separate database: after the first override, each bucket is looked up among the overrides.
    let (_scratch, session) = injected(&db).await?;
    random::check(60, &steps, |steps| live(&session, steps))
}

async fn live(db: &TestDb, steps: Vec<(i64, bool, Vec<BatchEntry>)>) -> anyhow::Result<()> {
    let run = db.key();
    let plan = format!("plan {run}");
    let mut now = START;
    db.at(now).await?;
    let mut provision =
        format!("insert into tollgate.token_plans (name, capacity, refill_seconds) values ('{plan}', 9, 3)");
    for kind in KINDS {
        let Some(limits) = kind.provisioned else { continue };
        let limits = limits.replace("$plan", &plan);
        for id in TWINS.map(|twin| kind.id(twin, &run)) {
            let columns = "id, capacity, refill_seconds, refill, plan";
            write!(provision, "; insert into tollgate.token_buckets ({columns}) values ('{id}', {limits})")?;
        }
    }
    db.pool.run(provision).await?;
    for (ms, alike, requests) in steps {
        let common = alike.then(|| KINDS[requests[0].kind].requested);
        let requested = |request: &BatchEntry| common.unwrap_or(KINDS[request.kind].requested);
        let requests = &if alike { made_alike(requests) } else { requests };
        now += ms * MS;
        db.at(now).await?;
        if let Some(change) = CHANGES.get(requests[0].change) {
            let changes = ids(&run).map(|id| change.replace("$plan", &plan).replace("$id", &id));
            db.pool.run(changes.collect::<Vec<_>>().join("; ")).await?;
        }
        let each =
            |request: &BatchEntry| (KINDS[request.kind].id(TWINS[0], &run), requested(request).replace("$plan", &plan));
        let batch = batch_of(requests, each);
        let answers = expanded(&db.sql(batch).await?, requests)?;
        for place in in_order(requests) {
            let request = &requests[place];
            let [routine, wait, id] = [["take_v1", "0, ", ", null, 0"], ["grant_v1", "", ""]][place % 2];
            let single = format!(
                "select 1 as times, (t.taken).outcome, (t.taken).mode, (t.taken).now, (t.taken).scheduled_at,
                        (t.taken).full_at, (t.taken).granted
                   from (select tollgate.{routine}('{}', {} + 0 * i, {wait}{}, {}{id}) as taken
                           from generate_series(1, {}) i offset 0) t",
                KINDS[request.kind].id(TWINS[1], &run),
                request.cost,
                request.min_remaining,
                requested(request).replace("$plan", &plan),
                request.times
            );
            let singles = db.sql(single).await?;
            agree(&answers[place], &singles).with_context(|| format!("entry {place} of {requests:?} at {now}"))?;
        }
        let rows = rows(db, &run).await?;
        for kind in KINDS {
            let [one, other] = TWINS.map(|twin| rows.get(&kind.id(twin, &run)));
            ensure!(one == other, "after {requests:?} at {now}:\n{one:?}, not {other:?} of {}", kind.name);
        }
    }
    Ok(())
}

/// The states of the existing buckets of a run, by id.
async fn rows(db: &TestDb, run: &Key) -> anyhow::Result<HashMap<String, [i64; 4]>> {
    let ids = ids(run).map(|id| db.quoted(&id)).collect::<Vec<_>>().join(", ");
    let sql = format!(
        "select id, anchor, full_at, granted, max_granted_wait from tollgate.token_buckets where id in ({ids})"
    );
    let row = |row: &Row| {
        let id = row.text("id")?.context("null")?.to_owned();
        Ok((id, row.numbers(["anchor", "full_at", "granted", "max_granted_wait"])?))
    };
    db.sql(sql).await?.iter().map(row).collect()
}

fn ids(run: &Key) -> impl Iterator<Item = String> {
    KINDS.iter().flat_map(move |kind| TWINS.map(|twin| kind.id(twin, run)))
}

/// The rows of each entry, which must answer all its requests.
fn expanded(rows: &[Row], requests: &[BatchEntry]) -> anyhow::Result<Vec<Vec<Row>>> {
    let mut answers = vec![Vec::new(); requests.len()];
    let mut times = vec![0; requests.len()];
    for row in rows {
        let [entry, count] = row.numbers(["entry", "times"])?;
        let place = usize::try_from(entry - 1)?;
        ensure!(count > 0, "{row:?}");
        times[place] += count;
        answers[place].push(row.clone());
    }
    ensure!(times.iter().zip(requests).all(|(times, request)| *times == request.times), "{rows:?}");
    Ok(answers)
}

/// Whether the rows of an entry match the single requests: a row has the state after its last request.
fn agree(rows: &[Row], singles: &[Row]) -> anyhow::Result<()> {
    let mut singles = singles.iter();
    for row in rows {
        for nth in 1..=row.number("times")? {
            let single = singles.next().context("fewer requests")?;
            let mut columns = vec!["outcome", "mode", "now", "scheduled_at"];
            if nth == row.number("times")? {
                columns.extend(["full_at", "granted"]);
            }
            for column in columns {
                let (one, other) = (row.text(column)?, single.text(column)?);
                ensure!(one == other, "{column} is {one:?}, not {other:?}:\n{row:?}\n{single:?}");
            }
        }
    }
    Ok(())
}

async fn locked_row_does_not_block_the_other_rows(db: TestDb) -> anyhow::Result<()> {
    let ids = [db.key(), db.key()].map(|key| key.as_str().to_owned());
    for id in &ids {
        db.pool.run(format!("select tollgate.create_bucket('{id}', 10, 60)")).await?;
    }
    let (holder, _) = with_session(&db, "select 1").await?;
    holder.pool.run(format!("begin; select tollgate.request_token('{}')", ids[0])).await?;
    let requests = [0, 1].map(|kind| BatchEntry { kind, cost: 1, min_remaining: 0, times: 2, change: 0 });
    let both = |requests: &[BatchEntry]| {
        batch_of(requests, |request| (ids[request.kind].clone(), "null, null, null, null".to_owned()))
    };
    let refusal = db.refusal(both(&requests)).await?;
    assert_eq!(refusal.sqlstate, "55P03", "{refusal:?}");
    assert_eq!(answered(&db.sql(both(&requests[1..])).await?)?, 2);
    holder.pool.run("rollback").await?;
    let (session, _) = with_session(&db, "set lock_timeout = '7s'").await?;
    session.pool.run("begin").await?;
    assert_eq!(answered(&session.sql(both(&requests)).await?)?, 4);
    assert_eq!(session.sql("show lock_timeout").await?[0].text("lock_timeout")?, Some("7s"), "as it was");
    session.pool.run("commit").await?;
    let granted = [db.row(&Key::try_from(&*ids[0])?).await?, db.row(&Key::try_from(&*ids[1])?).await?];
    assert_eq!(granted.map(|row| row.expect("made").granted), [2, 4]);
    Ok(())
}

/// The number of requests that the rows answer.
fn answered(rows: &[Row]) -> anyhow::Result<i64> {
    rows.iter().map(|row| row.number("times")).sum()
}

async fn batch_counts_from_when_its_row_is_locked(db: TestDb) -> anyhow::Result<()> {
    let id = db.key().as_str().to_owned();
    db.pool.run(format!("select tollgate.create_bucket('{id}', 10, 60, 'continuous')")).await?;
    let (holder, _) = with_session(&db, "select 1").await?;
    holder.pool.run(format!("begin; select from tollgate.token_buckets where id = '{id}' for update")).await?;
    let (waiter, _) = with_session(&db, "select 1").await?;
    let requests = [BatchEntry { kind: 0, cost: 1, min_remaining: 0, times: 12, change: 0 }];
    let sql = batch_of(&requests, |_| (id.clone(), "null, null, null, null".to_owned()));
    let waiting = tokio::spawn(async move { waiter.sql(sql).await });
    let stuck = format!("select from pg_stat_activity where wait_event_type = 'Lock' and query like '%{id}%'");
    while db.sql(stuck.clone()).await?.is_empty() {}
    let before = db.now().await?;
    db.until(before + 20 * MS).await?;
    let released = db.now().await?;
    holder.pool.run("rollback").await?;
    let rows = waiting.await??;
    let row = db.row(&Key::try_from(&*id)?).await?.context("made")?;
    // The tokens of a full bucket, counted from the release.
    assert_eq!(row.granted, 10);
    ensure!(row.full_at >= released - row.anchor + 60_000 * MS, "{row:?} when released at {released}");
    ensure!(rows.len() == 2 && rows.iter().all(|row| row.number("now").is_ok_and(|now| now >= released)), "{rows:?}");
    Ok(())
}

/// An entry for `times` requests.
#[derive(Clone, Debug)]
struct BatchEntry {
    kind: usize,
    cost: i64,
    min_remaining: i64,
    times: i64,
    /// The operator's change to all buckets before the entry, if it is the first.
    change: usize,
}

/// A kind of bucket, with the limits that its requests name.
struct Bucket {
    name: &'static str,
    provisioned: Option<&'static str>,
    requested: &'static str,
}

impl Bucket {
    fn id(&self, twin: &str, run: &Key) -> String {
        format!("{}{twin} {run}", self.name)
    }
}

/// The order in which the entries are decided: entries for one bucket keep their order.
fn in_order(requests: &[BatchEntry]) -> Vec<usize> {
    let mut places: Vec<usize> = (0..requests.len()).collect();
    places.sort_by_key(|&place| KINDS[requests[place].kind].name);
    places
}

/// Makes the requests uniform: one per bucket, in id order, equal to the first. Most buckets already have these limits.
fn made_alike(requests: Vec<BatchEntry>) -> Vec<BatchEntry> {
    let BatchEntry { kind, cost, min_remaining, change, .. } = requests[0].clone();
    let mut alike: Vec<BatchEntry> = requests
        .into_iter()
        .filter(|request| KINDS[request.kind].requested == KINDS[kind].requested || request.times > 6)
        .map(|request| BatchEntry { cost, min_remaining, change, ..request })
        .collect();
    alike.sort_by_key(|request| KINDS[request.kind].name);
    alike.dedup_by_key(|request| request.kind);
    alike
}

/// The call for the requests, each with a bucket and the requested limits: together if each bucket occurs once, and else one by
/// one.
fn batch_of(requests: &[BatchEntry], requested: impl Fn(&BatchEntry) -> (String, String)) -> String {
    let mut rows = String::new();
    let mut ids = HashSet::new();
    for (place, request) in requests.iter().enumerate() {
        let (id, limits) = requested(request);
        let comma = if place > 0 { ", " } else { "" };
        let BatchEntry { cost, min_remaining, times, .. } = request;
        write!(rows, "{comma}({place}, '{id}', {cost}::bigint, {min_remaining}::bigint, {times}::bigint, {limits})")
            .expect("text");
        ids.insert(id);
    }
    let answers = if ids.len() == requests.len() {
        "r as (select row_number() over () as nth, v.capacity, v.seconds, v.refill, v.plan from v group by 2, 3, 4, 5),
         e as (select v.*, r.nth as rule, row_number() over (order by v.id collate \"C\") as entry
                 from v join r on (r.capacity, r.seconds, r.refill, r.plan)
                                  is not distinct from (v.capacity, v.seconds, v.refill, v.plan)),
         t as (select e.place + 1 as entry, t.times, t.taken
                 from (select array_agg(e.id order by e.entry) ids, array_agg(e.times order by e.entry) times,
                              array_agg(e.cost order by e.entry) costs, array_agg(e.min_remaining order by e.entry) min_remainings,
                              array_agg(e.rule order by e.entry) rules from e) a
                cross join (select array_agg(r.capacity order by r.nth) capacities, array_agg(r.seconds order by r.nth) seconds,
                                   array_agg(r.refill order by r.nth) refills, array_agg(r.plan order by r.nth) plans
                              from r) r
                cross join lateral tollgate.take_batch_v1(
                  a.ids, a.times, a.costs, a.min_remainings, a.rules, r.capacities, r.seconds, r.refills, r.plans) m
                cross join lateral tollgate.answers_each(m) t
                 join e on e.entry = t.entry)"
    } else {
        "t as (select t.*
                 from (select array_agg(v.place + 1 order by v.place) places, array_agg(v.id order by v.place) ids,
                              array_agg(v.times order by v.place) times, array_agg(v.cost order by v.place) costs,
                              array_agg(v.min_remaining order by v.place) min_remainings, array_agg(0::bigint order by v.place) zeros,
                              array_agg(v.capacity order by v.place) capacities,
                              array_agg(v.seconds order by v.place) seconds,
                              array_agg(v.refill order by v.place) refills, array_agg(v.plan order by v.place) plans
                         from v) a
                cross join lateral tollgate.take_each_v1(
                  a.places, a.ids, a.times, a.costs, a.min_remainings, a.zeros, a.capacities, a.seconds, a.refills, a.plans, null,
                  null) m
                cross join lateral tollgate.answers_each(m) t)"
    };
    format!(
        "with v (place, id, cost, min_remaining, times, capacity, seconds, refill, plan) as (
                select place::bigint, id, cost, min_remaining, times, capacity::bigint, seconds::numeric, refill::text, plan::text
                  from (values {rows}) v (place, id, cost, min_remaining, times, capacity, seconds, refill, plan)),
         {answers}
         select t.entry, t.times, (t.taken).outcome, (t.taken).mode, (t.taken).now, (t.taken).scheduled_at,
                (t.taken).full_at, (t.taken).granted
           from t"
    )
}

const TWINS: [&str; 2] = ["1", "2"];

const KINDS: [Bucket; 15] = [
    Bucket { name: "d", provisioned: Some("10, 10, 'continuous', null"), requested: OWN },
    Bucket { name: "b", provisioned: Some("7, 2, 'interval', null"), requested: OWN },
    Bucket { name: "c", provisioned: Some("5, 3, 'calendar', null"), requested: OWN },
    Bucket { name: "a", provisioned: Some("40, 1, 'once', null"), requested: OWN },
    Bucket { name: "e", provisioned: Some("9, 3, 'continuous', '$plan'"), requested: OWN },
    Bucket { name: "f", provisioned: None, requested: PLANNED },
    Bucket { name: "g", provisioned: None, requested: CONTINUOUS },
    Bucket { name: "h", provisioned: None, requested: CALENDAR },
    Bucket { name: "i", provisioned: None, requested: OWN },
    Bucket { name: "j", provisioned: Some("6, 2, 'continuous', null"), requested: CONTINUOUS },
    Bucket { name: "k", provisioned: None, requested: CONTINUOUS },
    Bucket { name: "l", provisioned: None, requested: CONTINUOUS },
    Bucket { name: "m", provisioned: None, requested: PLANNED },
    Bucket { name: "n", provisioned: None, requested: PLANNED },
    Bucket { name: "o", provisioned: None, requested: CALENDAR },
];

const CONTINUOUS: &str = "6::bigint, 2::numeric, 'continuous'::text, null::text";
const CALENDAR: &str = "3::bigint, 1::numeric, 'calendar'::text, null::text";
const PLANNED: &str = "null::bigint, null::numeric, null::text, '$plan'";
const OWN: &str = "null::bigint, null::numeric, null::text, null::text";

/// Changes by an operator; other numbers mean no change.
const CHANGES: [&str; 6] = [
    "update tollgate.token_plans set capacity = capacity % 17 + 1, mode = null where name = '$plan'",
    "update tollgate.token_plans set mode = 'shadow' where name = '$plan'",
    "insert into tollgate.token_overrides (id, mode, reason) values ('$id', 'block', 'a test')
     on conflict (id) do update set mode = 'enforce'",
    "insert into tollgate.token_overrides (id, capacity, refill_seconds, reason) values ('$id', 4, 1, 'a test')
     on conflict (id) do update set expires_at = '2262-01-01', mode = 'shadow'",
    "delete from tollgate.token_overrides where id = '$id'",
    "update tollgate.token_buckets set capacity = capacity + 1 where id = '$id'",
];
