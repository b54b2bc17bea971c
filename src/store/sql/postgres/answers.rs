//! What routines answer that decide several requests: those that came to the same in one row, of arrays.

use sqlx::postgres::PgRow;
use sqlx::{FromRow, Row};

use crate::model::answer::Answer;
use crate::store::sql::columns;
use crate::store::sql::columns::Entry;

/// `answers_v1`: `burst`, `step_ns`, `step_ticks` and `token_ticks` may have one element for all.
pub(super) struct Answers {
    entries: Vec<i64>,
    times: Vec<i64>,
    outcome: String,
    mode: Option<String>,
    now: Vec<i64>,
    acts_at: Option<Vec<Option<i64>>>,
    state: [Vec<Option<i64>>; 7],
}

impl<'r> FromRow<'r, PgRow> for Answers {
    fn from_row(row: &'r PgRow) -> Result<Self, sqlx::Error> {
        Ok(Self {
            entries: row.try_get("entries")?,
            times: row.try_get("times")?,
            outcome: row.try_get("outcome")?,
            mode: row.try_get("mode")?,
            now: row.try_get("now")?,
            acts_at: row.try_get("acts_at")?,
            state: [
                row.try_get("full_at")?,
                row.try_get("granted")?,
                row.try_get("burst")?,
                row.try_get("anchor")?,
                row.try_get("step_ns")?,
                row.try_get("step_ticks")?,
                row.try_get("token_ticks")?,
            ],
        })
    }
}

impl Answers {
    /// What each request came to, in their order.
    pub(super) fn entries(self) -> Result<impl Iterator<Item = Entry>, sqlx::Error> {
        let length = self.entries.len();
        let lengths = [self.times.len(), self.now.len(), self.acts_at.as_ref().map_or(length, Vec::len)];
        let [full_at, granted, burst, anchor, step_ns, step_ticks, token_ticks] = self.state.each_ref().map(Vec::len);
        let lengths = lengths.into_iter().chain([full_at, granted, anchor]).all(|other| other == length);
        let terms = [burst, step_ns, step_ticks, token_ticks].into_iter().all(|other| other == length || other == 1);
        if !(lengths && terms) {
            return Err(sqlx::Error::Protocol(format!("answers to {length} requests, of different lengths")));
        }
        let all = columns::answer(&self.outcome, self.mode.as_deref())?;
        Ok((0..length).map(move |place| {
            let state = self.state.each_ref().map(|column| column[place.min(column.len() - 1)]);
            let now = self.now[place];
            let acts_at = self.acts_at.as_ref().map_or(Some(now), |acts_at| acts_at[place]);
            let answer = Answer { now, acts_at, capacity: state[2], state: columns::parse_state(state), ..all };
            Entry { request: self.entries[place], times: self.times[place], answer }
        }))
    }
}

/// The same of several rows.
pub(super) fn entries(rows: Vec<Answers>) -> Result<Vec<Entry>, sqlx::Error> {
    let mut entries = Vec::with_capacity(rows.iter().map(|row| row.entries.len()).sum());
    for row in rows {
        entries.extend(row.entries()?);
    }
    Ok(entries)
}
