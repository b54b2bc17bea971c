//! Checks a sliding window that several processes share against a log of all their requests.
//!
//! Compares windows that the database decides with windows that each process decides from its own reads.
//!
//! ```text
//! cargo bench --bench windows -- --url postgres://localhost/app
//! ```
//!
//! The window allows 100 requests in 60 s, counted in steps of 5 s, at twenty times the speed: 100 in 3 s, in steps of
//! 250 ms. Requests arrive at random, at a multiple of the allowed rate, and equally often in each process.

mod log;
mod worker;

use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::{Parser, ValueEnum};
use sqlx::{MySqlPool, PgPool, SqlitePool};
use tollgate::{Key, Window, migrate};
use uuid::Uuid;

use log::Log;

#[derive(Clone, Parser)]
#[command(about = "Measures how well processes keep a sliding window together")]
struct Arguments {
    /// URL of the database: postgres://, mysql:// or sqlite://.
    #[arg(long)]
    url: String,
    /// Number of processes that share the window.
    #[arg(long, default_value_t = 8)]
    processes: u32,
    /// Seconds to measure each value.
    #[arg(long, default_value_t = 20.0)]
    seconds: f64,
    /// Mode to measure. Default: both.
    #[arg(long, value_enum)]
    mode: Option<Mode>,
    /// Request rate as a multiple of the allowed rate. Default: 0.9, 1.5 and 5.
    #[arg(long)]
    load: Option<f64>,
    /// Key, for the processes that the benchmark starts.
    #[arg(long, hide = true)]
    worker: Option<String>,
    /// Passed by `cargo bench`.
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Mode {
    /// The database decides.
    Exact,
    /// Each process decides from its own reads.
    LocalReads,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    if let (Some(key), Some(mode), Some(load)) = (&arguments.worker, arguments.mode, arguments.load) {
        return worker::run(&arguments, Key::try_from(key.as_str())?, mode, load).await;
    }
    match arguments.url.split(':').next() {
        Some("postgres" | "postgresql") => migrate(&PgPool::connect(&arguments.url).await?).await.map(drop)?,
        Some("mysql" | "mariadb") => migrate(&MySqlPool::connect(&arguments.url).await?).await.map(drop)?,
        _ => migrate(&SqlitePool::connect(&arguments.url).await?).await.map(drop)?,
    }
    println!("{}", Log::HEADER);
    for load in arguments.load.map_or_else(|| vec![0.9, 1.5, 5.0], |load| vec![load]) {
        for mode in arguments.mode.map_or_else(|| vec![Mode::Exact, Mode::LocalReads], |mode| vec![mode]) {
            println!("{}", measure(&arguments, mode, load)?.line(mode, load));
        }
    }
    Ok(())
}

/// Starts the processes and reads their logs.
fn measure(arguments: &Arguments, mode: Mode, load: f64) -> anyhow::Result<Log> {
    let key = Uuid::new_v4().to_string();
    let mut children = Vec::new();
    for _ in 0..arguments.processes {
        let child = Command::new(std::env::current_exe()?)
            .args(["--url", &arguments.url, "--processes", &arguments.processes.to_string()])
            .args(["--seconds", &arguments.seconds.to_string(), "--load", &load.to_string(), "--worker", &key])
            .args(["--mode", mode.to_possible_value().context("a mode has a name")?.get_name()])
            .stdout(Stdio::piped())
            .spawn()?;
        children.push(child);
    }
    let mut log = Log::default();
    for child in children {
        let output = child.wait_with_output()?;
        ensure!(output.status.success(), "a process ended with {}", output.status);
        log.read(&String::from_utf8(output.stdout)?)?;
    }
    Ok(log)
}

fn window() -> anyhow::Result<Window> {
    Ok(Window::new(100, Duration::from_secs(3), Duration::from_millis(250))?)
}
