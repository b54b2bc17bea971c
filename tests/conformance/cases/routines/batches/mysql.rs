//! The batch routine of MySQL and MariaDB with entries that stand for several equal requests.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use proptest::collection::vec;
use proptest::prelude::*;
use sqlx::mysql::MySqlDatabaseError;
use tokio::task::JoinSet;
use tollgate::model::bucket::{Bucket, BucketQuota, BucketRequest};
use tollgate::{Admin, Key, Mode, Quota, admin::Override};

use super::super::{MS, SECOND, START};
use crate::client::Row;
use crate::engines::Kind;
use crate::matrix::{Case, Setup, Time, list};
use crate::pools::with_session;
use crate::random;
use crate::test_db::{TestDb, hex};

pub(crate) fn cases() -> Vec<Case> {
    [
        list!(
            Setup { time: Time::Injected, needs: |engine| engine.kind == Kind::MySql, ..Setup::WITHOUT_LAYERS };
            an_entry_of_many_times_is_decided_as_so_many_requests,
        ),
        list!(
            Setup { needs: |engine| engine.kind == Kind::MySql, ..Setup::WITHOUT_LAYERS };
            batches_that_overlap_do_not_deadlock,
            override_applies_to_a_bucket_made_after_the_snapshot,
            batches_in_any_isolation_level_grant_the_available_tokens,
        ),
    ]
    .concat()
}

/// Random batches for buckets of all kinds: provisioned, created by their first request, or with a plan.
async fn an_entry_of_many_times_is_decided_as_so_many_requests(db: TestDb) -> anyhow::Result<()> {
    let batches = vec((0_i64..5000, vec(entry(), 1..10)), 1..8);
    random::check(60, &(vec(bucket_spec(), 1..8), batches), |(specs, batches)| live(&db, specs, batches))
}

async fn live(db: &TestDb, specs: Vec<BucketSpec>, batches: Vec<(i64, Vec<Entry>)>) -> anyhow::Result<()> {
    let mut now = START;
    db.at(now).await?;
    let mut buckets = Vec::new();
    for spec in specs {
        buckets.push(ModelBucket::new(db, spec, now).await?);
    }
    for (ms, batch) in batches {
        now += ms * MS;
        db.at(now).await?;
        // Now and then a bucket occurs twice, or a request waits: these are decided one by one.
        let entries: Vec<(usize, Entry)> =
            batch.into_iter().map(|entry| (entry.bucket.index(buckets.len()), entry)).collect();
        let json: Vec<String> = entries.iter().map(|(at, entry)| buckets[*at].json(entry)).collect();
        let rows = db.sql(call(&json)).await?;
        let mut answers: HashMap<usize, Vec<Answer>> = HashMap::new();
        for answer in parse_answers(&rows)? {
            answers.entry(answer.place).or_default().push(answer);
        }
        let mut order: Vec<usize> = (0..entries.len()).collect();
        order.sort_by_key(|place| (buckets[entries[*place].0].key.clone(), *place));
        for place in order {
            let (at, entry) = &entries[place];
            let found = answers.remove(&place).context("no answer")?;
            let (json, bucket) = (&json[place], &mut buckets[*at]);
            bucket.check(entry, now, &found).with_context(|| format!("{json} at {now}: {found:?}"))?;
        }
        ensure!(answers.is_empty(), "answers to nothing: {answers:?}");
        for bucket in &buckets {
            let row = db.row(&bucket.key).await?;
            ensure!(row == bucket.state, "after {json:?}: the row is {row:?}, not {:?}", bucket.state);
        }
    }
    Ok(())
}

/// The limits of a bucket, and how the bucket is created.
#[derive(Clone, Copy, Debug)]
struct BucketSpec {
    capacity: u64,
    seconds: u64,
    refill: &'static str,
    made: Made,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Made {
    Provisioned,
    ByItsFirstRequest,
    OfAPlan,
}

#[derive(Clone, Debug)]
struct Entry {
    bucket: prop::sample::Index,
    cost: i64,
    max_wait: i64,
    min_remaining: i64,
    times: i64,
}

fn bucket_spec() -> impl Strategy<Value = BucketSpec> {
    let refill = prop::sample::select(vec!["interval", "calendar", "continuous", "once"]);
    let made = prop::sample::select(vec![Made::Provisioned, Made::ByItsFirstRequest, Made::OfAPlan]);
    (1_u64..30, 1_u64..20, refill, made).prop_map(|(capacity, seconds, refill, made)| BucketSpec {
        capacity,
        seconds,
        refill,
        made,
    })
}

fn entry() -> impl Strategy<Value = Entry> {
    let max_wait = prop_oneof![19 => Just(0_i64), 1 => 1..10 * SECOND];
    (any::<prop::sample::Index>(), 1_i64..6, max_wait, 0_i64..4, 1_i64..12).prop_map(
        |(bucket, cost, max_wait, min_remaining, times)| Entry { bucket, cost, max_wait, min_remaining, times },
    )
}

/// A bucket, and its state by the definition.
struct ModelBucket {
    key: Key,
    spec: BucketSpec,
    plan: String,
    limits: BucketQuota,
    state: Option<Bucket>,
}

impl ModelBucket {
    async fn new(db: &TestDb, spec: BucketSpec, now: i64) -> anyhow::Result<Self> {
        let BucketSpec { capacity, seconds, refill, made } = spec;
        let period = Duration::from_secs(seconds);
        let quota = match refill {
            "interval" => Quota::interval(capacity, period)?,
            "calendar" => Quota::calendar(capacity, period)?,
            "continuous" => Quota::continuous(capacity, period)?,
            _ => Quota::once(capacity)?,
        };
        let (key, limits, plan) = (db.key(), BucketQuota::at(&quota, 0), db.key().to_string());
        let mut state = None;
        if made == Made::Provisioned {
            db.create(&key, quota).await?;
            state = Some(Bucket::full(&limits, now));
        } else if made == Made::OfAPlan {
            let arguments = format!("'{plan}', {capacity}, {seconds}, '{refill}'");
            db.sql(db.calling("token_create_plan", &arguments)).await?;
        }
        Ok(Self { key, spec, plan, limits, state })
    }

    fn json(&self, entry: &Entry) -> String {
        let hex = |text: &str| hex(text.as_bytes());
        let BucketSpec { capacity, seconds, refill, made } = self.spec;
        let Entry { cost, max_wait, min_remaining, times, .. } = entry;
        let rule = match made {
            Made::Provisioned => "null,null,null,null".to_owned(),
            Made::ByItsFirstRequest => format!("{capacity},{seconds},\"{refill}\",null"),
            Made::OfAPlan => format!("null,null,null,\"{}\"", hex(&self.plan)),
        };
        format!("[\"{}\",{cost},{max_wait},{min_remaining},{rule},null,0,{times}]", hex(self.key.as_str()))
    }

    /// Decides the requests one after the other by the definition, and compares the answers.
    fn check(&mut self, entry: &Entry, now: i64, answers: &[Answer]) -> anyhow::Result<()> {
        let &Entry { cost, max_wait, min_remaining, times, .. } = entry;
        let state = self.state.get_or_insert_with(Bucket::default);
        let (mut grants, mut denied) = (0, false);
        for answer in answers {
            ensure!(answer.now == now && answer.mode == "-" && answer.times >= answer.granted_times);
            ensure!(answer.granted_times == 0 || !denied, "granted after others");
            ensure!(answer.granted_times == answer.times || answer.outcome != "granted");
            denied = answer.granted_times < answer.times;
            grants += answer.granted_times;
        }
        let answered: i64 = answers.iter().map(|answer| answer.times).sum();
        ensure!(answered == times, "{answered} answers");
        let last = answers.last().context("an answer")?;
        if cost + min_remaining > self.limits.capacity {
            ensure!(grants == 0 && last.outcome == "never");
            return Ok(());
        }
        let mut granted = 0;
        for _ in 0..times {
            granted +=
                i64::from(state.take(&self.limits, now, BucketRequest { cost, max_wait, min_remaining }).granted);
        }
        ensure!(grants == granted, "{granted} should be granted");
        ensure!(granted == times || last.outcome == "denied");
        ensure!((last.full_at, last.granted) == (state.full_at, state.granted), "not {state:?}");
        Ok(())
    }
}

/// The routine's answer to `times` equal requests.
#[derive(Debug)]
struct Answer {
    times: i64,
    granted_times: i64,
    place: usize,
    outcome: String,
    mode: String,
    now: i64,
    full_at: i64,
    granted: i64,
}

/// Builds the call that decides the requests. Nothing in them needs escaping.
fn call(requests: &[String]) -> String {
    format!("call token_take_batch_v1('[{}]', false, @answers); select @answers as answers", requests.join(","))
}

/// Parses the answers in order, without those for 0 requests.
fn parse_answers(rows: &[Row]) -> anyhow::Result<Vec<Answer>> {
    let answers = rows.first().context("no row")?.text("answers")?.context("null")?;
    let texts: Vec<String> = serde_json::from_str(answers)?;
    let parsed = texts.iter().filter(|text| !text.starts_with("0 ")).map(|text| {
        let words: Vec<&str> = text.split(' ').collect();
        let &[times, granted_times, place, outcome, mode, now, _, full_at, granted, ..] = words.as_slice() else {
            bail!("the answer {text:?}");
        };
        Ok(Answer {
            times: times.parse()?,
            granted_times: granted_times.parse()?,
            place: place.parse::<usize>()? - 1,
            outcome: outcome.to_owned(),
            mode: mode.to_owned(),
            now: now.parse()?,
            full_at: full_at.parse()?,
            granted: granted.parse()?,
        })
    });
    parsed.collect()
}

/// Other errors do not occur either.
async fn batches_that_overlap_do_not_deadlock(db: TestDb) -> anyhow::Result<()> {
    overlap(&db, None).await
}

/// In the caller's transaction, its isolation level applies. A failed call has taken nothing, after a rollback.
async fn batches_in_any_isolation_level_grant_the_available_tokens(db: TestDb) -> anyhow::Result<()> {
    for level in [
        "set session transaction isolation level read uncommitted",
        "set session transaction isolation level read committed",
        "set session transaction isolation level repeatable read",
        "set session transaction isolation level serializable",
    ] {
        overlap(&db, Some(level)).await.context(level)?;
    }
    Ok(())
}

async fn override_applies_to_a_bucket_made_after_the_snapshot(db: TestDb) -> anyhow::Result<()> {
    let key = db.key();
    let other = db.bucket(Quota::once(5)?).await?;
    db.store().set_override(&key, Override { mode: Some(Mode::Block), ..Override::default() }).await?;
    let session = with_session(&db, "set session transaction isolation level repeatable read").await?.0;
    session.pool.run("start transaction").await?;
    session.sql("select count(*) from token_buckets").await?;
    db.create(&key, Quota::once(5)?).await?;
    let batch = db.quoted(&format!("[[\"{key}\", 1], [\"{other}\", 1]]"));
    let rows = match session.sql(db.calling("request_tokens_many", &batch)).await {
        // A later MariaDB refuses to lock rows that changed after the snapshot.
        Err(error) if number(&error) == Some(1020) => return Ok(()),
        rows => rows?,
    };
    session.pool.run("commit").await?;
    let outcomes = rows.iter().map(|row| row.text("outcome")).collect::<anyhow::Result<Vec<_>>>()?;
    assert_eq!(outcomes, [Some("denied"), Some("granted")]);
    Ok(())
}

/// Several sessions take from the same buckets, created by the first requests, until no token is left. With a level, they use
/// their own transactions.
async fn overlap(db: &TestDb, level: Option<&'static str>) -> anyhow::Result<()> {
    let keys: Vec<Key> = (0..BUCKETS).map(|_| db.key()).collect();
    let hex: Vec<String> = keys.iter().map(|key| hex(key.as_str().as_bytes())).collect();
    let mut sessions = JoinSet::new();
    for session in 0..4_usize {
        let db = match level {
            None => db.on(db.pool.clone()),
            Some(level) => with_session(db, level).await?.0,
        };
        let hex = hex.clone();
        sessions.spawn(async move {
            let (mut taken, mut round, mut random) = ([0; BUCKETS], 0_usize, session);
            while round < 300 {
                round += 1;
                let mut entries = Vec::new();
                for at in 0..BUCKETS {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    let (cost, times) = ((random >> 40) % 3 + 1, (random >> 50) % 4 + 1);
                    if (random >> 60) % 4 > 0 {
                        let at = (at + round + session) % BUCKETS;
                        entries.push((at, cost, times));
                    }
                }
                let json: Vec<String> = entries
                    .iter()
                    .map(|(at, cost, times)| {
                        format!("[\"{}\",{cost},0,0,{CAPACITY},1,\"once\",null,null,0,{times}]", hex[*at])
                    })
                    .collect();
                let call = call(&json);
                let mut granted = false;
                let rows = if level.is_some() { in_transaction(&db, &call).await? } else { db.sql(call).await? };
                for answer in parse_answers(&rows)? {
                    let (at, cost, _) = entries[answer.place];
                    taken[at] += answer.granted_times * i64::try_from(cost)?;
                    granted |= answer.granted_times > 0;
                }
                let has_every_bucket = entries.len() == BUCKETS && entries.iter().any(|(_, cost, _)| *cost == 1);
                if round > 20 && !granted && has_every_bucket {
                    break;
                }
            }
            anyhow::Ok(taken)
        });
    }
    let mut taken = [0; BUCKETS];
    while let Some(one) = sessions.join_next().await {
        for (all, one) in taken.iter_mut().zip(one??) {
            *all += one;
        }
    }
    for (key, taken) in keys.iter().zip(taken) {
        let row = db.row(key).await?.context("made")?;
        assert_eq!((row.granted, row.full_at), (taken, taken), "{key:?}");
        assert!((CAPACITY - 2..=CAPACITY).contains(&taken), "{taken} were taken");
    }
    Ok(())
}

/// Calls in the caller's transaction on the only session of its pool, and retries after a deadlock.
async fn in_transaction(db: &TestDb, call: &str) -> anyhow::Result<Vec<Row>> {
    loop {
        db.pool.run("start transaction").await?;
        match db.sql(call).await {
            Ok(rows) => {
                db.pool.run("commit").await?;
                return Ok(rows);
            }
            Err(error) => {
                // A deadlock, a lock timeout, or a row that changed since the transaction began.
                let is_transient = number(&error).is_some_and(|number| [1213, 1205, 1020].contains(&number));
                ensure!(is_transient, error);
                db.pool.run("rollback").await?;
            }
        }
    }
}

fn number(error: &sqlx::Error) -> Option<u16> {
    let error = error.as_database_error()?.try_downcast_ref::<MySqlDatabaseError>()?;
    Some(error.number())
}

const BUCKETS: usize = 6;
const CAPACITY: i64 = 500;
