//! What decisions do to the neighbours: pgbench on the same server, alone and beside so many decisions a second.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde::Serialize;
use sqlx::Postgres;
use tokio::process::Command;
use tokio::sync::Semaphore;
use tokio::time::{MissedTickBehavior, interval};
use tollgate::{Limiter, Quota, SqlStore};

use crate::books::Books;
use crate::engine::{CONNECTIONS, Engine};
use crate::figures::median;
use crate::server::Server;
use crate::venues::Venues;

/// pgbench beside a number of decisions a second.
#[derive(Debug, Serialize)]
pub(crate) struct Beside {
    /// How many decisions a second were asked for, and how many were made.
    pub(crate) asked: u32,
    pub(crate) made: f64,
    /// Transactions a second of pgbench in each repeat, and as a share of those it made alone.
    pub(crate) tps: Vec<f64>,
    pub(crate) of_alone: f64,
    /// In milliseconds, of each repeat.
    pub(crate) p99: Vec<f64>,
}

/// All take turns in each repeat, alone among them.
pub(crate) async fn measure(run: &str, venues: &Venues, repeats: u32, keys: u32) -> anyhow::Result<Vec<Beside>> {
    let pgbench: PathBuf = env::var("TOLLGATE_PGBENCH").context("TOLLGATE_PGBENCH names no program")?.into();
    let url = Server::Postgres.database(run)?;
    let made = Command::new(&pgbench).args(["-i", "-q", "-s", "10", &url]).stderr(Stdio::null()).status().await?;
    ensure!(made.success(), "pgbench cannot make its tables");
    let prefix = format!("{run}:neighbours:");
    let mut levels: Vec<Beside> =
        LEVELS.map(|asked| Beside { asked, made: 0.0, tps: Vec::new(), of_alone: 1.0, p99: Vec::new() }).into();
    for repeat in 0..repeats as usize {
        for place in (0..levels.len()).map(|place| (place + repeat) % LEVELS.len()) {
            let level = &mut levels[place];
            let stop = Arc::new(AtomicBool::new(false));
            let debited = venues.debited(Server::Postgres, &prefix).await?;
            let deciding = tokio::spawn(decide(url.clone(), prefix.clone(), keys, level.asked, Arc::clone(&stop)));
            let transactions = transactions(&pgbench, &url, Path::new("target/bench")).await;
            stop.store(true, Ordering::Relaxed);
            let (made, books) = deciding.await??;
            level.made += made / f64::from(repeats);
            books.check(venues.debited(Server::Postgres, &prefix).await? - debited)?;
            let mut latencies = transactions?;
            ensure!(!latencies.is_empty(), "pgbench has made no transaction");
            latencies.sort_unstable();
            #[expect(clippy::cast_precision_loss, reason = "a figure is no more precise")]
            level.tps.push(latencies.len() as f64 / SECONDS as f64);
            level.p99.push(Duration::from_micros(latencies[latencies.len() * 99 / 100]).as_secs_f64() * 1e3);
            eprintln!("neighbours, {}/s: {:.0} transactions a second", level.asked, level.tps[level.tps.len() - 1]);
        }
    }
    let alone = levels[0].tps.clone();
    for level in &mut levels {
        level.of_alone = median(level.tps.iter().zip(&alone).map(|(beside, alone)| beside / alone));
    }
    Ok(levels)
}

/// How long each transaction took, in microseconds.
async fn transactions(pgbench: &Path, url: &str, directory: &Path) -> anyhow::Result<Vec<u64>> {
    let prefix = directory.join(format!("pgbench-{}", std::process::id()));
    let log = format!("--log-prefix={}", prefix.display());
    let seconds = SECONDS.to_string();
    let arguments = ["-n", "-c", "4", "-j", "1", "-T", &seconds, "--log", &log, url];
    let child = Command::new(pgbench).args(arguments).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
    let file = directory.join(format!("pgbench-{}.{}", std::process::id(), child.id().context("it has ended")?));
    let output = child.wait_with_output().await?;
    ensure!(output.status.success(), "pgbench: {}", String::from_utf8_lossy(&output.stderr));
    let text = std::fs::read_to_string(&file)?;
    std::fs::remove_file(&file)?;
    // The third word of a line.
    let latency = |line: &str| line.split(' ').nth(2).and_then(|word| word.parse().ok());
    Ok(text.lines().filter_map(latency).collect())
}

/// Asks so often a second, whatever the answers take, and says how often it was granted in a second, and what of all.
async fn decide(
    url: String,
    prefix: String,
    keys: u32,
    a_second: u32,
    stop: Arc<AtomicBool>,
) -> anyhow::Result<(f64, Books)> {
    if a_second == 0 {
        return Ok((0.0, Books::default()));
    }
    let pool = Postgres::open(&url, CONNECTIONS, false).await?;
    // Full again when all is over: until then, no bucket is swept.
    let quota = Quota::continuous(CAPACITY, Duration::from_hours(CAPACITY))?;
    let limiter = Limiter::new(SqlStore::from(pool.clone()), quota)?;
    let (granted, failed) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let start = Instant::now();
    let under_way = Arc::new(Semaphore::new(MOST_UNDER_WAY));
    let (mut random, mut asked) = (fastrand::Rng::with_seed(1), 0);
    let mut ticks = interval(Duration::from_millis(1));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while !stop.load(Ordering::Relaxed) {
        ticks.tick().await;
        let due = start.elapsed().as_micros() * u128::from(a_second) / 1_000_000;
        while asked < due {
            asked += 1;
            // What cannot be asked in time is not made up for.
            let Ok(permit) = Arc::clone(&under_way).try_acquire_owned() else { continue };
            let (limiter, granted, failed) = (limiter.clone(), Arc::clone(&granted), Arc::clone(&failed));
            let key = format!("{prefix}{}", random.u32(..keys));
            tokio::spawn(async move {
                match limiter.allow(key).await {
                    Ok(decision) => granted.fetch_add(decision.is_granted().into(), Ordering::Relaxed),
                    Err(_) => failed.fetch_add(1, Ordering::Relaxed),
                };
                drop(permit);
            });
        }
    }
    #[expect(clippy::cast_precision_loss, reason = "a figure is no more precise")]
    let made = granted.load(Ordering::Relaxed) as f64 / start.elapsed().as_secs_f64();
    let _ = under_way.acquire_many(u32::try_from(MOST_UNDER_WAY)?).await?;
    pool.close().await;
    let (granted, unknown) = (granted.load(Ordering::Relaxed), failed.load(Ordering::Relaxed));
    Ok((made, Books { granted, unknown, ahead: false }))
}

/// Decisions a second; alone first.
const LEVELS: [u32; 4] = [0, 1000, 10_000, 50_000];
const SECONDS: u64 = 4;
/// Tokens of a bucket, which come back one an hour.
const CAPACITY: u64 = 500_000;
const MOST_UNDER_WAY: usize = 4096;
