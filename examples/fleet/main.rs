//! Many processes take tokens of one bucket or more, and a checker verifies all answers.
//!
//! ```text
//! cargo run --example fleet --features fleet                                  # on a SQLite database that is removed afterwards
//! cargo run --example fleet --features fleet -- --url postgres://localhost/app --processes 8 --tasks 5 --seconds 3
//! cargo run --example fleet --features fleet -- --capacity 20 --refill-seconds 2 --refill continuous
//! ```
//!
//! Prints the grants of each second. Fails if a window exceeded its limit, or if a token was lost to a false denial.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::{Parser, Subcommand, ValueEnum};
use common::fleet::checker::{Call, Fault, Limit};
use common::fleet::database::Database;
use common::fleet::worker::{self, Orders, Report};
use common::processes::Processes;
use tokio::process::Command;
use tollgate::Quota;
use tollgate::model::bucket::BucketQuota;
use uuid::Uuid;

/// Starts processes that share buckets, and checks every window of their grants
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    role: Option<Role>,
    /// The database. Given several times, the nodes of a database that Citus distributes: the processes take turns. Default: a
    /// temporary SQLite file
    #[arg(long)]
    url: Vec<String>,
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1000))]
    processes: u32,
    /// Tasks in each process, with a connection each
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    tasks: u32,
    /// Buckets. Each request is for a random one
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    keys: u32,
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    #[arg(long, default_value_t = 2)]
    capacity: u64,
    #[arg(long, default_value_t = 1.0)]
    refill_seconds: f64,
    #[arg(long, default_value = "interval")]
    refill: Refill,
}

#[derive(Subcommand)]
enum Role {
    /// A process of the fleet
    #[command(hide = true)]
    Worker,
}

#[derive(Clone, Copy, ValueEnum)]
enum Refill {
    Interval,
    Continuous,
}

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    let arguments = Arguments::parse();
    if let Some(Role::Worker) = arguments.role {
        worker::work().await?;
        return Ok(ExitCode::SUCCESS);
    }
    if !arguments.url.is_empty() {
        return run(&arguments, &arguments.url).await;
    }
    let directory = std::env::temp_dir().join(format!("tollgate-{}", Uuid::new_v4()));
    std::fs::create_dir(&directory)?;
    let result = run(&arguments, &[format!("sqlite://{}?mode=rwc", directory.join("app.db").display())]).await;
    std::fs::remove_dir_all(&directory)?;
    result
}

async fn run(arguments: &Arguments, urls: &[String]) -> anyhow::Result<ExitCode> {
    let refill = Duration::try_from_secs_f64(arguments.refill_seconds)?;
    let quota = match arguments.refill {
        Refill::Interval => Quota::interval(arguments.capacity, refill)?,
        Refill::Continuous => Quota::continuous(arguments.capacity, refill)?,
    };
    let program = std::env::current_exe()?;
    let run = Uuid::new_v4();
    let ids: Vec<String> = (0..arguments.keys).map(|key| format!("{run}:{key}")).collect();
    let limits = provision(&urls[0], &ids, quota).await?;
    let orders = |url: &String| Orders { url: url.clone(), ids: ids.clone(), tasks: arguments.tasks };
    let crew: Vec<Orders> = urls.iter().cycle().take(usize::try_from(arguments.processes)?).map(orders).collect();
    let fleet = Processes::start(&crew, || {
        let mut command = Command::new(&program);
        command.arg("worker");
        command
    })
    .await?;
    let Arguments { processes, tasks, keys, .. } = arguments;
    println!("{processes} processes × {tasks} tasks on {keys} bucket(s): {quota}\n");
    let reports: Vec<Report> = fleet.run(&Duration::from_secs(arguments.seconds)).await?;

    let mut whole = Report::default();
    for report in reports {
        whole.merge(report);
    }
    let Report { calls, retries, lost } = whole;
    let answers: usize = calls.values().map(Vec::len).sum();
    ensure!(answers > 0, "{retries} refusals and not one answer: {lost:?}");
    if let ([limit], [calls]) = (&*limits, &*calls.values().collect::<Vec<_>>()) {
        print_seconds(limit, calls);
    }
    println!("\n{answers} answers, {retries} retries, {} errors", lost.len());
    for error in lost.iter().take(SHOWN) {
        println!("  {error}");
    }

    let mut faults: Vec<Fault> = calls.iter().flat_map(|(&position, calls)| limits[position].faults(calls)).collect();
    if !lost.is_empty() {
        // A call without an answer may have taken the token that a denied call requested.
        faults.retain(|fault| !matches!(fault, Fault::LostToDenial { .. }));
    }
    Ok(verdict(&faults))
}

/// Migrates the database, and creates a bucket for each id. Returns their limits.
async fn provision(url: &str, ids: &[String], quota: Quota) -> anyhow::Result<Vec<Limit>> {
    let database = Database::connect(url, 1).await.context("cannot connect")?;
    database.migrate().await?;
    let mut limits = Vec::with_capacity(ids.len());
    for id in ids {
        limits.push(Limit { quota: BucketQuota::at(&quota, 0), anchor: database.provision(id, quota).await? });
    }
    database.close().await;
    Ok(limits)
}

/// Prints the grants and denials of each second since the bucket was created, by the database's time.
fn print_seconds(limit: &Limit, calls: &[Call]) {
    let mut seconds = BTreeMap::new();
    for call in calls {
        let second = call.at.map(|at| (at - limit.anchor).div_euclid(SECOND_NS));
        let (granted, denied) = seconds.entry(second.unwrap_or_default()).or_insert((0, 0));
        *(if call.granted { granted } else { denied }) += call.cost;
    }
    println!("second  granted  limit  denied");
    let first = seconds.keys().next().copied().unwrap_or_default();
    for (second, (granted, denied)) in seconds {
        let from = limit.anchor + second * SECOND_NS;
        let most = most(limit, from, from + SECOND_NS - 1);
        println!("{:>6}  {granted:>7}  {most:>5}  {denied:>6}", second - first);
    }
}

/// The most tokens that a window can hold, including both of its ends.
fn most(Limit { quota, anchor }: &Limit, from: i64, to: i64) -> i64 {
    let steps = (to - anchor).div_euclid(quota.step_ns) - (from - anchor).div_euclid(quota.step_ns);
    (quota.burst() + steps * quota.step_ticks) / quota.token_ticks
}

fn verdict(faults: &[Fault]) -> ExitCode {
    if faults.is_empty() {
        println!(
            "no window exceeded, by the database's time nor by the callers' clocks; no token lost to a false denial"
        );
        return ExitCode::SUCCESS;
    }
    for fault in faults.iter().take(SHOWN) {
        println!("FAULT: {fault}");
    }
    println!("{} faults", faults.len());
    ExitCode::FAILURE
}

const SECOND_NS: i64 = 1_000_000_000;
const SHOWN: usize = 10;
