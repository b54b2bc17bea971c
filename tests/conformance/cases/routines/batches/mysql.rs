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
use crate::matrix::{Case, Levels, Time, list};
use crate::pools::with_session;
use crate::random;
use crate::rig::{Rig, hex};

pub(crate) fn cases() -> Vec<Case> {
    [
        list!(Levels::Pools, Time::Injected, |engine| engine.kind == Kind::MySql;
            an_entry_of_many_times_is_decided_as_so_many_requests)
        .to_vec(),
        list!(Levels::Pools, Time::Real, |engine| engine.kind == Kind::MySql;
            batches_that_overlap_do_not_deadlock,
            override_applies_to_a_bucket_made_after_the_snapshot,
            batches_in_any_isolation_level_grant_the_available_tokens)
        .to_vec(),
    ]
    .concat()
}

/// Random batches for buckets of all kinds: provisioned, created by their first request, or with a plan.
async fn an_entry_of_many_times_is_decided_as_so_many_requests(rig: Rig) -> anyhow::Result<()> {
    random::check(60, &(vec(figures(), 1..8), vec((0_i64..5000, vec(asked(), 1..10)), 1..8)), |(figures, batches)| {
        live(&rig, figures, batches)
    })
}

async fn live(rig: &Rig, figures: Vec<Figures>, batches: Vec<(i64, Vec<Asked>)>) -> anyhow::Result<()> {
    let mut now = START;
    rig.at(now).await?;
    let mut buckets = Vec::new();
    for figures in figures {
        buckets.push(Known::new(rig, figures, now).await?);
    }
    for (ms, asked) in batches {
        now += ms * MS;
        rig.at(now).await?;
        // Now and then a bucket occurs twice, or a request waits: these are decided one by one.
        let entries: Vec<(usize, Asked)> =
            asked.into_iter().map(|asked| (asked.bucket.index(buckets.len()), asked)).collect();
        let json: Vec<String> = entries.iter().map(|(at, asked)| buckets[*at].json(asked)).collect();
        let rows = rig.sql(call(&json)).await?;
        let mut answers: HashMap<usize, Vec<Said>> = HashMap::new();
        for said in said(&rows)? {
            answers.entry(said.place).or_default().push(said);
        }
        let mut order: Vec<usize> = (0..entries.len()).collect();
        order.sort_by_key(|place| (buckets[entries[*place].0].key.clone(), *place));
        for place in order {
            let (at, asked) = &entries[place];
            let said = answers.remove(&place).context("no answer")?;
            let (json, bucket) = (&json[place], &mut buckets[*at]);
            bucket.check(asked, now, &said).with_context(|| format!("{json} at {now}: {said:?}"))?;
        }
        ensure!(answers.is_empty(), "answers to nothing: {answers:?}");
        for bucket in &buckets {
            let row = rig.row(&bucket.key).await?;
            ensure!(row == bucket.state, "after {json:?}: the row is {row:?}, not {:?}", bucket.state);
        }
    }
    Ok(())
}

/// The limits of a bucket, and how the bucket is created.
#[derive(Clone, Copy, Debug)]
struct Figures {
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
struct Asked {
    bucket: prop::sample::Index,
    cost: i64,
    max_wait: i64,
    min_remaining: i64,
    times: i64,
}

fn figures() -> impl Strategy<Value = Figures> {
    let refill = prop::sample::select(vec!["interval", "calendar", "continuous", "once"]);
    let made = prop::sample::select(vec![Made::Provisioned, Made::ByItsFirstRequest, Made::OfAPlan]);
    (1_u64..30, 1_u64..20, refill, made).prop_map(|(capacity, seconds, refill, made)| Figures {
        capacity,
        seconds,
        refill,
        made,
    })
}

fn asked() -> impl Strategy<Value = Asked> {
    let max_wait = prop_oneof![19 => Just(0_i64), 1 => 1..10 * SECOND];
    (any::<prop::sample::Index>(), 1_i64..6, max_wait, 0_i64..4, 1_i64..12).prop_map(
        |(bucket, cost, max_wait, min_remaining, times)| Asked { bucket, cost, max_wait, min_remaining, times },
    )
}

/// A bucket, and its state by the definition.
struct Known {
    key: Key,
    figures: Figures,
    plan: String,
    terms: BucketQuota,
    state: Option<Bucket>,
}

impl Known {
    async fn new(rig: &Rig, figures: Figures, now: i64) -> anyhow::Result<Self> {
        let Figures { capacity, seconds, refill, made } = figures;
        let period = Duration::from_secs(seconds);
        let quota = match refill {
            "interval" => Quota::interval(capacity, period)?,
            "calendar" => Quota::calendar(capacity, period)?,
            "continuous" => Quota::continuous(capacity, period)?,
            _ => Quota::once(capacity)?,
        };
        let (key, terms, plan) = (rig.key(), BucketQuota::from(&quota), rig.key().to_string());
        let mut state = None;
        if made == Made::Provisioned {
            rig.create(&key, quota).await?;
            state = Some(Bucket::full(&terms, now));
        } else if made == Made::OfAPlan {
            let arguments = format!("'{plan}', {capacity}, {seconds}, '{refill}'");
            rig.sql(rig.calling("token_create_plan", &arguments)).await?;
        }
        Ok(Self { key, figures, plan, terms, state })
    }

    fn json(&self, asked: &Asked) -> String {
        let hex = |text: &str| hex(text.as_bytes());
        let Figures { capacity, seconds, refill, made } = self.figures;
        let Asked { cost, max_wait, min_remaining, times, .. } = asked;
        let rule = match made {
            Made::Provisioned => "null,null,null,null".to_owned(),
            Made::ByItsFirstRequest => format!("{capacity},{seconds},\"{refill}\",null"),
            Made::OfAPlan => format!("null,null,null,\"{}\"", hex(&self.plan)),
        };
        format!("[\"{}\",{cost},{max_wait},{min_remaining},{rule},null,0,{times}]", hex(self.key.as_str()))
    }

    /// Decides the requests one after the other by the definition, and compares the answers.
    fn check(&mut self, asked: &Asked, now: i64, answers: &[Said]) -> anyhow::Result<()> {
        let &Asked { cost, max_wait, min_remaining, times, .. } = asked;
        let state = self.state.get_or_insert_with(Bucket::default);
        let (mut grants, mut denied) = (0, false);
        for said in answers {
            ensure!(said.now == now && said.mode == "-" && said.times >= said.granted_times);
            ensure!(said.granted_times == 0 || !denied, "granted after others");
            ensure!(said.granted_times == said.times || said.outcome != "granted");
            denied = said.granted_times < said.times;
            grants += said.granted_times;
        }
        let answered: i64 = answers.iter().map(|said| said.times).sum();
        ensure!(answered == times, "{answered} answers");
        let last = answers.last().context("an answer")?;
        if cost + min_remaining > self.terms.capacity {
            ensure!(grants == 0 && last.outcome == "never");
            return Ok(());
        }
        let mut granted = 0;
        for _ in 0..times {
            granted += i64::from(state.take(&self.terms, now, BucketRequest { cost, max_wait, min_remaining }).granted);
        }
        ensure!(grants == granted, "{granted} should be granted");
        ensure!(granted == times || last.outcome == "denied");
        ensure!((last.full_at, last.granted) == (state.full_at, state.granted), "not {state:?}");
        Ok(())
    }
}

/// The routine's answer to `times` equal requests.
#[derive(Debug)]
struct Said {
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
fn said(rows: &[Row]) -> anyhow::Result<Vec<Said>> {
    let answers = rows.first().context("no row")?.text("answers")?.context("null")?;
    let texts: Vec<String> = serde_json::from_str(answers)?;
    let parsed = texts.iter().filter(|text| !text.starts_with("0 ")).map(|text| {
        let words: Vec<&str> = text.split(' ').collect();
        let &[times, granted_times, place, outcome, mode, now, _, full_at, granted, ..] = words.as_slice() else {
            bail!("the answer {text:?}");
        };
        Ok(Said {
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
async fn batches_that_overlap_do_not_deadlock(rig: Rig) -> anyhow::Result<()> {
    overlap(&rig, None).await
}

/// In the caller's transaction, its isolation level applies. A failed call has taken nothing, after a rollback.
async fn batches_in_any_isolation_level_grant_the_available_tokens(rig: Rig) -> anyhow::Result<()> {
    for level in [
        "set session transaction isolation level read uncommitted",
        "set session transaction isolation level read committed",
        "set session transaction isolation level repeatable read",
        "set session transaction isolation level serializable",
    ] {
        overlap(&rig, Some(level)).await.context(level)?;
    }
    Ok(())
}

async fn override_applies_to_a_bucket_made_after_the_snapshot(rig: Rig) -> anyhow::Result<()> {
    let key = rig.key();
    let other = rig.bucket(Quota::once(5)?).await?;
    rig.store().set_override(&key, Override { mode: Some(Mode::Block), ..Override::default() }).await?;
    let session = with_session(&rig, "set session transaction isolation level repeatable read").await?.0;
    session.pool.run("start transaction").await?;
    session.sql("select count(*) from token_buckets").await?;
    rig.create(&key, Quota::once(5)?).await?;
    let batch = rig.quoted(&format!("[[\"{key}\", 1], [\"{other}\", 1]]"));
    let rows = match session.sql(rig.calling("request_tokens_many", &batch)).await {
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
async fn overlap(rig: &Rig, level: Option<&'static str>) -> anyhow::Result<()> {
    let keys: Vec<Key> = (0..BUCKETS).map(|_| rig.key()).collect();
    let hex: Vec<String> = keys.iter().map(|key| hex(key.as_str().as_bytes())).collect();
    let mut sessions = JoinSet::new();
    for session in 0..4_usize {
        let rig = match level {
            None => rig.on(rig.pool.clone()),
            Some(level) => with_session(rig, level).await?.0,
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
                let rows = if level.is_some() { in_transaction(&rig, &call).await? } else { rig.sql(call).await? };
                for said in said(&rows)? {
                    let (at, cost, _) = entries[said.place];
                    taken[at] += said.granted_times * i64::try_from(cost)?;
                    granted |= said.granted_times > 0;
                }
                let asked_all = entries.len() == BUCKETS && entries.iter().any(|(_, cost, _)| *cost == 1);
                if round > 20 && !granted && asked_all {
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
        let row = rig.row(key).await?.context("made")?;
        assert_eq!((row.granted, row.full_at), (taken, taken), "{key:?}");
        assert!((CAPACITY - 2..=CAPACITY).contains(&taken), "{taken} were taken");
    }
    Ok(())
}

/// Calls in the caller's transaction on the only session of its pool, and retries after a deadlock.
async fn in_transaction(rig: &Rig, call: &str) -> anyhow::Result<Vec<Row>> {
    loop {
        rig.pool.run("start transaction").await?;
        match rig.sql(call).await {
            Ok(rows) => {
                rig.pool.run("commit").await?;
                return Ok(rows);
            }
            Err(error) => {
                // A deadlock, a lock timeout, or a row that changed since the transaction began.
                let again = number(&error).is_some_and(|number| [1213, 1205, 1020].contains(&number));
                ensure!(again, error);
                rig.pool.run("rollback").await?;
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
