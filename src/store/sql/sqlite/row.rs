use futures_util::TryStreamExt as _;
use sqlx::query::Query;
use sqlx::sqlite::{SqliteArguments, SqliteConnection, SqliteRow};
use sqlx::{Either, Executor as _, Row as _, Sqlite};

use super::super::admin::columns::{key, quota};
use super::super::ask::Ask;
use super::super::operations::{After, Read};
use super::json::{Array, Value};
use super::line::Line;
use super::reading::Reading;
use crate::admin::Filter;
use crate::model::bucket::{Bucket, NEVER_NS, Request};
use crate::model::decide::Row;
use crate::model::{Key, Quota};

/// A bucket, as take.sql and `take_all.sql` answer it.
pub(super) struct Found {
    /// If it is as a grant left it, the instant of that.
    pub(super) granted: Option<i64>,
    /// Whether more than its own terms rules it.
    pub(super) ruled: bool,
    pub(super) row: Row,
}

/// Runs take.sql with so much asked: the bucket after a grant, if there was one, or else the bucket as it is.
pub(super) async fn take(
    connection: &mut SqliteConnection,
    ask: &Ask,
    Request { cost, max_wait, keep }: Request,
    Reading { now, at_ms, good_for_ms }: Reading,
) -> Result<Option<Found>, sqlx::Error> {
    let query = sqlx::query(include_str!("take.sql"))
        .bind(ask.key().as_str())
        .bind(cost)
        .bind(keep)
        .bind(now)
        .bind(max_wait)
        .bind(at_ms)
        .bind(good_for_ms)
        .bind(ask.quota(0).map(Quota::capacity_i64))
        .bind(ask.quota(0).map(Quota::refill_ns))
        .bind(ask.quota(0).map(|quota| quota.refill().as_str()));
    let rows = of_first(connection, query).await?;
    let found = |columns: &SqliteRow| {
        Ok(Found { granted: columns.try_get(0)?, ruled: columns.try_get(1)?, row: read(columns, 2)? })
    };
    rows.first().map(found).transpose()
}

/// Runs `take_all.sql`: the buckets after a grant, if there was one, or else those that are there, as they are.
pub(super) async fn take_all(
    connection: &mut SqliteConnection,
    ask: &Ask,
    Reading { now, at_ms, good_for_ms }: Reading,
) -> Result<Vec<(String, Found)>, sqlx::Error> {
    let keys: Array = ask.take.keys().map(Key::as_str).collect();
    let (mut costs, mut keeps, mut quotas) = (Array::default(), Array::default(), Array::default());
    for place in 0..ask.take.limits.len() {
        let Request { cost, keep, .. } = ask.request_at(place);
        costs.push(cost.into());
        keeps.push(keep.into());
        let text =
            |quota: &Quota| format!("{} {} {}", quota.capacity_i64(), quota.refill_ns(), quota.refill().as_str());
        quotas.push(ask.quota(place).map(text).as_deref().into());
    }
    let query = sqlx::query(include_str!("take_all.sql"))
        .bind(keys.into_text())
        .bind(costs.into_text())
        .bind(keeps.into_text())
        .bind(now)
        .bind(ask.request.max_wait)
        .bind(at_ms)
        .bind(good_for_ms)
        .bind(quotas.into_text());
    let rows = of_first(connection, query).await?;
    let found = |columns: &SqliteRow| {
        let line = Line::from(columns.try_get::<&str, _>(1)?);
        let granted = if line.word(0) == "granted" { Some(line.number(1)?) } else { None };
        Ok((columns.try_get(0)?, Found { granted, ruled: line.word(0) == "ruled", row: line.row()? }))
    };
    rows.iter().map(found).collect()
}

/// The rows of the first statement that has any. What it has done is done: an error of the next one would have it done again.
async fn of_first(
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

/// A bucket to look at, unless it cannot be read.
pub(super) async fn peek(connection: &mut SqliteConnection, key: &Key) -> Result<Option<Read<Row>>, sqlx::Error> {
    Ok(columns(connection, key).await?.map(|columns| sound(read(&columns, 0)?)))
}

pub(super) async fn find(connection: &mut SqliteConnection, key: &Key) -> Result<Option<Row>, sqlx::Error> {
    columns(connection, key).await?.map(|columns| read(&columns, 0)).transpose()
}

async fn columns(connection: &mut SqliteConnection, key: &Key) -> Result<Option<SqliteRow>, sqlx::Error> {
    sqlx::query(
        "select anchor, full_at, granted, longest_wait, capacity, refill_ns, refill, provisioned, plan,
                over_capacity, over_refill_ns, over_refill
           from token_buckets where id = ?1",
    )
    .bind(key.as_str())
    .fetch_optional(connection)
    .await
}

/// A row whose figures overflow nothing that is computed from them.
fn sound(row: Row) -> Read<Row> {
    const MAX: i64 = i64::MAX / 2;
    let (terms, Bucket { anchor, full_at, granted, longest_wait }) = (row.terms(), row.bucket);
    let steps = i128::from(full_at).div_euclid(i128::from(terms.step_ticks.max(1))) + 1;
    let full_ns = steps * i128::from(terms.step_ns) + i128::from(anchor);
    let is_sound = (0..=MAX).contains(&anchor)
        && full_at >= -MAX
        && granted >= 0
        && longest_wait >= 0
        && (terms.step_ns == NEVER_NS || full_ns - i128::from(terms.step_ns) <= i128::from(i64::MAX));
    let unsound = || sqlx::Error::Protocol(format!("the state {:?}", row.bucket));
    if is_sound { Ok(row) } else { Err(unsound()) }
}

/// A page of buckets, in the order of their keys.
pub(super) async fn page(
    connection: &mut SqliteConnection,
    filter: &Filter,
    after: &After,
    limit: u32,
) -> Result<Vec<Read<(Key, Row)>>, sqlx::Error> {
    let (first, last) = filter.range();
    let rows = sqlx::query(
        "select id, anchor, full_at, granted, longest_wait, capacity, refill_ns, refill, provisioned, plan,
                over_capacity, over_refill_ns, over_refill
           from token_buckets
          where id > ?1 and id >= ?2 and (?3 is null or id <= ?3) and (?4 is null or plan = ?4) and (?5 is null or provisioned = ?5)
          order by id limit ?6 offset ?7",
    )
    .bind(after.key.as_ref().map_or("", Key::as_str))
    .bind(first)
    // Ids that are no UTF-8 come after every key.
    .bind(filter.prefix.is_some().then_some(last))
    .bind(filter.plan.as_ref().map(Key::as_str))
    .bind(filter.provisioned)
    .bind(limit)
    .bind(after.skip)
    .fetch_all(connection)
    .await?;
    Ok(rows.iter().map(|columns| Ok((key(columns.try_get(0)?)?, sound(read(columns, 1)?)?))).collect())
}

/// Writes the whole row.
pub(super) async fn write(connection: &mut SqliteConnection, key: &Key, row: &Row) -> Result<(), sqlx::Error> {
    let mut rows = Array::default();
    push(&mut rows, key, row);
    write_all(connection, rows).await
}

/// Writes whole rows.
pub(super) async fn write_all(connection: &mut SqliteConnection, rows: Array) -> Result<(), sqlx::Error> {
    sqlx::query(include_str!("rows.sql")).bind(rows.into_text()).execute(connection).await.map(drop)
}

/// Adds a row to those that rows.sql writes.
pub(super) fn push(rows: &mut Array, key: &Key, Row { own, over, plan, provisioned, bucket }: &Row) {
    rows.push_row(&[
        key.as_str().into(),
        bucket.anchor.into(),
        bucket.full_at.into(),
        bucket.granted.into(),
        bucket.longest_wait.into(),
        own.capacity_i64().into(),
        own.refill_ns().into(),
        own.refill().as_str().into(),
        (*provisioned).into(),
        plan.as_deref().map(Key::as_str).into(),
        over.as_deref().map(Quota::capacity_i64).into(),
        over.as_deref().map(Quota::refill_ns).into(),
        over.as_deref().map(|over| over.refill().as_str()).into(),
    ]);
}

/// Adds a row to those of which states.sql writes what requests change.
pub(super) fn push_state(states: &mut Array, key: &Key, Row { bucket, .. }: &Row) {
    let state = [bucket.anchor, bucket.full_at, bucket.granted, bucket.longest_wait].map(Value::from);
    let [anchor, full_at, granted, longest_wait] = state;
    states.push_row(&[key.as_str().into(), anchor, full_at, granted, longest_wait]);
}

/// The columns of a bucket, which begin at a place.
fn read(columns: &SqliteRow, first: usize) -> Result<Row, sqlx::Error> {
    let number = |place: usize| columns.try_get::<i64, _>(first + place);
    let plan: Option<String> = columns.try_get(first + 8)?;
    let over = match columns.try_get::<Option<i64>, _>(first + 9)? {
        Some(capacity) => Some(quota(capacity, number(10)?, columns.try_get(first + 11)?)?),
        None => None,
    };
    Ok(Row {
        own: quota(number(4)?, number(5)?, columns.try_get(first + 6)?)?,
        over: over.map(Box::new),
        plan: plan.map(key).transpose()?.map(Box::new),
        provisioned: columns.try_get(first + 7)?,
        bucket: Bucket { anchor: number(0)?, full_at: number(1)?, granted: number(2)?, longest_wait: number(3)? },
    })
}
