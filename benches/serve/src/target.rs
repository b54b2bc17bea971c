use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use crate::client::{Answer, Client};
use crate::system::System;
use crate::workload::{DAY, Workload};

/// The keys of a workload for one system, with the grants of each key.
pub(crate) struct Target {
    pub(crate) workload: Workload,
    values: Vec<String>,
    granted: Vec<AtomicU64>,
    /// The day of the first request, in days since 1970.
    first_day: u64,
}

impl Target {
    /// `turn` makes new keys.
    pub(crate) fn new(system: System, workload: Workload, keys: u32, turn: u32) -> Self {
        let values: Vec<String> = (0..keys).map(|key| format!("{system}/{turn}/{key}")).collect();
        let granted = values.iter().map(|_| AtomicU64::new(0)).collect();
        Self { workload, values, granted, first_day: today() }
    }

    pub(crate) fn len(&self) -> usize {
        self.values.len()
    }

    /// Sends a request for a key, and counts its grant.
    pub(crate) async fn ask(&self, client: &mut Client, key: usize) -> anyhow::Result<Answer> {
        let answer = client.ask(self.workload.name(), &self.values[key]).await?;
        if answer.granted {
            self.granted[key].fetch_add(1, Ordering::Relaxed);
        }
        Ok(answer)
    }

    /// Checks the grants of all keys, and the remaining tokens of some. Returns the rules that were broken.
    pub(crate) async fn check(&self, client: &mut Client) -> anyhow::Result<Vec<String>> {
        let mut faults = Vec::new();
        let limit = u64::from(self.workload.requests_per_day());
        let granted = |key: usize| self.granted[key].load(Ordering::Relaxed);
        // A window begins with each day. In the middle of a run, a window more can begin.
        let max = limit * self.days();
        if let Some(most) = (0..self.len()).map(granted).max().filter(|most| *most > max) {
            faults.push(format!("{most} requests passed under a limit of {max}"));
        }
        if self.workload == Workload::Attack {
            if granted(0) < limit {
                faults.push(format!("{} requests passed under a limit of {limit}: tokens are lost", granted(0)));
            }
            return Ok(faults);
        }
        let step = self.len().div_ceil(MAX_CHECKED_KEYS).max(1);
        for key in (0..self.len()).step_by(step) {
            let answer = self.ask(client, key).await?;
            let expected = limit.saturating_sub(granted(key));
            if self.days() == 1 && answer.remaining != expected {
                faults.push(format!("{} tokens remain of key {key}, and {expected} should", answer.remaining));
                break;
            }
        }
        Ok(faults)
    }

    /// Returns how many days the requests were sent in.
    fn days(&self) -> u64 {
        today().saturating_sub(self.first_day) + 1
    }
}

fn today() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs() / DAY)
}

const MAX_CHECKED_KEYS: usize = 16;
