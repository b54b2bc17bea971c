//! Sliding windows as tables and as JSON.

use serde_json::{Value, json};
use tollgate::model::WindowLevel;

use crate::output::{Cell, Column, Table, YELLOW};
use crate::times;

/// A table with one row per window.
pub(crate) fn table(levels: &[WindowLevel]) -> Table<5> {
    let mut table = Table::new([
        Column::Left("key"),
        Column::Right("counted"),
        Column::Left("sliding window"),
        Column::Right("granted"),
        Column::Right("next passes in"),
    ]);
    for level in levels {
        let counted = level.counted.to_string();
        table.row([
            Cell::from(level.key.as_str()),
            if level.available() > 0 { Cell::from(counted) } else { Cell::styled(counted, YELLOW) },
            Cell::from(level.window.to_string()),
            Cell::from(level.granted.to_string()),
            Cell::from(if level.retry_after.is_zero() { String::new() } else { times::span(level.retry_after) }),
        ]);
    }
    table
}

/// A window as JSON. Fields are only added, never changed.
pub(crate) fn json(level: &WindowLevel) -> Value {
    json!({
        "key": level.key.as_str(),
        "window": level.window.to_string(),
        "max_requests": level.window.max_requests(),
        "interval_ms": times::milliseconds(level.window.interval()),
        "resolution_ms": times::milliseconds(level.window.resolution()),
        "counted": level.counted,
        "available": level.available(),
        "granted": level.granted,
        "retry_after_ms": times::milliseconds(level.retry_after),
    })
}
