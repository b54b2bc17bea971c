//! The rows of sliding windows, as SQLite reads and writes them, and their decisions.

use std::fmt::Write as _;

use sqlx::FromRow as _;
use sqlx::sqlite::{SqliteConnection, SqliteRow};

use super::json::Array;
use super::rows::{self, ResultRow};
use super::rules;
use crate::admin::Filter;
use crate::model::answer::OutcomeCode;
use crate::model::bucket::GrantRecord;
use crate::model::decide::{KeySettings, State, StoredReceipt};
use crate::model::window::{Ring, WindowRow, decide};
use crate::model::{Key, Mode, Window, WindowUsage};
use crate::store::sql::admin::{count, key, stored_window};
use crate::store::sql::call::{Counting, SqlRequest, parse_counts};
use crate::store::sql::dialect::{PageStart, RowResult};

/// Decides a request, or counts it, while the transaction locks the database.
pub(super) async fn take(
    connection: &mut SqliteConnection,
    request: &SqlRequest,
    counting: Counting,
    now: i64,
) -> Result<WindowUsage, sqlx::Error> {
    let (key, window) = (request.key(), request.window()?);
    let chosen = rules::find(connection, key, None).await?.map_err(rows::unreadable(key))?;
    let mode = KeySettings::from(&chosen).mode(None, now);
    let stored = match request.id() {
        Some(id) => rows::find_receipt(connection, id, &key.window_receipt_key())
            .await?
            .filter(|stored| stored.expires_at > now),
        None => None,
    };
    let found = find(connection, key).await?;
    let mut row = found.clone().unwrap_or_else(|| WindowRow::new(*window, now));
    let counted = match counting {
        Counting::Count => row.count_now(window, mode, request.amounts.cost, now),
        Counting::Decide => decide(&mut row, window, request.amounts, mode, stored, now),
    };
    // The first request creates the window, even if denied, unless the mode is off.
    if found.map_or(mode.0 != Mode::Off, |found| found.ring != row.ring) {
        write(connection, key, &row).await?;
    }
    let took = counted.code == OutcomeCode::Granted && counted.mode == Mode::Enforce;
    if let (Some(id), None, true) = (request.id(), stored, took) {
        let scheduled_at = counted.scheduled_at.unwrap_or(now);
        let grant = GrantRecord { cost: request.amounts.cost, granted: 0, scheduled_at };
        let stored =
            StoredReceipt { grant, state: State::Open, expires_at: now.saturating_add(request.remember_for_ns()) };
        rows::write_receipt(connection, id, &key.window_receipt_key(), &stored).await?;
    }
    Ok(counted)
}

async fn find(connection: &mut SqliteConnection, key: &Key) -> Result<Option<WindowRow>, sqlx::Error> {
    peek(connection, key).await?.transpose().map_err(rows::unreadable(key))
}

/// Reads a window for an operator, with an inner error if its row cannot be decoded.
pub(super) async fn peek(
    connection: &mut SqliteConnection,
    key: &Key,
) -> Result<Option<RowResult<WindowRow>>, sqlx::Error> {
    let found = sqlx::query(
        "select id, max_requests, interval_ns, resolution_ns, counts, granted, last_wait, since from token_windows where id = ?1",
    )
    .bind(key.as_str())
    .fetch_optional(connection)
    .await?;
    Ok(found.map(|columns| Ok(read(&columns)?.1)))
}

/// Reads a page of windows that have counted a request, in the order of their keys.
pub(super) async fn page(
    connection: &mut SqliteConnection,
    filter: &Filter,
    after: &PageStart,
    limit: u32,
) -> Result<Vec<RowResult<(Key, WindowRow)>>, sqlx::Error> {
    let (first, last) = filter.range();
    let rows = sqlx::query(
        "select id, max_requests, interval_ns, resolution_ns, counts, granted, last_wait, since from token_windows
          where granted <> 0 and id > ?1 and id >= ?2 and (?3 is null or id <= ?3) order by id limit ?4 offset ?5",
    )
    .bind(after.key.as_ref().map_or("", Key::as_str))
    .bind(first)
    // Ids that are not UTF-8 sort after every key.
    .bind(filter.prefix.is_some().then_some(last))
    .bind(limit)
    .bind(after.skip)
    .fetch_all(connection)
    .await?;
    Ok(rows.iter().map(read).collect())
}

/// Id, maximum, nanoseconds of the interval and of the resolution, counts, granted, last wait, since when.
type WindowRowColumns = (String, i64, i64, i64, String, i64, i64, i64);

fn read(columns: &SqliteRow) -> RowResult<(Key, WindowRow)> {
    let (id, max_requests, interval_ns, resolution_ns, counts, granted, last_wait, since) =
        WindowRowColumns::from_row(columns)?;
    count(granted)?;
    let found = row(stored_window(max_requests, interval_ns, resolution_ns)?, &counts, granted, last_wait, since)?;
    // Larger counts would overflow a computation.
    let is_sound = |&(end, count): &(i64, i64)| end <= i64::MAX / 2 && count <= 1_000_000_000_000_000;
    if !found.ring.counts.iter().all(is_sound) {
        return Err(sqlx::Error::Protocol(format!("the counts {counts:?}")));
    }
    Ok((key(id)?, found))
}

fn row(window: Window, counts: &str, granted: i64, last_wait: i64, since: i64) -> Result<WindowRow, sqlx::Error> {
    let (retention_ns, resolution_ns) = (window.interval_ns(), window.resolution_ns());
    let ring = Ring { counts: parse_counts(counts)?, resolution_ns, granted, retention_ns, since, last_wait };
    Ok(WindowRow { window, ring })
}

/// Reads a window from a row of `adjust.sql`.
pub(super) fn window_from_line(line: &ResultRow<'_>) -> Result<WindowRow, sqlx::Error> {
    let window = Window::stored(line.number(2)?, line.number(3)?, line.number(4)?);
    row(window, line.word(5), line.number(6)?, line.number(7)?, line.number(8)?)
}

/// Deletes a window, and returns whether it had counted a request.
pub(super) async fn delete(connection: &mut SqliteConnection, key: &Key) -> Result<bool, sqlx::Error> {
    let delete = "delete from token_windows where id = ?1 returning granted > 0";
    let counted: Option<bool> = sqlx::query_scalar(delete).bind(key.as_str()).fetch_optional(connection).await?;
    Ok(counted.unwrap_or(false))
}

/// Writes a whole window.
async fn write(connection: &mut SqliteConnection, key: &Key, row: &WindowRow) -> Result<(), sqlx::Error> {
    let mut rows = Array::default();
    push(&mut rows, key, row);
    write_all(connection, rows).await
}

/// Writes whole windows.
pub(super) async fn write_all(connection: &mut SqliteConnection, rows: Array) -> Result<(), sqlx::Error> {
    sqlx::query(
        "insert into token_windows (id, max_requests, interval_ns, resolution_ns, counts, empty_at, granted, last_wait, since)
         select value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, value ->> 6, value ->> 7,
                value ->> 8
           from json_each(?1)
          where true
             on conflict (id) do update
            set max_requests = excluded.max_requests, interval_ns = excluded.interval_ns, resolution_ns = excluded.resolution_ns,
                counts = excluded.counts, empty_at = excluded.empty_at, granted = excluded.granted,
                last_wait = excluded.last_wait, since = excluded.since",
    )
    .bind(rows.into_text())
    .execute(connection)
    .await
    .map(drop)
}

/// Adds a window to those that [`write_all`] writes.
pub(super) fn push(rows: &mut Array, key: &Key, WindowRow { window, ring }: &WindowRow) {
    let counts = ring.counts.iter().fold(String::new(), |mut text, (end, count)| {
        let comma = if text.is_empty() { "" } else { ", " };
        write!(text, "{comma}{end} {count}").expect("a String takes everything");
        text
    });
    rows.push_row(&[
        key.as_str().into(),
        window.signed_max_requests().into(),
        ring.retention_ns.into(),
        ring.resolution_ns.into(),
        counts.as_str().into(),
        ring.empty_at(window).into(),
        ring.granted.into(),
        ring.last_wait.into(),
        ring.since.into(),
    ]);
}
