//! Adjustments: read everything that they change at once, compute in memory, and write everything at once.

use std::collections::HashMap;
use std::hash::Hash;

use foldhash::fast::RandomState;
use sqlx::Row as _;
use sqlx::sqlite::SqliteConnection;
use uuid::Uuid;

use super::json::{Array, Value};
use super::lock::{END_TRANSACTION, Lock, Script, opening};
use super::rows::{self, ADJUSTED_STATES, ResultRow, UsageChange};
use super::{HostClock, windows};
use crate::model::answer::OutcomeCode;
use crate::model::decide;
use crate::model::decide::{BucketRow, StoredReceipt};
use crate::model::window::WindowRow;
use crate::model::{Adjusted, Adjustment, Key};
use crate::store::sql::call::AdjustedColumns;
use crate::store::sql::dialect::RowResult;

/// Makes adjustments, and returns their outcomes in order.
pub(super) async fn adjust(
    connection: &mut SqliteConnection,
    adjustments: &[Adjustment],
    clock: &HostClock,
) -> Result<Vec<AdjustedColumns>, sqlx::Error> {
    let mut rows_by_key = AdjustmentRows::default();
    let places: Vec<_> = adjustments.iter().map(|adjustment| rows_by_key.places(adjustment)).collect();
    let (mut lock, rows) = Lock::open(connection, &READ, rows_by_key.arguments()).await?;
    // After the database is locked.
    let now = clock.now();
    if let Some(text) = rows.first().map(|row| row.try_get::<Option<&str>, _>(0)).transpose()?.flatten() {
        text.split(',').try_for_each(|line| rows_by_key.enter(&ResultRow::from(line)))?;
    }
    drop(rows);
    let each = adjustments.iter().zip(places);
    let adjusted = each.map(|(adjustment, places)| columns(rows_by_key.adjust(adjustment, places, now))).collect();
    let AdjustmentRows { buckets, windows, receipts } = rows_by_key;
    let receipts = receipts.changed(|all, (id, key), stored| rows::push_receipt(all, *id, key, stored));
    if !receipts.is_empty() {
        rows::write_receipts(lock.connection(), receipts).await?;
    }
    let windows = windows.changed(windows::push);
    if !windows.is_empty() {
        windows::write_all(lock.connection(), windows).await?;
    }
    let states = buckets.changed(|states, key, (row, usage)| rows::push_adjusted_state(states, key, row, *usage));
    if states.is_empty() {
        lock.close(&END_TRANSACTION, []).await?;
    } else {
        lock.close(&ADJUSTED_STATES, [states.into_text()]).await?;
    }
    Ok(adjusted)
}

/// The rows that adjustments can change.
#[derive(Default)]
struct AdjustmentRows {
    buckets: KeyedRows<Key, (BucketRow, UsageChange)>,
    windows: KeyedRows<Key, WindowRow>,
    receipts: KeyedRows<(Uuid, Key), StoredReceipt>,
}

/// The place of a bucket or window in its table, and the place of a receipt.
type Places = (usize, usize);

impl AdjustmentRows {
    fn places(&mut self, Adjustment { receipt, .. }: &Adjustment) -> Places {
        let key = receipt.key.clone();
        let (place, bucket) = if receipt.window {
            (self.windows.place(key), receipt.key.window_receipt_key())
        } else {
            (self.buckets.place(key), receipt.key.clone())
        };
        (place, self.receipts.place((receipt.id, bucket)))
    }

    /// The arguments of `adjust.sql`.
    fn arguments(&self) -> [String; 3] {
        let mut receipts = Array::default();
        for KeyedRow { key: (id, key), .. } in &self.receipts.rows {
            receipts.push_row(&[Value::Text(&id.hyphenated().to_string()), key.as_str().into()]);
        }
        [self.buckets.keys(), self.windows.keys(), receipts.into_text()]
    }

    /// Reads a row of `adjust.sql`.
    fn enter(&mut self, line: &ResultRow<'_>) -> Result<(), sqlx::Error> {
        match line.word(0) {
            "bucket" => {
                let bucket = line.bucket().map(|row| (row, UsageChange::default()));
                self.buckets.enter(line.number(1)?, bucket, |key| key)
            }
            "window" => self.windows.enter(line.number(1)?, windows::window_from_line(line), |key| key),
            _ => self.receipts.enter(line.number(1)?, rows::receipt_from_line(line), |(_, key)| key),
        }
    }

    fn adjust(
        &mut self,
        adjustment: &Adjustment,
        (place, receipt_place): Places,
        now: i64,
    ) -> Result<Adjusted, OutcomeCode> {
        let (receipt, stored) = (&adjustment.receipt, self.receipts.rows[receipt_place].row);
        let (adjusted, stored) = if receipt.window {
            decide::adjust(adjustment, stored, self.windows.rows[place].row.as_mut(), now)
        } else {
            let mut bucket = self.buckets.rows[place].row.as_mut();
            let before = bucket.as_ref().map_or(0, |(row, _)| row.bucket.granted);
            let adjusted = decide::adjust(adjustment, stored, bucket.as_mut().map(|(row, _)| row), now);
            if let (Some((row, usage)), (Ok(Adjusted::Done(given_back)), _)) = (bucket, &adjusted) {
                usage.recorded += row.bucket.granted - before;
                usage.charged = usage.charged.saturating_add((-given_back).max(0));
                usage.refunded = usage.refunded.saturating_add((*given_back).max(0));
            }
            adjusted
        };
        if stored.is_some() {
            self.receipts.rows[receipt_place].row = stored;
            self.receipts.rows[receipt_place].is_changed = true;
        }
        if matches!(adjusted, Ok(Adjusted::Done(_))) {
            if receipt.window {
                self.windows.rows[place].is_changed = true;
            } else {
                self.buckets.rows[place].is_changed = true;
            }
        }
        adjusted
    }
}

/// Rows of a table by their keys.
struct KeyedRows<K, R> {
    places: HashMap<K, usize, RandomState>,
    rows: Vec<KeyedRow<K, R>>,
}

struct KeyedRow<K, R> {
    key: K,
    /// The row, if it exists.
    row: Option<R>,
    is_changed: bool,
}

impl<K: Clone + Eq + Hash, R> KeyedRows<K, R> {
    fn place(&mut self, key: K) -> usize {
        *self.places.entry(key).or_insert_with_key(|key| {
            self.rows.push(KeyedRow { key: key.clone(), row: None, is_changed: false });
            self.rows.len() - 1
        })
    }

    /// Enters a row, or names its key if the row cannot be decoded.
    fn enter(&mut self, number: i64, row: RowResult<R>, key_of: fn(&K) -> &Key) -> Result<(), sqlx::Error> {
        let keyed = usize::try_from(number).ok().and_then(|place| self.rows.get_mut(place));
        let KeyedRow { key, row: found, .. } =
            keyed.ok_or_else(|| sqlx::Error::Protocol(format!("the row {number}")))?;
        *found = Some(row.map_err(rows::unreadable(key_of(key)))?);
        Ok(())
    }

    /// The rows to write.
    fn changed(&self, push: impl Fn(&mut Array, &K, &R)) -> Array {
        let mut rows = Array::default();
        for KeyedRow { key, row, is_changed } in &self.rows {
            if let (Some(row), true) = (row, is_changed) {
                push(&mut rows, key, row);
            }
        }
        rows
    }
}

impl<R> KeyedRows<Key, R> {
    /// The keys, as a JSON array.
    fn keys(&self) -> String {
        self.rows.iter().map(|keyed| keyed.key.as_str()).collect::<Array>().into_text()
    }
}

impl<K, R> Default for KeyedRows<K, R> {
    fn default() -> Self {
        Self { places: HashMap::default(), rows: Vec::new() }
    }
}

/// The outcome of an adjustment, in the words of the SQL routines.
fn columns(adjusted: Result<Adjusted, OutcomeCode>) -> AdjustedColumns {
    match adjusted {
        Ok(Adjusted::Done(tokens)) => ("done".into(), tokens),
        Ok(Adjusted::Late) => ("late".into(), 0),
        Ok(Adjusted::Repeated) => ("repeated".into(), 0),
        Err(OutcomeCode::Reused) => ("reused".into(), 0),
        Err(_) => ("unknown".into(), 0),
    }
}

const READ: Script = opening!("adjust.sql");
