use serde::{Deserialize, Serialize};

use crate::engine::Written;
use crate::sample::Sample;

/// One measurement of one system under test.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct Statistics {
    /// Decisions per second. 0 if the measurement broke the rules.
    pub(crate) per_second: f64,
    /// Latencies in microseconds.
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) p999: f64,
    /// Microseconds of processor time per decision.
    pub(crate) client_cpu: f64,
    pub(crate) server_cpu: Option<f64>,
    /// Calls of the store per decision, including the warm-up.
    pub(crate) calls: Option<f64>,
    /// On PostgreSQL, bytes of the write-ahead log per grant, including page images and other writers.
    pub(crate) wal_per_grant: Option<f64>,
    /// On PostgreSQL, the share of updates that changed no index.
    pub(crate) hot_share: Option<f64>,
    /// Decisions of the busiest process, divided by those of the idlest.
    pub(crate) unfairness: Option<f64>,
    pub(crate) granted: u64,
    pub(crate) denied: u64,
    /// Why the measurement does not count.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) fault: Option<String>,
}

impl Statistics {
    pub(crate) fn new(sample: &Sample, calls: Option<i64>) -> Self {
        #[expect(clippy::cast_precision_loss, reason = "a figure is no more precise")]
        let (decisions, all) = (sample.decisions as f64, (sample.granted + sample.denied) as f64);
        let each = |seconds: f64| 1e6 * seconds / decisions.max(1.0);
        #[expect(clippy::cast_precision_loss, reason = "a figure is no more precise")]
        let unfairness = match (sample.by_process.iter().min(), sample.by_process.iter().max()) {
            (Some(&least), Some(&most)) if sample.by_process.len() > 1 => Some(most as f64 / least.max(1) as f64),
            _ => None,
        };
        #[expect(clippy::cast_precision_loss, reason = "a figure is no more precise")]
        let calls = calls.map(|calls| calls as f64 / all.max(1.0));
        Self {
            per_second: decisions / sample.seconds,
            p50: sample.percentile(50.0),
            p99: sample.percentile(99.0),
            p999: sample.percentile(99.9),
            client_cpu: each(sample.client),
            server_cpu: sample.server.map(each),
            calls,
            wal_per_grant: None,
            hot_share: None,
            unfairness,
            granted: sample.granted,
            denied: sample.denied,
            fault: None,
        }
    }

    /// Adds the store's writes after and before the measurement.
    pub(crate) fn with_written(self, written: Option<(Written, Written)>) -> Self {
        let Some((after, before)) = written else { return self };
        #[expect(clippy::cast_precision_loss, reason = "a figure is no more precise")]
        let ratio = |of: i64, to: u64| (to > 0).then(|| of as f64 / to as f64);
        let updates = u64::try_from(after.updates - before.updates).unwrap_or(0);
        Self {
            wal_per_grant: ratio(after.wal_bytes - before.wal_bytes, self.granted),
            hot_share: ratio(after.hot_updates - before.hot_updates, updates),
            ..self
        }
    }

    pub(crate) fn fault(reason: String) -> Self {
        Self { fault: Some(reason), ..Self::default() }
    }
}

/// The repeats of a system under test at a number of tasks.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Row {
    pub(crate) system: String,
    pub(crate) tasks: usize,
    pub(crate) repeats: Vec<Statistics>,
}

impl Row {
    /// Whether no repeat broke the rules. If one did, no value counts.
    pub(crate) fn is_sound(&self) -> bool {
        self.repeats.iter().all(|statistics| statistics.fault.is_none())
    }

    /// Returns the median, or 0 if a repeat broke the rules.
    pub(crate) fn median(&self, of: impl Fn(&Statistics) -> f64) -> f64 {
        if self.is_sound() { median(self.repeats.iter().map(of)) } else { 0.0 }
    }

    /// Returns the median of the known values.
    pub(crate) fn median_of(&self, of: impl Fn(&Statistics) -> Option<f64>) -> Option<f64> {
        let known: Vec<f64> = self.repeats.iter().filter_map(of).collect();
        (!known.is_empty()).then(|| median(known.into_iter()))
    }

    /// Returns the minimum and the maximum.
    pub(crate) fn spread(&self, of: impl Fn(&Statistics) -> f64) -> (f64, f64) {
        let bounds = |(least, most): (f64, f64), figure: f64| (least.min(figure), most.max(figure));
        self.repeats.iter().map(of).fold((f64::INFINITY, 0.0), bounds)
    }

    /// Returns the decisions per second divided by those of another, repeat by repeat, so that a slow repeat does not
    /// distort the ratio. 0 if this row broke the rules in a repeat, `None` if the other did.
    pub(crate) fn ratio(&self, to: &Self) -> Option<f64> {
        self.ratio_of(to, |statistics| statistics.per_second)
    }

    /// Returns the same ratio of another value.
    pub(crate) fn ratio_of(&self, to: &Self, of: impl Fn(&Statistics) -> f64) -> Option<f64> {
        if !to.is_sound() {
            return None;
        }
        if !self.is_sound() {
            return Some(0.0);
        }
        let pairs = self.repeats.iter().zip(&to.repeats).filter(|(_, to)| of(to) > 0.0);
        let ratios: Vec<f64> = pairs.map(|(this, to)| of(this) / of(to)).collect();
        (!ratios.is_empty()).then(|| median(ratios.into_iter()))
    }
}

/// The results of a workload.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Measured {
    pub(crate) workload: &'static str,
    pub(crate) about: &'static str,
    pub(crate) keys: u32,
    /// The durability class.
    pub(crate) commits: &'static str,
    /// Whether tollgate can answer denials from the process.
    pub(crate) denials_cached: bool,
    /// Systems that could not take part, and why.
    pub(crate) absent: Vec<String>,
    /// Systems whose buckets could not be created, and why.
    pub(crate) broken: Vec<String>,
    pub(crate) rows: Vec<Row>,
}

impl Measured {
    pub(crate) fn row(&self, system: &str, tasks: usize) -> Option<&Row> {
        self.rows.iter().find(|row| row.system == system && row.tasks == tasks)
    }

    /// The number of tasks to show: that of the headline, or the only one if processes share the tasks.
    pub(crate) fn shown(&self, headline: usize) -> usize {
        let measured = self.rows.iter().any(|row| row.tasks == headline);
        if measured { headline } else { self.rows.first().map_or(headline, |row| row.tasks) }
    }

    pub(crate) fn faults(&self) -> impl Iterator<Item = String> {
        let of_row = move |row: &Row| {
            let faults = row.repeats.iter().filter_map(|statistics| statistics.fault.as_ref());
            let named = |fault| format!("{}, {}, {} tasks: {fault}", self.workload, row.system, row.tasks);
            faults.map(named).collect::<Vec<_>>()
        };
        let broken = self.broken.iter().map(move |reason| format!("{}, {reason}", self.workload));
        broken.chain(self.rows.iter().flat_map(of_row))
    }
}

pub(crate) fn median(statistics: impl Iterator<Item = f64>) -> f64 {
    let mut statistics: Vec<f64> = statistics.collect();
    statistics.sort_unstable_by(f64::total_cmp);
    match statistics.len() {
        0 => 0.0,
        even if even % 2 == 0 => f64::midpoint(statistics[even / 2 - 1], statistics[even / 2]),
        odd => statistics[odd / 2],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(speeds: [f64; 5], fault: bool) -> Row {
        let mut repeats: Vec<Statistics> =
            speeds.iter().map(|&per_second| Statistics { per_second, ..Statistics::default() }).collect();
        if fault {
            repeats[2] = Statistics::fault("over-granted".to_owned());
        }
        Row { system: "tollgate@postgres".to_owned(), tasks: 256, repeats }
    }

    #[test]
    fn ratio_is_median_of_the_repeats() {
        let (ours, redis) = (row([10.0, 2.0, 30.0, 4.0, 5.0], false), row([1.0, 1.0, 10.0, 1.0, 10.0], false));
        assert_eq!(ours.ratio(&redis), Some(3.0));
    }

    #[test]
    fn failed_repeat_is_not_hidden_by_other_repeats() {
        let (broken, sound) = (row([10.0; 5], true), row([1.0; 5], false));
        assert_eq!(broken.ratio(&sound), Some(0.0));
        assert!(broken.median(|statistics| statistics.per_second) < 0.1);
        assert_eq!(sound.ratio(&broken), None, "nothing is as fast as what did not keep to the rules");
    }
}
