use std::collections::BTreeMap;
use std::time::Duration;

use common::fleet::checker::Call;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// The measurements of one process. Worker processes print them.
#[derive(Debug, Default, Deserialize, Serialize)]
pub(crate) struct Sample {
    /// Decisions in the measured time.
    pub(crate) decisions: u64,
    /// Decisions of each process.
    pub(crate) by_process: Vec<u64>,
    /// Grants and denials, including warm-up and tail.
    pub(crate) granted: u64,
    pub(crate) denied: u64,
    /// Length of the measured time.
    pub(crate) seconds: f64,
    /// How often each latency occurred, in nanoseconds.
    pub(crate) latencies: BTreeMap<u64, u64>,
    /// Seconds of processor time that the client used.
    pub(crate) client: f64,
    /// Seconds of processor time that the server used, if it runs on this machine.
    pub(crate) server: Option<f64>,
    /// Tokens granted to each key, from the first call to the last answer.
    pub(crate) grants: BTreeMap<u32, u64>,
    /// Grants with their times, if recorded, of one process.
    #[serde(skip)]
    pub(crate) calls: BTreeMap<u32, Vec<Call>>,
}

impl Sample {
    /// Combines the measurements of two processes.
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

    /// Returns the latency in microseconds below which this percentage of decisions took.
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

/// Creates the histogram of one task. With two digits, a thousand histograms fit into memory.
pub(crate) fn histogram() -> Histogram<u32> {
    Histogram::new_with_bounds(1, 100_000_000_000, 2).expect("these bounds are in order")
}
