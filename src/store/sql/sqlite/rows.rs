//! The rows of buckets and of receipts, as SQLite reads and writes them.

use std::borrow::Cow;

use chrono::DateTime;
use sqlx::Row as _;
use sqlx::sqlite::{SqliteConnection, SqliteRow};
use uuid::Uuid;

use super::json::{Array, Value};
use super::lock::{Script, closing};
use crate::admin::Filter;
use crate::model::bucket::{Bucket, GrantRecord, NEVER_NS};
use crate::model::decide::{BucketRow, OverrideSettings, PlanSettings, State, StoredReceipt, TimedMode};
use crate::model::{Key, Quota};
use crate::store::sql::admin::{self, key, mode_setting, quota};
use crate::store::sql::dialect::{PageStart, RowResult};

/// The columns of a bucket, in the order of [`bucket_from_columns`].
macro_rules! bucket_columns {
    () => {
        "anchor, full_at, granted, max_granted_wait, capacity, refill_ns, refill, provisioned, plan,
                over_capacity, over_refill_ns, over_refill"
    };
}

/// Reads a bucket for an operator, with an inner error if its row cannot be decoded.
pub(super) async fn peek(
    connection: &mut SqliteConnection,
    key: &Key,
) -> Result<Option<RowResult<BucketRow>>, sqlx::Error> {
    Ok(columns(connection, key).await?.map(|columns| require_bounded(bucket_from_columns(&columns, 0)?)))
}

pub(super) async fn find(connection: &mut SqliteConnection, key: &Key) -> Result<Option<BucketRow>, sqlx::Error> {
    let found = columns(connection, key).await?;
    found.map(|columns| bucket_from_columns(&columns, 0)).transpose().map_err(unreadable(key))
}

/// Names the key of a row that cannot be decoded.
pub(super) fn unreadable(key: &Key) -> impl FnOnce(sqlx::Error) -> sqlx::Error {
    |why| sqlx::Error::Decode(Box::new(admin::unreadable(key, why)))
}

/// Names the table of the mode of every key, whose row cannot be decoded.
pub(super) fn unreadable_mode(why: sqlx::Error) -> sqlx::Error {
    match Key::try_from("token_mode") {
        Ok(table) => unreadable(&table)(why),
        Err(_) => why,
    }
}

async fn columns(connection: &mut SqliteConnection, key: &Key) -> Result<Option<SqliteRow>, sqlx::Error> {
    sqlx::query(concat!("select ", bucket_columns!(), " from token_buckets where id = ?1"))
        .bind(key.as_str())
        .fetch_optional(connection)
        .await
}

/// Rejects a row whose numbers would overflow a computation.
fn require_bounded(row: BucketRow) -> RowResult<BucketRow> {
    const MAX: i64 = i64::MAX / 2;
    let (limits, Bucket { anchor, full_at, granted, max_granted_wait }) = (row.limits(), row.bucket);
    let steps = i128::from(full_at).div_euclid(i128::from(limits.step_ticks.max(1))) + 1;
    let full_ns = steps * i128::from(limits.step_ns) + i128::from(anchor);
    let is_sound = (0..=MAX).contains(&anchor)
        && full_at >= -MAX
        && granted >= 0
        && max_granted_wait >= 0
        && (limits.step_ns == NEVER_NS || full_ns - i128::from(limits.step_ns) <= i128::from(i64::MAX));
    let unsound = || sqlx::Error::Protocol(format!("the state {:?}", row.bucket));
    if is_sound { Ok(row) } else { Err(unsound()) }
}

/// Reads a page of buckets, in the order of their keys.
pub(super) async fn page(
    connection: &mut SqliteConnection,
    filter: &Filter,
    after: &PageStart,
    limit: u32,
) -> Result<Vec<RowResult<(Key, BucketRow)>>, sqlx::Error> {
    let (first, last) = filter.range();
    let rows = sqlx::query(concat!(
        "select id, ",
        bucket_columns!(),
        " from token_buckets
          where id > ?1 and id >= ?2 and (?3 is null or id <= ?3) and (?4 is null or plan = ?4) and (?5 is null or provisioned = ?5)
          order by id limit ?6 offset ?7",
    ))
    .bind(after.key.as_ref().map_or("", Key::as_str))
    .bind(first)
    // Ids that are not UTF-8 sort after every key.
    .bind(filter.prefix.is_some().then_some(last))
    .bind(filter.plan.as_ref().map(Key::as_str))
    .bind(filter.provisioned)
    .bind(limit)
    .bind(after.skip)
    .fetch_all(connection)
    .await?;
    Ok(rows
        .iter()
        .map(|columns| Ok((key(columns.try_get(0)?)?, require_bounded(bucket_from_columns(columns, 1)?)?)))
        .collect())
}

/// Writes a whole bucket.
pub(super) async fn write(connection: &mut SqliteConnection, key: &Key, row: &BucketRow) -> Result<(), sqlx::Error> {
    let mut rows = Array::default();
    push(&mut rows, key, row);
    write_all(connection, rows).await
}

/// Writes whole buckets.
pub(super) async fn write_all(connection: &mut SqliteConnection, rows: Array) -> Result<(), sqlx::Error> {
    sqlx::query(include_str!("rows.sql")).bind(rows.into_text()).execute(connection).await.map(drop)
}

/// Adds a bucket to those that `rows.sql` writes.
pub(super) fn push(rows: &mut Array, key: &Key, row: &BucketRow) {
    let BucketRow { own_quota, over, plan, provisioned, bucket } = row;
    rows.push_row(&[
        key.as_str().into(),
        bucket.anchor.into(),
        bucket.full_at.into(),
        bucket.granted.into(),
        bucket.max_granted_wait.into(),
        own_quota.capacity_i64().into(),
        own_quota.refill_ns().into(),
        own_quota.refill().column().as_ref().into(),
        (*provisioned).into(),
        plan.as_deref().map(Key::as_str).into(),
        over.as_deref().map(Quota::capacity_i64).into(),
        over.as_deref().map(Quota::refill_ns).into(),
        over.as_deref().map(|over| over.refill().column()).as_deref().into(),
        period_end(row).into(),
    ]);
}

/// Adds the state of a bucket to those that [`STATES`] writes.
pub(super) fn push_state(states: &mut Array, key: &Key, row: &BucketRow) {
    let bucket = &row.bucket;
    let state = [bucket.anchor, bucket.full_at, bucket.granted, bucket.max_granted_wait].map(Value::from);
    let [anchor, full_at, granted, max_granted_wait] = state;
    states.push_row(&[key.as_str().into(), anchor, full_at, granted, max_granted_wait, period_end(row).into()]);
}

/// Adds the state of a bucket to those that [`ADJUSTED_STATES`] writes.
pub(super) fn push_adjusted_state(states: &mut Array, key: &Key, row: &BucketRow, usage: UsageChange) {
    let bucket = &row.bucket;
    let state = [bucket.anchor, bucket.full_at, bucket.granted, bucket.max_granted_wait].map(Value::from);
    let [anchor, full_at, granted, max_granted_wait] = state;
    let [recorded, charged, refunded] = [usage.recorded, usage.charged, usage.refunded].map(Value::from);
    let end = period_end(row).into();
    let id = key.as_str().into();
    states.push_row(&[id, anchor, full_at, granted, max_granted_wait, end, recorded, charged, refunded]);
}

/// The tokens that adjustments add to the columns of usage.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct UsageChange {
    /// The part that they added to `granted`: no request took these tokens.
    pub(super) recorded: i64,
    pub(super) charged: i64,
    pub(super) refunded: i64,
}

/// The end of the calendar period of a bucket, for the views and the sweep.
fn period_end(row: &BucketRow) -> Option<i64> {
    Some(row.limits().period_end).filter(|end| *end != NEVER_NS)
}

/// Reads a bucket from the columns of `bucket_columns!`, which begin at `first`.
pub(super) fn bucket_from_columns(columns: &SqliteRow, first: usize) -> Result<BucketRow, sqlx::Error> {
    let number = |place: usize| columns.try_get::<i64, _>(first + place);
    let plan: Option<String> = columns.try_get(first + 8)?;
    let over = match columns.try_get::<Option<i64>, _>(first + 9)? {
        Some(capacity) => Some(quota(capacity, number(10)?, columns.try_get(first + 11)?)?),
        None => None,
    };
    Ok(BucketRow {
        own_quota: quota(number(4)?, number(5)?, columns.try_get(first + 6)?)?,
        over: over.map(Box::new),
        plan: plan.map(key).transpose()?.map(Box::new),
        provisioned: columns.try_get(first + 7)?,
        bucket: Bucket { anchor: number(0)?, full_at: number(1)?, granted: number(2)?, max_granted_wait: number(3)? },
    })
}

/// Writes what requests took from buckets that exist, with unchanged limits, and ends the transaction. The
/// argument is a JSON array of arrays: key, `anchor`, `full_at`, `granted`, `max_granted_wait`, `period_end`.
///
/// The statement is not an update from a join, because the planner can scan all buckets for a join if its statistics say
/// that there are few. Every id exists, so the limits in the statement are placeholders.
pub(super) const STATES: Script = closing!(
    "insert into token_buckets (id, anchor, full_at, granted, max_granted_wait, period_end, capacity, refill_seconds)
     select value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, 1, 1
       from json_each(?1)
      where true
         on conflict (id) do update
        set anchor = excluded.anchor, full_at = excluded.full_at, granted = excluded.granted,
            max_granted_wait = excluded.max_granted_wait, period_end = excluded.period_end;"
);

/// Writes what adjustments changed, and ends the transaction. The argument has the columns of that of [`STATES`], then what to add to
/// `recorded`, `charged` and `refunded`.
pub(super) const ADJUSTED_STATES: Script = closing!(
    "insert into token_buckets (id, anchor, full_at, granted, max_granted_wait, period_end, recorded, charged, refunded,
                                capacity, refill_seconds)
     select value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, value ->> 6, value ->> 7, value ->> 8,
            1, 1
       from json_each(?1)
      where true
         on conflict (id) do update
        set anchor = excluded.anchor, full_at = excluded.full_at, granted = excluded.granted,
            max_granted_wait = excluded.max_granted_wait, period_end = excluded.period_end,
            recorded = max(recorded, -4611686018427387904 - min(excluded.recorded, 0)) + excluded.recorded,
            charged = min(charged, 4611686018427387903 - excluded.charged) + excluded.charged,
            refunded = min(refunded, 4611686018427387903 - excluded.refunded) + excluded.refunded;"
);

/// Reads the receipt of a request.
pub(super) async fn find_receipt(
    connection: &mut SqliteConnection,
    id: Uuid,
    key: &Key,
) -> Result<Option<StoredReceipt>, sqlx::Error> {
    let found: Option<(i64, i64, i64, String, i64)> = sqlx::query_as(
        "select cost, granted, scheduled_at, state, expires_at from token_receipts where id = ?1 and bucket = ?2",
    )
    .bind(id.hyphenated().to_string())
    .bind(key.as_str())
    .fetch_optional(connection)
    .await?;
    found
        .map(|(cost, granted, scheduled_at, state, expires_at)| {
            stored_receipt(cost, granted, scheduled_at, &state, expires_at)
        })
        .transpose()
        .map_err(unreadable(key))
}

/// Reads a receipt from a row of `adjust.sql`.
pub(super) fn receipt_from_line(line: &ResultRow<'_>) -> Result<StoredReceipt, sqlx::Error> {
    stored_receipt(line.number(2)?, line.number(3)?, line.number(4)?, line.word(5), line.number(6)?)
}

fn stored_receipt(
    cost: i64,
    granted: i64,
    scheduled_at: i64,
    state: &str,
    expires_at: i64,
) -> Result<StoredReceipt, sqlx::Error> {
    let state = State::parse(state).ok_or_else(|| sqlx::Error::Protocol(format!("the state {state:?}")))?;
    Ok(StoredReceipt { grant: GrantRecord { cost, granted, scheduled_at }, state, expires_at })
}

/// Writes a receipt.
pub(super) async fn write_receipt(
    connection: &mut SqliteConnection,
    id: Uuid,
    key: &Key,
    receipt: &StoredReceipt,
) -> Result<(), sqlx::Error> {
    let mut receipts = Array::default();
    push_receipt(&mut receipts, id, key, receipt);
    write_receipts(connection, receipts).await
}

/// Writes receipts. The argument of the statement is an array of arrays, one for each [`push_receipt`].
pub(super) async fn write_receipts(connection: &mut SqliteConnection, receipts: Array) -> Result<(), sqlx::Error> {
    sqlx::query(
        "insert into token_receipts (id, bucket, cost, granted, scheduled_at, state, expires_at)
         select value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, value ->> 6
           from json_each(?1)
          where true
             on conflict (id, bucket) do update
            set cost = excluded.cost, granted = excluded.granted, scheduled_at = excluded.scheduled_at, state = excluded.state,
                expires_at = excluded.expires_at",
    )
    .bind(receipts.into_text())
    .execute(connection)
    .await
    .map(drop)
}

/// Adds a receipt to those that [`write_receipts`] writes.
pub(super) fn push_receipt(
    receipts: &mut Array,
    id: Uuid,
    key: &Key,
    StoredReceipt { grant, state, expires_at }: &StoredReceipt,
) {
    receipts.push_row(&[
        id.hyphenated().to_string().as_str().into(),
        key.as_str().into(),
        grant.cost.into(),
        grant.granted.into(),
        grant.scheduled_at.into(),
        state.as_str().into(),
        (*expires_at).into(),
    ]);
}

/// A row of `read.sql` or `adjust.sql`: one text, in which spaces separate the columns.
pub(super) struct ResultRow<'a>([&'a str; 14]);

impl<'a> From<&'a str> for ResultRow<'a> {
    fn from(text: &'a str) -> Self {
        let mut words = [""; 14];
        words.iter_mut().zip(text.split(' ')).for_each(|(word, text)| *word = text);
        Self(words)
    }
}

impl<'a> ResultRow<'a> {
    pub(super) fn word(&self, place: usize) -> &'a str {
        self.0[place]
    }

    pub(super) fn number(&self, place: usize) -> Result<i64, sqlx::Error> {
        self.0[place].parse().map_err(|error| sqlx::Error::Decode(Box::new(error)))
    }

    /// A bucket.
    pub(super) fn bucket(&self) -> Result<BucketRow, sqlx::Error> {
        let over = match self.0[11] {
            "" => None,
            _ => Some(quota(self.number(11)?, self.number(12)?, &self.refill(13))?),
        };
        Ok(BucketRow {
            own_quota: self.quota()?,
            over: over.map(Box::new),
            plan: if self.0[10].is_empty() { None } else { Some(Box::new(self.name()?)) },
            provisioned: self.number(9)? != 0,
            bucket: Bucket {
                anchor: self.number(2)?,
                full_at: self.number(3)?,
                granted: self.number(4)?,
                max_granted_wait: self.number(5)?,
            },
        })
    }

    /// A plan, and its name.
    pub(super) fn plan(&self) -> Result<(Key, PlanSettings), sqlx::Error> {
        Ok((self.name()?, PlanSettings { quota: self.quota()?, setting: self.setting()? }))
    }

    /// A key's override.
    pub(super) fn over(&self) -> Result<OverrideSettings, sqlx::Error> {
        let quota = if self.0[6].is_empty() { None } else { Some(self.quota()?) };
        Ok(OverrideSettings { quota, setting: self.setting()? })
    }

    /// A mode, if one is set, and its end. The end of an override is also that of its quota.
    pub(super) fn setting(&self) -> Result<TimedMode, sqlx::Error> {
        let until = if self.0[2].is_empty() { None } else { DateTime::from_timestamp_millis(self.number(2)?) };
        let mode = Some(self.0[13]).filter(|word| !word.is_empty()).map(str::to_owned);
        Ok(TimedMode::new(mode_setting((mode, None, None))?.map(|setting| setting.mode), until))
    }

    fn refill(&self, place: usize) -> Cow<'a, str> {
        let text = self.0[place];
        if text.contains('|') { text.replace('|', " ").into() } else { text.into() }
    }

    fn quota(&self) -> Result<Quota, sqlx::Error> {
        quota(self.number(6)?, self.number(7)?, &self.refill(8))
    }

    fn name(&self) -> Result<Key, sqlx::Error> {
        let digits = self.0[10].as_bytes().chunks(2).map(|pair| {
            let pair = std::str::from_utf8(pair).ok();
            pair.and_then(|pair| u8::from_str_radix(pair, 16).ok())
        });
        let bytes: Option<Vec<u8>> = digits.collect();
        let name = bytes.and_then(|bytes| String::from_utf8(bytes).ok());
        key(name.ok_or_else(|| sqlx::Error::Protocol(format!("the name {:?}", self.0[10])))?)
    }
}
