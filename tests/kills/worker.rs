//! Processes of this program that hold a file.

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
use crate::callers::{Callers, Notes};
use crate::database::Database;
use crate::gate::{Cut, Moment};

/// What is done in a process that this variable is set in, instead of the tests.
const ORDERS: &str = "TOLLGATE_KILLS_WORKER";

#[derive(Deserialize, Serialize)]
struct Orders {
    file: PathBuf,
    held: Option<(Moment, Request)>,
}

/// What such a process says, a line each.
#[derive(Deserialize, Serialize)]
enum Word {
    Asked(Request),
    Answered(u128),
    Held,
}

/// Where its request is held, as soon as it is asked.
static HELD_AT: OnceLock<Moment> = OnceLock::new();
/// Whether what is to be committed is the request.
static IS_WRITTEN: AtomicBool = AtomicBool::new(false);

/// Works, if this process was started for that.
pub fn work() -> Option<anyhow::Result<()>> {
    let orders = std::env::var(ORDERS).ok()?;
    std::thread::spawn(|| {
        let _ = stdin().read(&mut [0]);
        // Whoever started it is gone.
        std::process::exit(1);
    });
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    Some(runtime.map_err(Into::into).and_then(|runtime| runtime.block_on(ask(serde_json::from_str(&orders)?))))
}

async fn ask(orders: Orders) -> anyhow::Result<()> {
    let database = Database::file(&orders.file, hold).await?;
    let callers = Callers::new(database, Arc::new(Aloud));
    callers.are_answered().await?;
    let crowd = callers.crowd();
    if let Some((moment, request)) = orders.held {
        HELD_AT.get_or_init(|| moment);
        let outcome = callers.ask(request).await?;
        anyhow::bail!("the request passed the gate: {outcome:?}");
    }
    for caller in crowd {
        caller.await??;
    }
    anyhow::bail!("this process was not killed");
}

/// Holds the request in its transaction, which the triggers tell of.
fn hold(connection: &mut LockedSqliteHandle<'_>) {
    connection.set_update_hook(|change| match (HELD_AT.get(), change.table) {
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
    say(&Word::Held);
    loop {
        std::thread::park();
    }
}

/// A line is written at once, or not at all.
fn say(word: &Word) {
    let line = serde_json::to_string(word).expect("a word can be written") + "\n";
    stdout().write_all(line.as_bytes()).expect("somebody listens");
}

/// Notes that another process takes down.
struct Aloud;

impl Notes for Aloud {
    fn asked(&self, request: Request) {
        say(&Word::Asked(request));
    }

    fn answered(&self, id: u128) {
        say(&Word::Answered(id));
    }
}

pub struct Worker {
    child: Child,
    words: Lines<BufReader<ChildStdout>>,
    held: Option<u128>,
}

impl Worker {
    pub fn start(file: &Path, cut: Option<Cut>) -> anyhow::Result<Self> {
        let held = cut.map(|cut| (cut.moment, cut.request()));
        let id = held.as_ref().map(|(_, request)| request.id);
        let orders = serde_json::to_string(&Orders { file: file.to_owned(), held })?;
        let mut command = Command::new(std::env::current_exe()?);
        let command = command.env(ORDERS, orders).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn()?;
        let words = BufReader::new(child.stdout.take().context("its output was asked for")?).lines();
        Ok(Self { child, words, held: id })
    }

    /// Returns when the request waits at its gate; if none is to, somewhere among the others. Says which is held.
    pub async fn is_held(&mut self, books: &Books) -> anyhow::Result<Option<u128>> {
        let mut patience = fastrand::usize(1..100);
        while self.held.is_some() || patience > 0 {
            let word = self.words.next_line().await?.context("the process ended early")?;
            if take_down(&word, books)? {
                break;
            }
            patience = patience.saturating_sub(1);
        }
        Ok(self.held)
    }

    /// Ends it at once, in whatever it does, and takes down what it had said.
    pub async fn kill(mut self, books: &Books) -> anyhow::Result<()> {
        self.child.kill().await?;
        while let Some(word) = self.words.next_line().await? {
            take_down(&word, books)?;
        }
        Ok(())
    }
}

/// Says whether the request is held.
fn take_down(word: &str, books: &Books) -> anyhow::Result<bool> {
    match serde_json::from_str(word)? {
        Word::Asked(request) => books.asked(request),
        Word::Answered(id) => books.answered(id),
        Word::Held => return Ok(true),
    }
    Ok(false)
}
