use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;

use crate::server::Server;
use crate::steady::STRETCH;
use crate::workload::{WORKLOADS, Workload};

/// Measures tollgate, Redis and others in turns, and writes a report. Run it with scripts/bench, which starts the
/// servers.
#[derive(Clone, Debug, Parser)]
#[command(after_help = listing())]
pub(crate) struct Arguments {
    /// Workloads from the list below. Default: all but the last two.
    workloads: Vec<String>,
    /// Makes two short repeats with few keys: to see that everything runs, not to quote.
    #[arg(long)]
    quick: bool,
    /// Number of keys, for workloads with many keys. Default: 100000, or 10000 with --quick.
    #[arg(long, value_parser = clap::value_parser!(u32).range(10..))]
    keys: Option<u32>,
    /// Numbers of concurrent tasks. Default: 64, 256 and 1024, or the first two with --quick.
    #[arg(long, value_delimiter = ',')]
    tasks: Vec<usize>,
    /// Number of repeats, in which all take turns. Default: 5, or 2 with --quick.
    #[arg(long)]
    repeats: Option<u32>,
    /// Seconds of each measurement. Default: 1.5, or 0.3 with --quick.
    #[arg(long)]
    seconds: Option<f64>,
    /// SQL engines to measure.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "postgres,mysql,mariadb,sqlite")]
    pub(crate) engines: Vec<Server>,
    /// Measures only systems whose names contain one of these, such as `tollgate@`. Redis is always measured.
    #[arg(long, value_delimiter = ',')]
    pub(crate) only: Vec<String>,
    /// Directory of the report.
    #[arg(long, default_value = "target/bench")]
    pub(crate) output: PathBuf,
    /// Microseconds of network delay to add in each direction. SQLite has no network.
    #[arg(long, default_value_t = 0)]
    pub(crate) delay_us: u64,
    /// Minutes of load in `steady`.
    #[arg(long, default_value_t = 60.0)]
    minutes: f64,
    /// Measures nothing, and draws the charts of this directory again: NAME.svg from NAME.json, which are results of a
    /// workload or of growth.
    #[arg(long, value_name = "DIR")]
    pub(crate) draw: Option<PathBuf>,
    /// The job of a worker process.
    #[arg(long, hide = true)]
    pub(crate) worker: Option<String>,
}

impl Arguments {
    pub(crate) fn workloads(&self) -> anyhow::Result<Vec<&'static Workload>> {
        if self.workloads.is_empty() {
            return Ok(WORKLOADS.iter().collect());
        }
        let special = |name: &&String| [WAITERS, NEIGHBOURS, GROWTH, STEADY].contains(&name.as_str());
        self.workloads.iter().filter(|name| !special(name)).map(|name| Workload::named(name)).collect()
    }

    /// Returns how many callers wait for one key, if that is measured.
    pub(crate) fn waiters(&self) -> Option<usize> {
        self.wants(WAITERS).then_some(if self.quick { 2000 } else { 10_000 })
    }

    /// Whether to measure the effect of decisions on other users of the database.
    pub(crate) fn neighbours(&self) -> bool {
        self.wants(NEIGHBOURS) && self.engines.contains(&Server::Postgres)
    }

    /// How long pgbench runs each time. Its speed varies too much for less than a minute.
    pub(crate) fn pgbench_seconds(&self) -> u32 {
        if self.quick { 4 } else { 60 }
    }

    /// Whether to measure decisions by tasks, keys and processes. Takes minutes, so only on request.
    pub(crate) fn growth(&self) -> bool {
        self.workloads.iter().any(|name| name == GROWTH)
    }

    /// Whether to measure the effects of a long load.
    pub(crate) fn steady(&self) -> bool {
        self.workloads.iter().any(|name| name == STEADY)
    }

    /// Returns the number of stretches of the long load.
    pub(crate) fn stretches(&self) -> usize {
        let stretches = 60.0 * self.minutes / STRETCH.as_secs_f64();
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a number of half minutes")]
        let stretches = stretches.round() as usize;
        stretches.max(1)
    }

    /// Shortens the repeats for the many points of growth.
    pub(crate) fn of_growth(&self) -> Self {
        Self {
            keys: Some(self.keys.unwrap_or(if self.quick { 100_000 } else { 10_000_000 })),
            repeats: Some(self.repeats.unwrap_or(2)),
            seconds: Some(self.seconds.unwrap_or(if self.quick { 0.3 } else { 1.0 })),
            ..self.clone()
        }
    }

    fn wants(&self, special: &str) -> bool {
        self.workloads.is_empty() || self.workloads.iter().any(|name| name == special)
    }

    pub(crate) fn tasks(&self) -> &[usize] {
        match (&self.tasks[..], self.quick) {
            ([], true) => &[64, 256],
            ([], false) => &[64, 256, 1024],
            (tasks, _) => tasks,
        }
    }

    pub(crate) fn keys(&self) -> u32 {
        self.keys.unwrap_or(if self.quick { 10_000 } else { 100_000 })
    }

    pub(crate) fn repeats(&self) -> u32 {
        self.repeats.unwrap_or(if self.quick { 2 } else { 5 }).max(1)
    }

    pub(crate) fn time(&self) -> Duration {
        Duration::from_secs_f64(self.seconds.unwrap_or(if self.quick { 0.3 } else { 1.5 }))
    }

    /// Long enough for each session to compile and plan its calls. With many processes on two cores, that takes
    /// seconds.
    pub(crate) fn warm_up(&self, processes: u32) -> Duration {
        (self.time() / 5).max(Duration::from_millis(if self.quick { 50 } else { 150 }) * (processes + 2))
    }

    /// The number of tasks in the report's headline.
    pub(crate) fn headline(&self) -> usize {
        let wanted = self.tasks().iter().find(|&&tasks| tasks == 256);
        *wanted.or_else(|| self.tasks().first()).unwrap_or(&256)
    }
}

/// Lists the workloads.
fn listing() -> String {
    let special = [
        (WAITERS, "thousands who wait for one key: how late each goes on beyond its turn, and in which order"),
        (NEIGHBOURS, "pgbench on the same server, beside decisions at a rate"),
        (GROWTH, "decisions a second by tasks, keys and processes"),
        (STEADY, "whether an hour of load changes speed or size"),
    ];
    let workloads = WORKLOADS.iter().map(|workload| (workload.name, workload.about)).chain(special);
    workloads.fold("Workloads:".to_owned(), |listing, (name, about)| format!("{listing}\n  {name:<13}  {about}"))
}

const WAITERS: &str = "waiters";
const NEIGHBOURS: &str = "neighbours";
const GROWTH: &str = "growth";
const STEADY: &str = "steady";
