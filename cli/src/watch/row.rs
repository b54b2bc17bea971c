//! A row of the screen: a key, its bucket and its rates.

use std::collections::VecDeque;

use tollgate::{Key, admin::BucketLevel};

/// A key with its bucket and its past rates.
#[derive(Debug)]
pub(crate) struct BoardRow {
    pub(crate) key: Key,
    /// `None`: the key was denied and has no bucket, as in the mode `block`.
    pub(crate) level: Option<BucketLevel>,
    /// Requests denied in the last 24 hours, if the key is among the most denied.
    pub(crate) denied: Option<u64>,
    /// Requests denied per second, over the last looks.
    pub(crate) denied_rate: Option<f64>,
    /// Tokens granted per second, smoothed over about `SMOOTHING`.
    pub(crate) rate: Option<f64>,
    /// The rates between two reads until now, oldest first.
    pub(crate) past: VecDeque<f64>,
}

impl BoardRow {
    /// A row without past rates.
    pub(crate) fn new(key: Key, denied: Option<u64>, level: Option<BucketLevel>) -> Self {
        Self { key, denied, denied_rate: None, rate: None, past: VecDeque::new(), level }
    }

    /// The part of the capacity that is left. Below 0: promised to requests that wait.
    #[expect(clippy::cast_precision_loss, reason = "a part")]
    pub(crate) fn part_left(&self) -> f64 {
        self.level.as_ref().map_or(f64::INFINITY, |level| level.available() as f64 / level.quota().capacity() as f64)
    }

    pub(crate) fn granted(&self) -> u64 {
        self.level.as_ref().map_or(0, BucketLevel::granted)
    }

    pub(crate) fn quota(&self) -> String {
        self.level.as_ref().map_or_else(|| "no bucket".to_owned(), |level| level.quota().to_string())
    }
}

/// How many rows of a large table are shown. The reader reads the first rows of two orders one by one.
pub(crate) const MAX_ROWS: usize = 50;

/// As many rates as a sparkline has columns.
pub(crate) const HISTORY: usize = 30;
