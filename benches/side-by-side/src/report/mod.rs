//! Writes the report: JSON for programs, a table and charts for readers.

mod axis;
mod dots;
mod goals;
pub(crate) mod growth;
mod lines;
mod machine;
mod panel;
mod ratios;
pub(crate) mod saved;
pub(crate) mod steady;
mod style;
mod table;

use std::fs;
use std::path::Path;

use serde::Serialize;

use crate::arguments::Arguments;
use crate::neighbours::Beside;
use crate::proxy;
use crate::statistics::Measured;
use crate::waiters::Waited;
use goals::{Judged, Run};
use machine::Machine;
use ratios::Ratios;

#[derive(Debug, Serialize)]
pub(crate) struct Report {
    machine: Machine,
    /// Versions of servers and of the measured crates.
    versions: Vec<String>,
    /// Microseconds added in each direction between client and servers.
    delay_us: u64,
    repeats: u32,
    seconds: f64,
    /// The number of tasks of `ratios_to_redis`.
    tasks: usize,
    #[serde(flatten)]
    ratios: Ratios,
    goals: Vec<Judged>,
    waiters: Vec<Waited>,
    neighbours: Vec<Beside>,
    faults: Vec<String>,
    #[serde(skip)]
    measured: Vec<Measured>,
}

impl Report {
    pub(crate) fn new(arguments: &Arguments, servers: Vec<String>) -> Self {
        Self {
            machine: Machine::this(),
            versions: servers.into_iter().chain(machine::crates()).collect(),
            delay_us: proxy::delay(),
            repeats: arguments.repeats(),
            seconds: arguments.time().as_secs_f64(),
            tasks: arguments.headline(),
            ratios: Ratios::default(),
            goals: Vec::new(),
            waiters: Vec::new(),
            neighbours: Vec::new(),
            faults: Vec::new(),
            measured: Vec::new(),
        }
    }

    pub(crate) fn add(&mut self, measured: Measured) {
        self.faults.extend(measured.faults());
        self.measured.push(measured);
        self.ratios = Ratios::new(&self.measured, self.tasks);
        self.judge();
    }

    fn judge(&mut self) {
        self.goals = Run { measured: &self.measured, waiters: &self.waiters, headline: self.tasks }.judge();
    }

    pub(crate) fn add_waited(&mut self, store: &str, waited: anyhow::Result<Waited>) {
        match waited {
            Ok(waited) => self.waiters.push(waited),
            Err(error) => self.faults.push(format!("waiters, {store}: {error:#}")),
        }
        self.judge();
    }

    pub(crate) fn add_beside(&mut self, beside: anyhow::Result<Vec<Beside>>) {
        match beside {
            Ok(beside) => self.neighbours = beside,
            Err(error) => self.faults.push(format!("neighbours: {error:#}")),
        }
    }

    pub(crate) fn add_faults(&mut self, faults: impl Iterator<Item = String>) {
        self.faults.extend(faults);
    }

    /// Whether the report has results. Growth and the long load have their own reports.
    pub(crate) fn is_of_something(&self) -> bool {
        !(self.measured.is_empty() && self.waiters.is_empty() && self.neighbours.is_empty())
    }

    pub(crate) fn faults(&self) -> impl Iterator<Item = &String> {
        self.faults.iter()
    }

    pub(crate) fn markdown(&self) -> String {
        table::markdown(self)
    }

    pub(crate) fn write(&self, directory: &Path) -> anyhow::Result<()> {
        for measured in &self.measured {
            let file = |end: &str| directory.join(format!("{}{end}", measured.workload));
            fs::write(file(".json"), serde_json::to_string_pretty(measured)?)?;
            let tasks = measured.shown(self.tasks);
            let (workload, rows) = (measured.workload, &measured.rows);
            fs::write(file("-throughput.svg"), dots::throughput(workload, rows, tasks)?)?;
            fs::write(file("-latency.svg"), dots::latency(workload, rows, tasks)?)?;
            fs::write(file("-scaling.svg"), lines::scaling(measured)?)?;
        }
        fs::write(directory.join("report.json"), serde_json::to_string_pretty(self)?)?;
        fs::write(directory.join("report.md"), self.markdown())?;
        Ok(())
    }
}
