use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::checker::Call;

/// What one process saw of one measurement. It is also what worker processes print.
#[derive(Debug, Default, Deserialize, Serialize)]
pub(crate) struct Sample {
    /// How many decisions were made in the time that counts.
    pub(crate) decisions: u64,
    /// Those of each process.
    pub(crate) by_process: Vec<u64>,
    /// Grants and denials, warm-up and tail included.
    pub(crate) granted: u64,
    pub(crate) denied: u64,
    /// How long the time that counts was.
    pub(crate) seconds: f64,
    /// How often each latency was seen, in nanoseconds.
    pub(crate) latencies: BTreeMap<u64, u64>,
    /// What the client used meanwhile, in seconds of processor time.
    pub(crate) client: f64,
    /// And the server, if it runs on this machine.
    pub(crate) server: Option<f64>,
    /// What was granted of each key from the first question to the last answer.
    pub(crate) grants: BTreeMap<u32, u64>,
    /// The same with their times, where they are noted: in one process.
    #[serde(skip)]
    pub(crate) calls: BTreeMap<u32, Vec<Call>>,
}

impl Sample {
    /// What several processes saw together.
    pub(crate) fn and(mut self, other: Self) -> Self {
        self.decisions += other.decisions;
        self.by_process.extend(other.by_process);
        self.granted += other.granted;
        self.denied += other.denied;
        self.seconds = self.seconds.max(other.seconds);
        self.client += other.client;
        for (latency, count) in other.latencies {
            *self.latencies.entry(latency).or_default() += count;
        }
        for (key, count) in other.grants {
            *self.grants.entry(key).or_default() += count;
        }
        self
    }

    /// Below which so many of a hundred decisions took, in microseconds.
    pub(crate) fn percentile(&self, percent: f64) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "a rank is no more precise")]
        let rank = self.latencies.values().sum::<u64>() as f64 * percent / 100.0;
        let mut seen = 0.0;
        for (&latency, &count) in &self.latencies {
            #[expect(clippy::cast_precision_loss, reason = "a count is no more precise")]
            let count = count as f64;
            seen += count;
            if seen >= rank {
                return Duration::from_nanos(latency).as_secs_f64() * 1e6;
            }
        }
        0.0
    }
}

/// Latencies of one task. Two digits are enough, and a thousand tasks fit into memory.
pub(crate) fn histogram() -> Histogram<u32> {
    Histogram::new_with_bounds(1, 100_000_000_000, 2).expect("these bounds are in order")
}
