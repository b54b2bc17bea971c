//! Sliding windows as tables and as JSON.

use schemars::JsonSchema;
use serde::Serialize;
use tollgate::model::WindowLevel;

use crate::output::{Cell, Column, Table};
use crate::text::YELLOW;
use crate::times;

/// A table with one row per window.
pub(crate) fn table(levels: &[WindowLevel]) -> Table<5> {
    let mut table = Table::new([
        Column::Left("key"),
        Column::Right("counted"),
        Column::Left("sliding window"),
        Column::Right("granted"),
        Column::Right("next passes in"),
    ])
    .drops(&["granted", "next passes in", "sliding window"]);
    for level in levels {
        let counted = level.counted().to_string();
        table.row([
            Cell::from(level.key().as_str()),
            if level.available() > 0 { Cell::from(counted) } else { Cell::styled(counted, YELLOW) },
            Cell::from(level.window().to_string()),
            Cell::from(level.granted().to_string()),
            Cell::from(if level.retry_after().is_zero() { String::new() } else { times::span(level.retry_after()) }),
        ]);
    }
    table
}

/// A sliding window.
#[derive(Serialize, JsonSchema)]
pub(crate) struct WindowJson {
    /// The key that requests name.
    key: String,
    /// The window as text.
    window: String,
    /// The requests that the window lets pass.
    max_requests: u64,
    /// The length of the window.
    interval_ms: Option<u64>,
    /// The length of the parts in which the window counts.
    resolution_ms: Option<u64>,
    /// The requests that count now.
    counted: u64,
    /// The further requests that can pass. Negative: promised to requests that wait.
    available: i64,
    /// The requests granted ever.
    granted: u64,
    /// The time until the next request can pass. 0: now.
    retry_after_ms: Option<u64>,
}

impl From<&WindowLevel> for WindowJson {
    fn from(level: &WindowLevel) -> Self {
        Self {
            key: level.key().to_string(),
            window: level.window().to_string(),
            max_requests: level.window().max_requests(),
            interval_ms: times::milliseconds(level.window().interval()),
            resolution_ms: times::milliseconds(level.window().resolution()),
            counted: level.counted(),
            available: level.available(),
            granted: level.granted(),
            retry_after_ms: times::milliseconds(level.retry_after()),
        }
    }
}
