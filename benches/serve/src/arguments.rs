use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;

use crate::load::Load;
use crate::system::System;
use crate::workload::Workload;

/// Measures `tollgate serve` beside services over Redis, in turns. Run it with scripts/bench serve, which starts the
/// servers.
#[derive(Clone, Debug, Parser)]
pub(crate) struct Arguments {
    /// Workloads. Default: all.
    #[arg(value_enum)]
    workloads: Vec<Workload>,
    /// Makes two short repeats with few keys: to see that everything runs, not to quote.
    #[arg(long)]
    quick: bool,
    /// Seconds of each measurement. Default: 3, or 1 with --quick.
    #[arg(long)]
    seconds: Option<f64>,
    /// Number of repeats, in which all systems take turns. Default: 3, or 2 with --quick.
    #[arg(long)]
    repeats: Option<u32>,
    /// Number of concurrent tasks, except in `paced`.
    #[arg(long, default_value_t = 256)]
    tasks: usize,
    /// Number of HTTP/2 connections.
    #[arg(long, default_value_t = 4)]
    connections: usize,
    /// Number of keys in `uniform`. Default: 100000, or 10000 with --quick.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    keys: Option<u32>,
    /// Also measures tollgate over a Unix socket.
    #[arg(long)]
    unix: bool,
    /// Measures only these systems, such as `tollgate,stand-in`.
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<System>,
    /// File of the report.
    #[arg(long, default_value = "target/bench/serve.md")]
    pub(crate) output: PathBuf,
}

impl Arguments {
    pub(crate) fn workloads(&self) -> Vec<Workload> {
        if self.workloads.is_empty() { Workload::ALL.to_vec() } else { self.workloads.clone() }
    }

    /// Returns the systems under test of all workloads.
    pub(crate) fn systems(&self) -> Vec<System> {
        let is_wanted = |system: &System| match system {
            _ if !self.only.is_empty() => self.only.contains(system),
            System::TollgateUnix => self.unix,
            _ => true,
        };
        System::ALL.into_iter().filter(is_wanted).collect()
    }

    pub(crate) fn repeats(&self) -> u32 {
        self.repeats.unwrap_or(if self.quick { 2 } else { 3 }).max(1)
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections.max(1)
    }

    pub(crate) fn keys(&self) -> u32 {
        self.keys.unwrap_or(if self.quick { 10_000 } else { 100_000 })
    }

    pub(crate) fn load(&self) -> Load {
        let time =
            Duration::from_secs_f64(self.seconds.unwrap_or(if self.quick { 1.0 } else { 3.0 }).clamp(0.1, 3600.0));
        let warm_up = (time / 5).max(Duration::from_millis(300));
        Load { tasks: self.tasks.max(1), warm_up, time }
    }
}
