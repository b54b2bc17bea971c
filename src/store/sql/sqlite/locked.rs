use std::collections::HashMap;

use foldhash::fast::RandomState;
use sqlx::Row as _;
use sqlx::sqlite::SqliteConnection;

use super::super::ask::Ask;
use super::json::Array;
use super::line::Line;
use super::lock::{Lock, Script, closing, opening};
use super::{HostClock, receipts, row};
use crate::model::answer::{Answer, Word};
use crate::model::bucket::Request;
use crate::model::decide;
use crate::model::decide::{Held, Override, Plan, Row, Ruled, Rules, Setting, State};
use crate::model::{Key, Limit, Mode, Rule};

/// The buckets of a call and everything that rules them, while the transaction holds the database: read at once, decided
/// in memory, and written at once.
pub(super) struct Locked<'c, 'a> {
    lock: Lock<'c>,
    now: i64,
    all: Setting,
    plans: HashMap<Key, Plan, RandomState>,
    places: HashMap<&'a Key, usize, RandomState>,
    buckets: Vec<Bucket<'a>>,
}

struct Bucket<'a> {
    key: &'a Key,
    over: Option<Override>,
    /// As it was read, and as it is to be.
    found: Option<Row>,
    row: Option<Row>,
}

/// What a request comes to, for one of its buckets. Nothing is taken yet.
pub(super) struct Decided {
    pub(super) answer: Answer,
    request: Request,
    place: usize,
    ruled: Option<Ruled>,
    /// What the bucket was under the terms that rule now, before anything was taken.
    before: Option<Row>,
    held: Option<Held>,
}

impl<'c, 'a> Locked<'c, 'a> {
    /// Reads everything that decides requests. The clock is read when the database is held.
    pub(super) async fn read(
        connection: &'c mut SqliteConnection,
        limits: impl Iterator<Item = &'a Limit>,
        clock: &HostClock,
    ) -> Result<Self, sqlx::Error> {
        let (mut places, mut buckets) = (HashMap::default(), Vec::new());
        let (mut named, mut following) = (Array::default(), Array::default());
        for Limit { key, rule, .. } in limits {
            places.entry(key).or_insert_with(|| {
                buckets.push(Bucket { key, over: None, found: None, row: None });
                buckets.len() - 1
            });
            match rule {
                Rule::Plan(plan) => named.push(plan.as_str().into()),
                Rule::Provisioned => following.push(key.as_str().into()),
                Rule::Quota(_) | Rule::Window(_) => {}
            }
        }
        let keys: Array = buckets.iter().map(|bucket| bucket.key.as_str()).collect();
        let arguments = [keys.into_text(), named.into_text(), following.into_text()];
        let (lock, rows) = Lock::open(connection, &READ, arguments).await?;
        let (all, plans) = (Setting::default(), HashMap::default());
        let mut locked = Self { lock, now: clock.now(), all, plans, places, buckets };
        if let Some(text) = rows.first().map(|row| row.try_get::<Option<&str>, _>(0)).transpose()?.flatten() {
            text.split(',').try_for_each(|line| locked.enter(&Line::from(line)))?;
        }
        Ok(locked)
    }

    /// Decides a request for the bucket at one of its places.
    pub(super) async fn decide(&mut self, ask: &Ask, place: usize) -> Result<Decided, sqlx::Error> {
        let Limit { key, rule, .. } = &ask.take.limits[place];
        let request = ask.request_at(place);
        let place = self.places[key];
        let refused = Answer::refused(Word::Unknown, self.now);
        let mut decided = Decided { answer: refused, request, place, ruled: None, before: None, held: None };
        match self.rule(place, rule) {
            Err(word) => decided.answer.word = word,
            Ok(mut ruled) => {
                decided.before = ruled.untaken(request, self.now);
                if let (Some(id), true) = (ask.id(), ruled.mode != Mode::Off) {
                    let held = receipts::find(self.lock.connection(), id, key).await?;
                    decided.held = held.filter(|held| held.expires_at > self.now);
                }
                decided.answer = match decided.held {
                    Some(held) => held.again(request, decide::look(&ruled, self.now)),
                    None => decide::take(&mut ruled, request, self.now),
                };
                decided.ruled = Some(ruled);
            }
        }
        Ok(decided)
    }

    /// Enters what was decided, and what rules the bucket now even if nothing was taken.
    pub(super) async fn take(&mut self, decided: Decided, ask: &Ask) -> Result<(), sqlx::Error> {
        let Decided { answer, request, place, ruled, before, held } = decided;
        let bucket = &mut self.buckets[place];
        let after = if held.is_some() { before } else { ruled.and_then(|ruled| ruled.row) };
        bucket.row = after.or_else(|| bucket.row.take());
        if let (Some(id), Some(receipt), None) = (ask.id(), answer.receipt(request), held) {
            let expires_at = answer.now.saturating_add(ask.hold());
            let held = Held { receipt, state: State::Open, expires_at };
            receipts::write(self.lock.connection(), id, bucket.key, &held).await?;
        }
        Ok(())
    }

    /// Takes nothing after all, because another bucket denied.
    pub(super) fn spare(&mut self, decided: Decided) -> Answer {
        let Decided { mut answer, place, before, .. } = decided;
        answer.spare(before.as_ref().map(|row| row.bucket));
        let bucket = &mut self.buckets[place];
        bucket.row = before.or_else(|| bucket.row.take());
        answer
    }

    /// Writes the buckets that are not as they were, and lets go of the database.
    pub(super) async fn write(mut self) -> Result<(), sqlx::Error> {
        let (mut states, mut rows) = (Array::default(), Array::default());
        for Bucket { key, found, row, .. } in &self.buckets {
            match (found, row) {
                (Some(found), Some(row)) if found == row => {}
                (Some(found), Some(row)) if Row { bucket: found.bucket, ..row.clone() } == *found => {
                    row::push_state(&mut states, key, row);
                }
                (_, Some(row)) => row::push(&mut rows, key, row),
                (_, None) => {}
            }
        }
        match (states.is_empty(), rows.is_empty()) {
            (true, true) => self.lock.close(&NOTHING, []).await,
            (true, false) => self.lock.close(&ROWS, [rows.into_text()]).await,
            (false, rest) => {
                if !rest {
                    row::write_all(self.lock.connection(), rows).await?;
                }
                self.lock.close(&STATES, [states.into_text()]).await
            }
        }
    }

    /// Brings a bucket to the terms that rule now.
    fn rule(&self, place: usize, rule: &Rule) -> Result<Ruled, Word> {
        let Bucket { over, row, .. } = &self.buckets[place];
        let plan = match rule {
            Rule::Plan(plan) => Some(plan),
            Rule::Provisioned => row.as_ref().and_then(|row| row.plan.as_deref()),
            Rule::Quota(_) | Rule::Window(_) => None,
        };
        let plan = plan.and_then(|plan| self.plans.get(plan)).copied();
        decide::rule(row.clone(), rule, &Rules { all: self.all, plan, over: *over }, self.now)
    }

    /// A bucket, by its number among the keys.
    fn bucket(&mut self, number: i64) -> Result<&mut Bucket<'a>, sqlx::Error> {
        let place = usize::try_from(number).ok();
        let bucket = place.and_then(|place| self.buckets.get_mut(place));
        bucket.ok_or_else(|| sqlx::Error::Protocol(format!("the bucket {number}")))
    }

    /// Enters a row of read.sql.
    fn enter(&mut self, line: &Line<'_>) -> Result<(), sqlx::Error> {
        match line.word(0) {
            "bucket" => {
                let bucket = self.bucket(line.number(1)?)?;
                bucket.found = Some(line.row()?);
                bucket.row.clone_from(&bucket.found);
            }
            "override" => self.bucket(line.number(1)?)?.over = Some(line.over()?),
            "plan" => {
                let (name, plan) = line.plan()?;
                self.plans.insert(name, plan);
            }
            _ => self.all = line.setting()?,
        }
        Ok(())
    }
}

impl Decided {
    /// Decides an equal request, after this one.
    pub(super) fn again(&mut self) {
        if let Some(ruled) = &mut self.ruled {
            self.answer = decide::take(ruled, self.request, self.answer.now);
        }
    }
}

const READ: Script = opening!("read.sql");
const STATES: Script = closing!("states.sql");
const ROWS: Script = closing!("rows.sql");
const NOTHING: Script = closing!();
