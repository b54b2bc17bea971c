//! Processes of this test that have a file open.

use std::io::{Read, Write, stdin, stdout};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use anyhow::Context;
use serde::{Deserialize, Serialize};
use sqlx::sqlite::LockedSqliteHandle;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use crate::accounting::{Books, Request};
use crate::callers::{Callers, Recorder};
use crate::database::Database;
use crate::gate::{Cut, Moment};

/// The variable with the orders of a worker. It is set in processes that work instead of running the tests.
const ORDERS: &str = "TOLLGATE_KILLS_WORKER";

#[derive(Deserialize, Serialize)]
struct Orders {
    file: PathBuf,
    gated: Option<(Moment, Request)>,
}

/// A line that a worker prints.
#[derive(Deserialize, Serialize)]
enum Line {
    Requested(Request),
    Answered(u128),
    AtGate,
}

/// The point at which this worker holds its request. Set before the worker makes the request.
static GATE: OnceLock<Moment> = OnceLock::new();
/// Whether the next commit is the commit of the request to hold.
static IS_WRITTEN: AtomicBool = AtomicBool::new(false);

/// Follows the orders of a worker, if this process is one.
pub fn work() -> Option<anyhow::Result<()>> {
    let orders = std::env::var(ORDERS).ok()?;
    std::thread::spawn(|| {
        let _ = stdin().read(&mut [0]);
        // The process that started this one has ended.
        std::process::exit(1);
    });
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    Some(runtime.map_err(Into::into).and_then(|runtime| runtime.block_on(run(serde_json::from_str(&orders)?))))
}

async fn run(orders: Orders) -> anyhow::Result<()> {
    let database = Database::file(&orders.file, hold).await?;
    let callers = Callers::new(database, Arc::new(Printing));
    callers.take_once_each().await?;
    let tasks = callers.spawn_all();
    if let Some((moment, request)) = orders.gated {
        GATE.get_or_init(|| moment);
        let outcome = callers.send(request).await?;
        anyhow::bail!("the request passed the gate: {outcome:?}");
    }
    for task in tasks {
        task.await??;
    }
    anyhow::bail!("this process was not killed");
}

/// Holds the request in its transaction. The triggers show how far the transaction is.
fn hold(connection: &mut LockedSqliteHandle<'_>) {
    connection.set_update_hook(|change| match (GATE.get(), change.table) {
        (Some(Moment::Id), "gate_id") | (Some(Moment::Debit), "gate_debit") => wait_for_death(),
        (Some(Moment::Commit), "gate_id") => IS_WRITTEN.store(true, Ordering::SeqCst),
        _ => {}
    });
    connection.set_commit_hook(|| {
        if IS_WRITTEN.load(Ordering::SeqCst) {
            wait_for_death();
        }
        true
    });
}

fn wait_for_death() {
    print(&Line::AtGate);
    loop {
        std::thread::park();
    }
}

/// Prints a line in one write, so that it is printed entirely or not at all.
fn print(line: &Line) {
    let line = serde_json::to_string(line).expect("a line can be written") + "\n";
    stdout().write_all(line.as_bytes()).expect("the parent reads the output");
}

/// Prints requests and answers, for the parent to record.
struct Printing;

impl Recorder for Printing {
    fn requested(&self, request: Request) {
        print(&Line::Requested(request));
    }

    fn answered(&self, id: u128) {
        print(&Line::Answered(id));
    }
}

pub struct Worker {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    gated: Option<u128>,
}

impl Worker {
    pub fn start(file: &Path, cut: Option<Cut>) -> anyhow::Result<Self> {
        let gated = cut.map(|cut| (cut.moment, cut.request()));
        let id = gated.as_ref().map(|(_, request)| request.id);
        let orders = serde_json::to_string(&Orders { file: file.to_owned(), gated })?;
        let mut command = Command::new(std::env::current_exe()?);
        let command = command.env(ORDERS, orders).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn()?;
        let lines = BufReader::new(child.stdout.take().context("its output is piped")?).lines();
        Ok(Self { child, lines, gated: id })
    }

    /// Returns the id of the request once it waits at its gate. Without such a request, returns after a random number of lines.
    pub async fn until_at_gate(&mut self, books: &Books) -> anyhow::Result<Option<u128>> {
        let mut patience = fastrand::usize(1..100);
        while self.gated.is_some() || patience > 0 {
            let line = self.lines.next_line().await?.context("the process ended early")?;
            if record(&line, books)? {
                break;
            }
            patience = patience.saturating_sub(1);
        }
        Ok(self.gated)
    }

    /// Kills the process, and records the lines that it had printed.
    pub async fn kill(mut self, books: &Books) -> anyhow::Result<()> {
        self.child.kill().await?;
        while let Some(line) = self.lines.next_line().await? {
            record(&line, books)?;
        }
        Ok(())
    }
}

/// Records a line. Returns whether the line says that the request is held.
fn record(line: &str, books: &Books) -> anyhow::Result<bool> {
    match serde_json::from_str(line)? {
        Line::Requested(request) => books.requested(request),
        Line::Answered(id) => books.answered(id),
        Line::AtGate => return Ok(true),
    }
    Ok(false)
}
