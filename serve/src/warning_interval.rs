//! Limits a warning that every request could cause to one in ten seconds.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// The last time of a warning.
#[derive(Debug, Default)]
pub(crate) struct WarningInterval(Mutex<Option<Instant>>);

impl WarningInterval {
    /// Whether the warning is due. The next one is due ten seconds later.
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
