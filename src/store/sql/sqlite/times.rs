//! Instants of the tables that people write: texts that `datetime()` could have written, with milliseconds.

use chrono::{DateTime, Utc};

pub(super) fn text(at: DateTime<Utc>) -> String {
    at.format("%Y-%m-%d %H:%M:%S%.3f").to_string()
}

/// From milliseconds since 1970.
pub(super) fn instant(ms: i64) -> Option<DateTime<Utc>> {
    DateTime::from_timestamp_millis(ms)
}
