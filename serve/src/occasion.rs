//! Warnings of which one in a while suffices.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// The last time of a warning that every request could cause.
#[derive(Debug, Default)]
pub(crate) struct Occasion(Mutex<Option<Instant>>);

impl Occasion {
    /// Whether ten seconds have passed since it was due.
    pub(crate) fn is_due(&self) -> bool {
        let mut last = self.0.lock();
        let is_due = last.is_none_or(|last| last.elapsed() >= INTERVAL);
        if is_due {
            *last = Some(Instant::now());
        }
        is_due
    }
}

const INTERVAL: Duration = Duration::from_secs(10);
