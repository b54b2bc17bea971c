//! Decisions. Plain requests for one bucket are decided by one message to the thread of the database, and all others in
//! memory, in a transaction that takes two messages.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use futures_util::TryStreamExt as _;
use sqlx::query::Query;
use sqlx::sqlite::{SqliteArguments, SqliteConnection, SqliteRow};
use sqlx::{Either, Executor as _, Row as _, Sqlite};

use super::json::Array;
use super::lock::{END_TRANSACTION, Lock, Script, closing, opening};
use super::rows::{self, ResultRow, STATES};
use super::{HostClock, adjust, windows};
use crate::clock::{Clock, SystemClock};
use crate::model::answer::{BucketAnswer, OutcomeCode};
use crate::model::bucket::BucketRequest;
use crate::model::decide;
use crate::model::decide::{
    BucketRow, EffectiveBucket, KeySettings, OverrideSettings, PlanSettings, State, StoredReceipt, TimedMode,
};
use crate::model::{Adjustment, Key, Limit, Mode, Quota, Rule, WindowUsage};
use crate::store::sql::call::{AdjustedColumns, Counting, SqlRequest};
use crate::store::sql::dialect::Decisions;

impl Decisions for Sqlite {
    async fn take(
        connection: &mut SqliteConnection,
        requests: &[SqlRequest],
        clock: &HostClock,
    ) -> Result<Vec<BucketAnswer>, sqlx::Error> {
        if let [request] = requests
            && let Some(answers) = take_now(connection, request, clock).await?
        {
            return Ok(answers);
        }
        let limits = requests.iter().map(|request| &request.take.limits[0]);
        let mut locked = Locked::read(connection, limits, clock).await?;
        let mut answers = Vec::with_capacity(requests.len());
        for request in requests {
            let mut decided = locked.decide(request, 0).await?;
            let mut left = request.times - 1;
            while left > 0 && decided.answer.code == OutcomeCode::Granted {
                answers.push(decided.answer);
                decided.repeat();
                left -= 1;
            }
            // A request that was not granted takes nothing, so its equals have the same outcome.
            answers.extend((0..=left).map(|_| decided.answer));
            locked.take(decided, request).await?;
        }
        locked.write().await?;
        Ok(answers)
    }

    async fn take_all(
        connection: &mut SqliteConnection,
        requests: &[SqlRequest],
        clock: &HostClock,
    ) -> Result<Vec<BucketAnswer>, sqlx::Error> {
        let limits = requests.iter().flat_map(|request| &request.take.limits);
        let mut locked = Locked::read(connection, limits, clock).await?;
        let mut answers = Vec::with_capacity(requests.len());
        for request in requests {
            let mut decisions = Vec::with_capacity(request.take.limits.len());
            for place in 0..request.take.limits.len() {
                decisions.push(locked.decide(request, place).await?);
            }
            let all = decisions.iter().all(|decided| decided.answer.code == OutcomeCode::Granted);
            for decided in decisions {
                if !all && decided.answer.code == OutcomeCode::Granted {
                    answers.push(locked.spare(decided));
                } else {
                    answers.push(decided.answer);
                    locked.take(decided, request).await?;
                }
            }
        }
        locked.write().await?;
        Ok(answers)
    }

    async fn take_window(
        connection: &mut SqliteConnection,
        request: &SqlRequest,
        counting: Counting,
        clock: &HostClock,
    ) -> Result<WindowUsage, sqlx::Error> {
        let mut transaction = super::begin(connection).await?;
        let counted = windows::take(&mut transaction, request, counting, clock.now()).await?;
        transaction.commit().await?;
        Ok(counted)
    }

    async fn adjust(
        connection: &mut SqliteConnection,
        adjustments: &[Adjustment],
        clock: &HostClock,
    ) -> Result<Vec<AdjustedColumns>, sqlx::Error> {
        adjust::adjust(connection, adjustments, clock).await
    }
}

/// Decides a request for one bucket, and its equals, if only the bucket's own limits apply. Decides none of them if
/// some would be granted and others denied.
async fn take_now(
    connection: &mut SqliteConnection,
    request: &SqlRequest,
    clock: &HostClock,
) -> Result<Option<Vec<BucketAnswer>>, sqlx::Error> {
    let Some(cost) = request.amounts.cost.checked_mul(request.times) else { return Ok(None) };
    if request.plan(0).is_some() || request.id().is_some() {
        return Ok(None);
    }
    let whole = BucketRequest { cost, ..request.amounts };
    let Some(found) = run_take(connection, request, whole, clock.into()).await? else {
        return Ok(None);
    };
    let answer = match found.granted {
        Some(now) => Some(granted(&found, whole, now)),
        None => evaluated(&found, request, clock.now()).filter(|answer| answer.code != OutcomeCode::Granted),
    };
    Ok(answer
        .map(|answer| (0..request.times).rev().map(|later| answer.earlier_answer(later, request.amounts)).collect()))
}

/// The answer of a grant, from the bucket after it.
fn granted(FoundBucket { row, .. }: &FoundBucket, amounts: BucketRequest, now: i64) -> BucketAnswer {
    let limits = row.limits();
    let due = row.bucket.full_at + amounts.min_remaining * limits.token_ticks - limits.burst();
    let is_available = due <= limits.clock(row.bucket.anchor, now);
    let scheduled_at = if is_available { now } else { limits.instant(row.bucket.anchor, due).max(now) };
    BucketAnswer::granted(now, scheduled_at, limits, row.bucket)
}

/// The answer to a request from the bucket as it is, unless more than the bucket's own limits apply.
fn evaluated(found: &FoundBucket, request: &SqlRequest, now: i64) -> Option<BucketAnswer> {
    let FoundBucket { row, has_settings, .. } = found;
    let own = request.quota(0).is_none_or(|quota| *quota == row.own_quota);
    let plain = !has_settings && row.plan.is_none() && row.over.is_none() && own;
    let limits = row.limits();
    (plain && now < limits.period_end && !row.bucket.stepped_back(&limits, now))
        .then(|| decide::take_by_tokens(&mut row.clone(), request.amounts, now))
}

/// A bucket, as `take.sql` answers it.
struct FoundBucket {
    /// The instant of the grant, if the row is the bucket after a grant.
    granted: Option<i64>,
    /// Whether more than the bucket's own limits can apply: a mode or an override.
    has_settings: bool,
    row: BucketRow,
}

/// Runs `take.sql`: returns the bucket after a grant, or else the bucket as it is.
async fn run_take(
    connection: &mut SqliteConnection,
    request: &SqlRequest,
    BucketRequest { cost, max_wait, min_remaining }: BucketRequest,
    ClockReading { now, at_ms, good_for_ms }: ClockReading,
) -> Result<Option<FoundBucket>, sqlx::Error> {
    let query = sqlx::query(include_str!("take.sql"))
        .bind(request.key().as_str())
        .bind(cost)
        .bind(min_remaining)
        .bind(now)
        .bind(max_wait)
        .bind(at_ms)
        .bind(good_for_ms)
        .bind(request.quota(0).map(Quota::capacity_i64))
        .bind(request.quota(0).map(Quota::refill_ns))
        .bind(request.quota(0).map(|quota| quota.refill().column()));
    let rows = first_rows(connection, query).await?;
    let found = |columns: &SqliteRow| {
        Ok(FoundBucket {
            granted: columns.try_get(0)?,
            has_settings: columns.try_get(1)?,
            row: rows::bucket_from_columns(columns, 2)?,
        })
    };
    rows.first().map(found).transpose().map_err(rows::unreadable(request.key()))
}

/// Returns the rows of the first statement that has any. Does not run the next statement: its error would repeat the
/// first one's effect.
async fn first_rows(
    connection: &mut SqliteConnection,
    query: Query<'_, Sqlite, SqliteArguments>,
) -> Result<Vec<SqliteRow>, sqlx::Error> {
    let (mut answers, mut rows) = (connection.fetch_many(query), Vec::new());
    while let Some(answer) = answers.try_next().await? {
        match answer {
            Either::Right(row) => rows.push(row),
            Either::Left(_) if rows.is_empty() => {}
            Either::Left(_) => break,
        }
    }
    Ok(rows)
}

/// The buckets of a call and all rules for them, while the transaction locks the database. Reads everything at once,
/// decides in memory, and writes everything at once.
struct Locked<'c, 'a> {
    lock: Lock<'c>,
    now: i64,
    all: TimedMode,
    plans: HashMap<Key, PlanSettings, RandomState>,
    places: HashMap<&'a Key, usize, RandomState>,
    buckets: Vec<LockedBucket<'a>>,
}

struct LockedBucket<'a> {
    key: &'a Key,
    over: Option<OverrideSettings>,
    /// The row as it was read. `row` is the row to write.
    found: Option<BucketRow>,
    row: Option<BucketRow>,
}

/// The decision about one bucket of a request. Nothing is taken yet.
struct DecidedRequest {
    answer: BucketAnswer,
    amounts: BucketRequest,
    place: usize,
    effective: Option<EffectiveBucket>,
    /// The bucket under its effective limits, before anything is taken.
    before: Option<BucketRow>,
    stored: Option<StoredReceipt>,
}

impl<'c, 'a> Locked<'c, 'a> {
    /// Locks the database, reads the clock, and reads everything that decides requests.
    async fn read(
        connection: &'c mut SqliteConnection,
        limits: impl Iterator<Item = &'a Limit>,
        clock: &HostClock,
    ) -> Result<Self, sqlx::Error> {
        let (mut places, mut buckets) = (HashMap::default(), Vec::new());
        let (mut named, mut following) = (Array::default(), Array::default());
        for Limit { key, rule, .. } in limits {
            places.entry(key).or_insert_with(|| {
                buckets.push(LockedBucket { key, over: None, found: None, row: None });
                buckets.len() - 1
            });
            match rule {
                Rule::Plan(plan) => named.push(plan.as_str().into()),
                Rule::Provisioned => following.push(key.as_str().into()),
                Rule::Quota(_) | Rule::Window(_) | Rule::Limits(_) => {}
            }
        }
        let keys: Array = buckets.iter().map(|bucket| bucket.key.as_str()).collect();
        let arguments = [keys.into_text(), named.into_text(), following.into_text()];
        let (lock, rows) = Lock::open(connection, &READ, arguments).await?;
        let (all, plans) = (TimedMode::default(), HashMap::default());
        let mut locked = Self { lock, now: clock.now(), all, plans, places, buckets };
        if let Some(text) = rows.first().map(|row| row.try_get::<Option<&str>, _>(0)).transpose()?.flatten() {
            text.split(',').try_for_each(|line| locked.enter(&ResultRow::from(line)))?;
        }
        Ok(locked)
    }

    /// Decides a request for the bucket at one of its places.
    async fn decide(&mut self, request: &SqlRequest, place: usize) -> Result<DecidedRequest, sqlx::Error> {
        let Limit { key, rule, .. } = &request.take.limits[place];
        let amounts = request.request_at(place);
        let place = self.places[key];
        let refused = BucketAnswer::refused(OutcomeCode::Unknown, self.now);
        let mut decided =
            DecidedRequest { answer: refused, amounts, place, effective: None, before: None, stored: None };
        match self.rule(place, rule) {
            Err(code) => decided.answer.code = code,
            Ok(mut effective) => {
                decided.before = effective.unchanged_by(amounts, self.now);
                if let (Some(id), true) = (request.id(), effective.mode != Mode::Off) {
                    let stored = rows::find_receipt(self.lock.connection(), id, key).await?;
                    decided.stored = stored.filter(|stored| stored.expires_at > self.now);
                }
                decided.answer = match decided.stored {
                    Some(stored) => stored.repeated_answer(amounts, decide::unchanged(&effective, self.now)),
                    None => decide::take(&mut effective, amounts, self.now),
                };
                decided.effective = Some(effective);
            }
        }
        Ok(decided)
    }

    /// Applies a decision. Brings the bucket to its effective limits even if nothing was taken.
    async fn take(&mut self, decided: DecidedRequest, request: &SqlRequest) -> Result<(), sqlx::Error> {
        let DecidedRequest { answer, amounts, place, effective, before, stored } = decided;
        let bucket = &mut self.buckets[place];
        let after = if stored.is_some() { before } else { effective.and_then(|effective| effective.row) };
        bucket.row = after.or_else(|| bucket.row.take());
        if let (Some(id), Some(grant), None) = (request.id(), answer.grant(amounts), stored) {
            let expires_at = answer.now.saturating_add(request.remember_for_ns());
            let stored = StoredReceipt { grant, state: State::Open, expires_at };
            rows::write_receipt(self.lock.connection(), id, bucket.key, &stored).await?;
        }
        Ok(())
    }

    /// Reverts a grant, because another bucket of the request denied.
    fn spare(&mut self, decided: DecidedRequest) -> BucketAnswer {
        let DecidedRequest { mut answer, place, before, .. } = decided;
        answer.spare(before.as_ref().map(|row| row.bucket));
        let bucket = &mut self.buckets[place];
        bucket.row = before.or_else(|| bucket.row.take());
        answer
    }

    /// Writes the buckets that have changed, and ends the transaction.
    async fn write(mut self) -> Result<(), sqlx::Error> {
        let (mut states, mut rows) = (Array::default(), Array::default());
        for LockedBucket { key, found, row, .. } in &self.buckets {
            match (found, row) {
                (Some(found), Some(row)) if found == row => {}
                (Some(found), Some(row)) if BucketRow { bucket: found.bucket, ..row.clone() } == *found => {
                    rows::push_state(&mut states, key, row);
                }
                (_, Some(row)) => rows::push(&mut rows, key, row),
                (_, None) => {}
            }
        }
        match (states.is_empty(), rows.is_empty()) {
            (true, true) => self.lock.close(&END_TRANSACTION, []).await,
            (true, false) => self.lock.close(&ROWS, [rows.into_text()]).await,
            (false, rest) => {
                if !rest {
                    rows::write_all(self.lock.connection(), rows).await?;
                }
                self.lock.close(&STATES, [states.into_text()]).await
            }
        }
    }

    /// Brings a bucket to its effective limits.
    fn rule(&self, place: usize, rule: &Rule) -> Result<EffectiveBucket, OutcomeCode> {
        let LockedBucket { over, row, .. } = &self.buckets[place];
        let plan = match rule {
            Rule::Plan(plan) => Some(plan),
            Rule::Provisioned => row.as_ref().and_then(|row| row.plan.as_deref()),
            Rule::Quota(_) | Rule::Window(_) | Rule::Limits(_) => None,
        };
        let plan = plan.and_then(|plan| self.plans.get(plan)).copied();
        decide::effective_bucket(row.clone(), rule, &KeySettings { all: self.all, plan, over: *over }, self.now)
    }

    /// A bucket, by its number among the keys.
    fn bucket(&mut self, number: i64) -> Result<&mut LockedBucket<'a>, sqlx::Error> {
        let place = usize::try_from(number).ok();
        let bucket = place.and_then(|place| self.buckets.get_mut(place));
        bucket.ok_or_else(|| sqlx::Error::Protocol(format!("the bucket {number}")))
    }

    /// Reads a row of `read.sql`.
    fn enter(&mut self, line: &ResultRow<'_>) -> Result<(), sqlx::Error> {
        match line.word(0) {
            "bucket" => {
                let bucket = self.bucket(line.number(1)?)?;
                bucket.found = Some(line.bucket().map_err(rows::unreadable(bucket.key))?);
                bucket.row.clone_from(&bucket.found);
            }
            "override" => {
                let bucket = self.bucket(line.number(1)?)?;
                bucket.over = Some(line.over().map_err(rows::unreadable(bucket.key))?);
            }
            "plan" => {
                let (name, plan) = line.plan()?;
                self.plans.insert(name, plan);
            }
            _ => self.all = line.setting().map_err(rows::unreadable_mode)?,
        }
        Ok(())
    }
}

impl DecidedRequest {
    /// Decides an equal request, after this one.
    fn repeat(&mut self) {
        if let Some(effective) = &mut self.effective {
            self.answer = decide::take(effective, self.amounts, self.answer.now);
        }
    }
}

/// The clock before a call of the database, which may have to wait for a lock.
#[derive(Clone, Copy)]
struct ClockReading {
    now: i64,
    /// The same instant on the host's clock, in milliseconds since 1970.
    at_ms: i64,
    /// For how many milliseconds the reading stays valid: as `now`, plus what has passed on the host's clock.
    good_for_ms: i64,
}

impl From<&HostClock> for ClockReading {
    fn from(clock: &HostClock) -> Self {
        if clock.is_the_hosts {
            let now = clock.now();
            return Self { now, at_ms: milliseconds(now), good_for_ms: MAX_LOCK_WAIT_MS };
        }
        // Before the caller's clock, which can stand still or run at any speed.
        let at_ms = milliseconds(SystemClock.now());
        Self { now: clock.now(), at_ms, good_for_ms: CALLERS_CLOCK_VALID_MS }
    }
}

fn milliseconds(nanoseconds: i64) -> i64 {
    nanoseconds / 1_000_000
}

/// How long a reading of the host's clock is valid: longer than a statement waits for the database.
const MAX_LOCK_WAIT_MS: i64 = 60_000;

/// How long a reading of the caller's clock is valid: at most the 2 ms that `take.sql` ignores.
const CALLERS_CLOCK_VALID_MS: i64 = 2;

const READ: Script = opening!("read.sql");
const ROWS: Script = closing!(include_str!("rows.sql"));
