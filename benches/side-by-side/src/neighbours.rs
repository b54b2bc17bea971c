//! Measures how decisions affect other users of a server: pgbench alone, beside decisions, and beside comparable
//! statements.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, ensure};
use serde::Serialize;
use tokio::process::Command;

use crate::pace::{Pace, Paced};
use crate::scene::Scene;
use crate::server::Server;
use crate::statistics::median;
use crate::system::{Kind, System};
use crate::turns::Turns;
use crate::venues::Venues;
use crate::workload::Workload;

/// pgbench beside a number of decisions per second.
#[derive(Debug, Serialize)]
pub(crate) struct Beside {
    /// The system that decided. `None` if pgbench ran alone.
    pub(crate) system: Option<String>,
    /// Decisions per second that were requested. `made` is the number of those that were made.
    #[serde(rename = "asked")]
    pub(crate) requested: u32,
    pub(crate) made: f64,
    /// Transactions of pgbench per second in each repeat. `of_alone` is their share of those that pgbench made alone.
    pub(crate) tps: Vec<f64>,
    pub(crate) of_alone: f64,
    /// Milliseconds, for each repeat.
    pub(crate) p99: Vec<f64>,
}

/// Measures all levels in turns in each repeat, including pgbench alone.
pub(crate) async fn measure(
    run: &str,
    venues: &Venues,
    turns: &mut Turns<'_>,
    repeats: u32,
    keys: u32,
    seconds: u32,
) -> anyhow::Result<Vec<Beside>> {
    let pgbench: PathBuf = env::var("TOLLGATE_PGBENCH").context("TOLLGATE_PGBENCH names no program")?.into();
    let url = Server::Postgres.database(run)?;
    let made = Command::new(&pgbench).args(["-i", "-q", "-s", "10", &url]).stderr(Stdio::null()).status().await?;
    ensure!(made.success(), "pgbench cannot make its tables");
    let scene = Scene::new(Workload::named("uniform")?, run, keys);
    for system in LEVELS.into_iter().filter_map(|(system, _)| system) {
        turns.load(system, &scene).await?;
    }
    let mut levels: Vec<Beside> = LEVELS.into_iter().map(|(system, requested)| Beside::of(system, requested)).collect();
    for repeat in 0..repeats as usize {
        for place in (0..LEVELS.len()).map(|place| (place + repeat) % LEVELS.len()) {
            let ((system, requested), level) = (LEVELS[place], &mut levels[place]);
            let pace = Pace { a_second: requested, keys: scene.keys(), stop: Arc::new(AtomicBool::new(false)) };
            let transactions = transactions(&pgbench, &url, Path::new("target/bench"), seconds);
            let (paced, transactions) = match system {
                None => (Paced::default(), transactions.await?),
                Some(system) => beside(system, pace, &scene, venues, transactions).await?,
            };
            level.made += paced.made / f64::from(repeats);
            level.add(transactions, seconds)?;
            eprintln!("neighbours, {}: {:.0} transactions a second", level.name(), level.tps[level.tps.len() - 1]);
        }
    }
    let alone = levels[0].tps.clone();
    for level in &mut levels {
        level.of_alone = median(level.tps.iter().zip(&alone).map(|(beside, alone)| beside / alone));
    }
    Ok(levels)
}

impl Beside {
    fn of(system: Option<System>, requested: u32) -> Self {
        let system = system.map(|system| system.to_string());
        Self { system, requested, made: 0.0, tps: Vec::new(), of_alone: 1.0, p99: Vec::new() }
    }

    pub(crate) fn name(&self) -> String {
        let beside = |system: &String| format!("{system}, {}/s", self.requested);
        self.system.as_ref().map_or_else(|| "alone".to_owned(), beside)
    }

    /// Adds the latencies of a repeat's transactions, in microseconds.
    fn add(&mut self, mut latencies: Vec<u64>, seconds: u32) -> anyhow::Result<()> {
        ensure!(!latencies.is_empty(), "pgbench has made no transaction");
        latencies.sort_unstable();
        #[expect(clippy::cast_precision_loss, reason = "a figure is no more precise")]
        self.tps.push(latencies.len() as f64 / f64::from(seconds));
        self.p99.push(Duration::from_micros(latencies[latencies.len() * 99 / 100]).as_secs_f64() * 1e3);
        Ok(())
    }
}

/// Returns the decisions of a system under test while another task ran.
async fn beside<T>(
    system: System,
    pace: Pace,
    scene: &Scene,
    venues: &Venues,
    other: impl Future<Output = anyhow::Result<T>>,
) -> anyhow::Result<(Paced, T)> {
    let debited = venues.debited(Server::Postgres, &scene.prefix()).await?;
    let opened = system.open(scene).await?;
    let other = async {
        let done = other.await;
        pace.stop.store(true, Ordering::Relaxed);
        done
    };
    let (paced, done) = tokio::join!(opened.pace(pace.clone()), other);
    opened.close().await;
    let paced = paced?;
    if system.kind == Kind::Tollgate {
        paced.books.check(venues.debited(Server::Postgres, &scene.prefix()).await? - debited)?;
    }
    Ok((paced, done?))
}

/// Returns the latency of each transaction in microseconds.
async fn transactions(pgbench: &Path, url: &str, directory: &Path, seconds: u32) -> anyhow::Result<Vec<u64>> {
    let prefix = directory.join(format!("pgbench-{}", std::process::id()));
    let log = format!("--log-prefix={}", prefix.display());
    let seconds = seconds.to_string();
    let arguments = ["-n", "-c", "4", "-j", "1", "-T", &seconds, "--log", &log, url];
    let child = Command::new(pgbench).args(arguments).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
    let file = directory.join(format!("pgbench-{}.{}", std::process::id(), child.id().context("it has ended")?));
    let output = child.wait_with_output().await?;
    ensure!(output.status.success(), "pgbench: {}", String::from_utf8_lossy(&output.stderr));
    let text = std::fs::read_to_string(&file)?;
    std::fs::remove_file(&file)?;
    // The third word of a line is the latency.
    let latency = |line: &str| line.split(' ').nth(2).and_then(|word| word.parse().ok());
    Ok(text.lines().filter_map(latency).collect())
}

const TOLLGATE: System = System { kind: Kind::Tollgate, server: Some(Server::Postgres) };
const BARE: System = System { kind: Kind::Bare, server: Some(Server::Postgres) };
const REDIS: System = System { kind: Kind::Redis, server: Some(Server::Redis) };

/// The systems and their decisions per second. The first level is pgbench alone.
const LEVELS: [(Option<System>, u32); 8] = [
    (None, 0),
    (Some(TOLLGATE), 1000),
    (Some(TOLLGATE), 10_000),
    (Some(TOLLGATE), 50_000),
    (Some(BARE), 1000),
    (Some(BARE), 10_000),
    (Some(REDIS), 1000),
    (Some(REDIS), 10_000),
];
