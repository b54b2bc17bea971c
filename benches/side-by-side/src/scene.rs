use std::sync::Arc;

use anyhow::Context;

use crate::workload::Workload;

/// What peers are opened for: a workload, and the keys it asks for.
#[derive(Clone, Debug)]
pub(crate) struct Scene {
    pub(crate) workload: &'static Workload,
    /// As many as the workload says, if nothing else is.
    pub(crate) processes: u32,
    /// The name of the databases and the beginning of the keys' names, so that runs do not meet.
    pub(crate) run: String,
    /// Made before the clock runs: a host has its keys at hand as well.
    pub(crate) names: Arc<[String]>,
}

impl Scene {
    pub(crate) fn new(workload: &'static Workload, run: &str, keys: u32) -> Self {
        let keys = workload.terms.keys.unwrap_or(keys);
        let prefix = prefix(workload, run);
        let names = (0..keys).map(|key| format!("{prefix}{key}")).collect();
        Self { workload, processes: workload.processes, run: run.to_owned(), names }
    }

    /// The same about other keys, as many.
    pub(crate) fn renewed(&self, nth: u64) -> Self {
        let prefix = self.prefix();
        Self { names: (0..self.names.len()).map(|key| format!("{prefix}{nth}:{key}")).collect(), ..self.clone() }
    }

    pub(crate) fn keys(&self) -> u32 {
        u32::try_from(self.names.len()).unwrap_or(u32::MAX)
    }

    /// How all its names begin, and those of no other terms.
    pub(crate) fn prefix(&self) -> String {
        prefix(self.workload, &self.run)
    }

    /// Which keys a request is about, given the first: of several, the others lie far from it.
    pub(crate) fn each(&self, key: u32) -> impl Iterator<Item = usize> {
        let (keys, limits) = (self.names.len(), self.workload.limits);
        (0..limits).map(move |nth| (key as usize + nth * keys / limits) % keys)
    }

    /// The time of a token in whole microseconds, which is what scripts in Redis count in.
    pub(crate) fn token_us(&self) -> anyhow::Result<u64> {
        u64::try_from(self.workload.terms.token.as_micros()).context("a token's time is too long")
    }
}

fn prefix(workload: &Workload, run: &str) -> String {
    format!("{run}:{}:", workload.terms.name)
}
