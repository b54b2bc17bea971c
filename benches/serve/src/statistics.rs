use std::time::Duration;

use crate::load::Sample;
use crate::system::System;
use crate::workload::Workload;

/// The measurement of a system in one repeat.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) per_second: f64,
    /// Milliseconds.
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    /// Answers for each second of processor time of the server's threads, without those of client and database.
    pub(crate) per_core: Option<f64>,
    /// Rules that were broken.
    pub(crate) faults: Vec<String>,
}

impl Run {
    pub(crate) fn new(sample: &Sample, time: Duration) -> Self {
        let answers = number(sample.granted + sample.denied);
        let milliseconds = |quantile: f64| number(sample.latencies.value_at_quantile(quantile)) / 1e6;
        Self {
            per_second: answers / time.as_secs_f64(),
            p50: milliseconds(0.5),
            p99: milliseconds(0.99),
            per_core: sample.server_seconds.filter(|seconds| *seconds > 0.0).map(|seconds| answers / seconds),
            faults: Vec::new(),
        }
    }
}

/// The repeats of a system under one workload.
pub(crate) struct Row {
    pub(crate) system: System,
    pub(crate) runs: Vec<Run>,
}

impl Row {
    pub(crate) fn numbers(&self, of: impl Fn(&Run) -> Option<f64>) -> Vec<f64> {
        self.runs.iter().filter_map(of).collect()
    }

    /// Returns the repeats' values, each combined with the value of another system in the same repeat.
    pub(crate) fn beside(&self, other: &Self, combine: impl Fn(&Run, &Run) -> f64) -> Vec<f64> {
        self.runs.iter().zip(&other.runs).map(|(run, beside)| combine(run, beside)).collect()
    }
}

/// All systems under one workload.
pub(crate) struct Measured {
    pub(crate) workload: Workload,
    pub(crate) keys: u32,
    pub(crate) rows: Vec<Row>,
}

impl Measured {
    pub(crate) fn row(&self, system: System) -> Option<&Row> {
        self.rows.iter().find(|row| row.system == system)
    }

    /// Returns the broken rules, with their systems.
    pub(crate) fn faults(&self) -> Vec<(System, String)> {
        let mut faults = Vec::new();
        for row in &self.rows {
            for fault in row.runs.iter().flat_map(|run| &run.faults) {
                faults.push((row.system, format!("{}, {}: {fault}", self.workload.name(), row.system)));
            }
        }
        faults
    }
}

/// Returns the median, the least and the most.
pub(crate) fn spread(mut values: Vec<f64>) -> Option<(f64, f64, f64)> {
    values.sort_unstable_by(f64::total_cmp);
    let (least, most) = (*values.first()?, *values.last()?);
    let middle = values.len() / 2;
    let median =
        if values.len().is_multiple_of(2) { f64::midpoint(values[middle - 1], values[middle]) } else { values[middle] };
    Some((median, least, most))
}

#[expect(clippy::cast_precision_loss, reason = "a measurement is no more precise")]
fn number(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_is_the_middle_or_between_two() {
        assert_eq!(spread(vec![3.0, 1.0, 2.0]), Some((2.0, 1.0, 3.0)));
        assert_eq!(spread(vec![4.0, 1.0]), Some((2.5, 1.0, 4.0)));
        assert_eq!(spread(Vec::new()), None);
    }
}
