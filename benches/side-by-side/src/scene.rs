use std::sync::Arc;

use anyhow::Context;

use crate::workload::Workload;

/// A workload and its keys, for which peers are opened.
#[derive(Clone, Debug)]
pub(crate) struct Scene {
    pub(crate) workload: &'static Workload,
    /// The number of processes. Default: that of the workload.
    pub(crate) processes: u32,
    /// The name of the databases and the prefix of the keys, so that runs do not share them.
    pub(crate) run: String,
    /// Built before the measurement, because a service also has its keys at hand.
    pub(crate) names: Arc<[String]>,
}

impl Scene {
    pub(crate) fn new(workload: &'static Workload, run: &str, keys: u32) -> Self {
        let keys = workload.bucket_limits.keys.unwrap_or(keys);
        let prefix = prefix(workload, run);
        let names = (0..keys).map(|key| format!("{prefix}{key}")).collect();
        Self { workload, processes: workload.processes, run: run.to_owned(), names }
    }

    /// Returns the same scene with as many other keys.
    pub(crate) fn renewed(&self, nth: u64) -> Self {
        let prefix = self.prefix();
        Self { names: (0..self.names.len()).map(|key| format!("{prefix}{nth}:{key}")).collect(), ..self.clone() }
    }

    pub(crate) fn keys(&self) -> u32 {
        u32::try_from(self.names.len()).unwrap_or(u32::MAX)
    }

    /// Returns the prefix of all names in the scene, which no other quota shares.
    pub(crate) fn prefix(&self) -> String {
        prefix(self.workload, &self.run)
    }

    /// Iterates over the keys of a request, given the first. Further keys are far from the first.
    pub(crate) fn each(&self, key: u32) -> impl Iterator<Item = usize> {
        let (keys, limits) = (self.names.len(), self.workload.limits);
        (0..limits).map(move |nth| (key as usize + nth * keys / limits) % keys)
    }

    /// Returns the time of a token in microseconds, the unit of Redis scripts.
    pub(crate) fn token_us(&self) -> anyhow::Result<u64> {
        u64::try_from(self.workload.bucket_limits.token.as_micros()).context("a token's time is too long")
    }
}

fn prefix(workload: &Workload, run: &str) -> String {
    format!("{run}:{}:", workload.bucket_limits.name)
}
