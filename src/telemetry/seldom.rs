use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// What is told aloud the first time, and then once a minute at most: it is true of each request, or of all of a kind.
#[derive(Debug, Default)]
pub(super) struct Seldom(Mutex<Option<Instant>>);

impl Seldom {
    pub(super) fn is_due(&self) -> bool {
        let mut told = self.0.lock();
        let is_due = told.is_none_or(|told| told.elapsed() >= MINUTE);
        if is_due {
            *told = Some(Instant::now());
        }
        is_due
    }
}

const MINUTE: Duration = Duration::from_secs(60);
