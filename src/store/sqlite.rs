use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use sqlx::error::DatabaseError;
use sqlx::sqlite::{Sqlite, SqliteConnection};
use sqlx::{Connection, SqlStr, SqlitePool, Transaction};

use super::answer::AdjustedColumns;
use super::ask::Ask;
use super::call::Counting;
use super::dialect::Dialect;
use super::isolation::Isolation;
use super::sql::SqlStore;
use crate::answer::{Answer, Word};
use crate::book::{self, Held, Row, Ruled, Rules, State};
use crate::retry::Class;
use crate::{Adjusted, Adjustment, Clock, Counted, Key, Mode, Rule, SystemClock};

mod admin;
mod plans;
mod receipts;
mod row;
mod rules;
mod sweep;
mod times;
mod windows;

/// Buckets in a SQLite file, shared by the processes of one host, at the host's clock.
pub type SqliteStore = SqlStore<Sqlite>;

impl SqliteStore {
    /// A store on a clock of the caller's: for tests.
    pub fn with_clock(pool: SqlitePool, clock: impl Clock) -> Self {
        Self::with(pool, HostClock(Arc::new(clock)))
    }
}

impl Dialect for Sqlite {
    const ONE_STATEMENT: bool = false;

    fn begin(_: Isolation) -> Option<SqlStr> {
        None
    }

    async fn take(
        connection: &mut SqliteConnection,
        asks: &[Ask],
        clock: &HostClock,
    ) -> Result<Vec<Answer>, sqlx::Error> {
        if let [ask @ Ask { times: 1, .. }] = asks
            && let Some(answer) = take_now(connection, ask, clock).await?
        {
            return Ok(vec![answer]);
        }
        let mut transaction = begin(connection).await?;
        let mut answers = Vec::with_capacity(asks.len());
        for ask in asks {
            for _ in 0..ask.times {
                let mut locked = Locked::new(&mut transaction, ask, 0, clock.now()).await?;
                locked.take(&mut transaction, ask).await?;
                answers.push(locked.answer);
            }
        }
        transaction.commit().await?;
        Ok(answers)
    }

    async fn take_all(
        connection: &mut SqliteConnection,
        ask: &Ask,
        clock: &HostClock,
    ) -> Result<Vec<Answer>, sqlx::Error> {
        let mut transaction = begin(connection).await?;
        let now = clock.now();
        let mut buckets = Vec::new();
        for place in 0..ask.take.limits.len() {
            buckets.push(Locked::new(&mut transaction, ask, place, now).await?);
        }
        let all = buckets.iter().all(|locked| locked.answer.word == Word::Granted);
        let mut answers = Vec::new();
        for mut locked in buckets {
            if !all && locked.answer.word == Word::Granted {
                locked.spare(&mut transaction).await?;
            } else {
                locked.take(&mut transaction, ask).await?;
            }
            answers.push(locked.answer);
        }
        transaction.commit().await?;
        Ok(answers)
    }

    async fn take_window(
        connection: &mut SqliteConnection,
        ask: &Ask,
        counting: Counting,
        clock: &HostClock,
    ) -> Result<Counted, sqlx::Error> {
        let mut transaction = begin(connection).await?;
        let counted = windows::take(&mut transaction, ask, counting, clock.now()).await?;
        transaction.commit().await?;
        Ok(counted)
    }

    async fn adjust(
        connection: &mut SqliteConnection,
        Adjustment { receipt, kind }: &Adjustment,
        clock: &HostClock,
    ) -> Result<AdjustedColumns, sqlx::Error> {
        let mut transaction = begin(connection).await?;
        if receipt.window {
            let of = receipt.key.of_window();
            let held = receipts::find(&mut transaction, receipt.id, &of).await?;
            let mut row = windows::find(&mut transaction, &receipt.key).await?;
            let (adjusted, held) = book::adjust(*kind, receipt.taken, held, row.as_mut(), clock.now());
            if let (Some(held), Some(row)) = (held, row) {
                receipts::write(&mut transaction, receipt.id, &of, &held).await?;
                windows::write(&mut transaction, &receipt.key, &row).await?;
            }
            transaction.commit().await?;
            return Ok(columns(adjusted));
        }
        let held = receipts::find(&mut transaction, receipt.id, &receipt.key).await?;
        let mut row = row::find(&mut transaction, &receipt.key).await?;
        let (adjusted, held) = book::adjust(*kind, receipt.taken, held, row.as_mut(), clock.now());
        if let (Some(held), Some(row)) = (held, row) {
            receipts::write(&mut transaction, receipt.id, &receipt.key, &held).await?;
            row::write(&mut transaction, &receipt.key, &row).await?;
        }
        transaction.commit().await?;
        Ok(columns(adjusted))
    }

    fn classify(error: &dyn DatabaseError) -> Class {
        // Extended result codes carry the primary one in their lowest byte.
        match error.code().and_then(|code| code.parse::<i32>().ok()).map(|code| code & 0xff) {
            Some(SQLITE_BUSY | SQLITE_LOCKED) => Class::RolledBack,
            Some(SQLITE_ERROR) if error.message().contains("no such table") => Class::NotMigrated,
            Some(SQLITE_READONLY) => Class::NotPermitted,
            Some(SQLITE_IOERR) => Class::Unknown,
            _ => Class::Refused,
        }
    }

    async fn clean_up(_: &mut SqliteConnection) -> Result<(), sqlx::Error> {
        Ok(())
    }
}

/// The clock that decides in a SQLite file.
#[derive(Clone)]
pub struct HostClock(Arc<dyn Clock>);

impl HostClock {
    fn now(&self) -> i64 {
        self.0.now()
    }
}

impl Default for HostClock {
    fn default() -> Self {
        Self(Arc::new(SystemClock))
    }
}

impl std::fmt::Debug for HostClock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HostClock")
    }
}

/// Decides without a transaction, if it is a plain grant or denial by the bucket's own terms: a denial waits for no
/// lock.
async fn take_now(
    connection: &mut SqliteConnection,
    ask: &Ask,
    clock: &HostClock,
) -> Result<Option<Answer>, sqlx::Error> {
    if ask.plan(0).is_some() || ask.id().is_some() {
        return Ok(None);
    }
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now = clock.now();
    let Some(found) = row::take(connection, ask, now, i64::try_from(since.as_millis()).unwrap_or(0)).await? else {
        return Ok(None);
    };
    let row = found.row;
    let terms = row.terms();
    if found.granted {
        let due = row.bucket.full_at + ask.request.keep * terms.token_ticks - terms.burst();
        let there = due <= terms.clock(row.bucket.anchor, now);
        let acts_at = if there { now } else { terms.instant(row.bucket.anchor, due).max(now) };
        let answer = Answer::granted(now, acts_at, terms, row.bucket);
        return Ok(Some(answer));
    }
    let now = clock.now();
    let own = ask.quota(0).is_none_or(|quota| *quota == row.own);
    if found.ruled || row.plan.is_some() || row.over.is_some() || !own || row.bucket.stepped_back(&terms, now) {
        return Ok(None);
    }
    let mut ruled = Ruled { row: Some(row), mode: Mode::Enforce, until: None, capacity: None };
    let answer = book::take(&mut ruled, ask.request, now);
    Ok((answer.word != Word::Granted).then_some(answer))
}

/// Locks the database; in a transaction of the caller's, as soon as something is written.
async fn begin(connection: &mut SqliteConnection) -> Result<Transaction<'_, Sqlite>, sqlx::Error> {
    if connection.is_in_transaction() {
        connection.begin().await
    } else {
        connection.begin_with("begin immediate").await
    }
}

/// What became of an adjustment, in the routines' words.
fn columns(adjusted: Result<Adjusted, Word>) -> AdjustedColumns {
    match adjusted {
        Ok(Adjusted::Done(tokens)) => ("done".into(), tokens),
        Ok(Adjusted::Late) => ("late".into(), 0),
        Ok(Adjusted::Repeated) => ("repeated".into(), 0),
        Err(_) => ("unknown".into(), 0),
    }
}

/// One bucket of a request, while the transaction holds the database.
struct Locked {
    key: Key,
    ruled: Option<Ruled>,
    /// What the bucket was under the terms that rule now, before anything was taken.
    before: Option<Row>,
    found: Option<Row>,
    held: Option<Held>,
    answer: Answer,
}

impl Locked {
    /// Reads everything that decides, and decides. Nothing is written yet.
    async fn new(connection: &mut SqliteConnection, ask: &Ask, place: usize, now: i64) -> Result<Self, sqlx::Error> {
        let (key, rule) = &ask.take.limits[place];
        let found = row::find(connection, key).await?;
        let plan = match rule {
            Rule::Plan(plan) => Some(plan),
            Rule::Provisioned => found.as_ref().and_then(|row| row.plan.as_ref()),
            Rule::Quota(_) | Rule::Window(_) => None,
        };
        let chosen = Rules::from(&rules::find(connection, key, plan).await?);
        let held = match ask.id() {
            Some(id) => receipts::find(connection, id, key).await?.filter(|held| held.expires_at > now),
            None => None,
        };
        let mut locked = Self {
            key: key.clone(),
            ruled: None,
            before: None,
            found,
            held,
            answer: Answer::refused(Word::Unknown, now),
        };
        match book::rule(locked.found.clone(), rule, &chosen, now) {
            Err(word) => locked.answer.word = word,
            Ok(mut ruled) => {
                locked.before.clone_from(&ruled.row);
                locked.held = held.filter(|_| ruled.mode != Mode::Off);
                locked.answer = match locked.held {
                    Some(held) => held.again(ask.request, book::look(&ruled, now)),
                    None => book::take(&mut ruled, ask.request, now),
                };
                locked.ruled = Some(ruled);
            }
        }
        Ok(locked)
    }

    /// Writes what was decided, and what rules the bucket now even if nothing was taken.
    async fn take(&mut self, connection: &mut SqliteConnection, ask: &Ask) -> Result<(), sqlx::Error> {
        let decided = self.ruled.as_ref().and_then(|ruled| ruled.row.as_ref());
        let row = if self.held.is_some() { self.before.as_ref() } else { decided };
        if let Some(row) = row
            && self.found.as_ref() != Some(row)
        {
            row::write(connection, &self.key, row).await?;
        }
        if let (Some(id), Some(receipt), None) = (ask.id(), self.answer.receipt(ask.request), self.held) {
            let expires_at = self.answer.now.saturating_add(ask.hold());
            let held = Held { receipt, state: State::Open, expires_at };
            receipts::write(connection, id, &self.key, &held).await?;
        }
        Ok(())
    }

    /// Takes nothing after all, because another bucket denied.
    async fn spare(&mut self, connection: &mut SqliteConnection) -> Result<(), sqlx::Error> {
        self.answer.spare(self.before.as_ref().map(|row| row.bucket));
        match &self.before {
            Some(before) if self.found.as_ref() != Some(before) => row::write(connection, &self.key, before).await,
            _ => Ok(()),
        }
    }
}

const SQLITE_ERROR: i32 = 1;
const SQLITE_BUSY: i32 = 5;
const SQLITE_LOCKED: i32 = 6;
const SQLITE_READONLY: i32 = 8;
const SQLITE_IOERR: i32 = 10;
