use std::time::Duration;

use super::{Window, WindowRow};
use crate::model::Key;

/// A sliding window as people think of it, at the instant when the store was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WindowLevel {
    /// Whose window.
    pub key: Key,
    /// The terms that it was last counted under; of several, its interval is the longest since it was empty.
    pub window: Window,
    /// The requests that count now; above the maximum: promised to requests that wait.
    pub counted: u64,
    /// All requests that were ever granted.
    pub granted: u64,
    /// When one more request passes, by what is counted; zero: now. A [mode](crate::Mode) may decide otherwise.
    pub retry_after: Duration,
}

impl WindowLevel {
    /// How many more pass now; negative: promised to requests that wait.
    #[must_use]
    pub fn available(&self) -> i64 {
        self.window.most - i64::try_from(self.counted).unwrap_or(i64::MAX)
    }

    /// One that nobody has used yet.
    pub(crate) fn unused(key: Key, window: Window) -> Self {
        Self { key, window, counted: 0, granted: 0, retry_after: Duration::ZERO }
    }

    /// Reads a window, for the stores that decide in this process, if anything was counted in it.
    pub(crate) fn new(key: &Key, mut row: WindowRow, now: i64) -> Option<Self> {
        let window = row.terms();
        let ring = &mut row.ring;
        ring.step_back(now);
        (ring.granted > 0).then(|| Self {
            key: key.clone(),
            window,
            counted: ring.counted(&window, now).unsigned_abs(),
            granted: ring.granted.unsigned_abs(),
            retry_after: Duration::from_nanos((ring.earliest(&window, window.most - 1, now) - now).unsigned_abs()),
        })
    }
}
