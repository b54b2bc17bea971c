//! Databases that are killed in the middle of requests with ids: what was answered stays, what was not is paid once.
//!
//! Each engine is a server of this program's own, in a directory of its own; neither outlives it. How often each is
//! killed says `TOLLGATE_KILLS`: fifty times if not said, and a process that has a file twice as often. What a crash
//! forgets, as durable as the commits are. And processes that lease tokens, which are stopped and killed.

// Nothing outside uses a test.
#![allow(unreachable_pub)]

#[path = "kills/books.rs"]
mod books;
#[path = "kills/callers.rs"]
mod callers;
#[path = "../examples/fleet/checker.rs"]
mod checker;
#[path = "kills/database.rs"]
mod database;
#[path = "kills/durability.rs"]
mod durability;
#[path = "kills/gate.rs"]
mod gate;
#[path = "kills/guard.rs"]
mod guard;
#[path = "kills/leases.rs"]
mod leases;
#[path = "kills/process.rs"]
mod process;
#[path = "kills/server.rs"]
mod server;
#[path = "kills/worker.rs"]
mod worker;

use std::sync::Arc;

use anyhow::{Context, ensure};
use libtest_mimic::{Arguments, Failed, Trial};

use books::Books;
use callers::Callers;
use database::{Database, Engine};
use gate::{CUTS, Gate};
use guard::Guard;
use server::Server;
use worker::Worker;

fn main() -> anyhow::Result<()> {
    if let Some(worked) = worker::work().or_else(leases::work) {
        return worked;
    }
    let mut trials = vec![
        Trial::test("sqlite::a_request_that_is_killed_with_its_process_pays_once", || {
            finished(a_request_that_is_killed_with_its_process_pays_once())
        }),
        Trial::test("sqlite::leases_of_processes_that_are_stopped_and_killed_exceed_no_bound", || {
            finished(leases::leases_of_processes_that_are_stopped_and_killed_exceed_no_bound(None))
        }),
        Trial::test("postgres::a_crash_forgets_nothing_that_was_answered_or_at_most_a_capacity", || {
            finished(durability::a_crash_forgets_nothing_that_was_answered_or_at_most_a_capacity())
        }),
    ];
    for engine in [Engine::Postgres, Engine::MySql, Engine::MariaDb] {
        let name = format!("{}::a_request_that_is_killed_with_its_server_pays_once", engine.name());
        let trial = move || finished(a_request_that_is_killed_with_its_server_pays_once(engine));
        trials.push(Trial::test(name, trial));
        let name = format!("{}::leases_of_processes_that_are_stopped_and_killed_exceed_no_bound", engine.name());
        let trial =
            move || finished(leases::leases_of_processes_that_are_stopped_and_killed_exceed_no_bound(Some(engine)));
        trials.push(Trial::test(name, trial));
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

/// One request is held in its transaction, the others are anywhere.
async fn a_request_that_is_killed_with_its_server_pays_once(engine: Engine) -> anyhow::Result<()> {
    let mut server = Server::start(engine).await?;
    let mut database = server.connect().await?;
    database.migrate().await?;
    gate::build(&database).await?;

    let books = Arc::new(Books::default());
    for round in 0..rounds()? {
        let cut = CUTS[round % CUTS.len()];
        let callers = Callers::new(database.clone(), Arc::clone(&books));
        callers.are_answered().await?;
        let mut gate = Gate::close(&database, cut.moment).await?;
        let crowd = callers.crowd();
        let request = cut.request();
        let held = tokio::spawn(callers.clone().ask(request.clone()));
        gate.is_reached(&held).await.with_context(|| format!("{cut:?}"))?;
        server.kill().await?;
        drop(gate);
        // Nobody waits for a connection to what is dead.
        database.close().await;

        let error = held.await??.context("a dead server granted a request")?;
        ensure!(error.is_outcome_unknown(), "{cut:?}: {error:?}");
        for caller in crowd {
            caller.await??;
        }
        server.restart()?;
        database = server.connect().await?;
        audit(&database, &books, Some(request.id)).await.with_context(|| format!("round {round}, {cut:?}"))?;
    }
    Ok(())
}

/// As above, and then a second time, at any point of any request.
async fn a_request_that_is_killed_with_its_process_pays_once() -> anyhow::Result<()> {
    let guard = Guard::new()?;
    let file = guard.path().join("buckets.db");
    let mut database = Database::file(&file, |_| {}).await?;
    database.migrate().await?;
    gate::build(&database).await?;

    let books = Books::default();
    // Twice in each.
    for round in 0..rounds()? {
        for cut in [Some(CUTS[round % CUTS.len()]), None] {
            // Nobody else has the file, so that the next to open it finds it as it was left.
            database.close().await;
            let mut worker = Worker::start(&file, cut)?;
            let held = worker.is_held(&books).await?;
            worker.kill(&books).await?;
            database = Database::file(&file, |_| {}).await?;
            audit(&database, &books, held).await.with_context(|| format!("round {round}, {cut:?}"))?;
        }
    }
    database.close().await;
    Ok(())
}

/// After a death: what was answered is there, each debit has its id, of what was held nothing is there, and everybody
/// who asks again has paid once.
async fn audit(database: &Database, books: &Books, held: Option<u128>) -> anyhow::Result<()> {
    let found = database.found().await?;
    books.agree_with(&found)?;
    if let Some(held) = held {
        ensure!(!found.receipts.keys().any(|(id, _)| *id == held), "what was not committed is there");
    }
    for request in books.of_this_round() {
        for _ in 0..2 {
            ensure!(database.ask(&request).await?.is_granted(), "{request:?} is denied");
        }
        books.answered(request.id);
    }
    books.agree_with(&database.found().await?).context("after all had asked again")?;
    books.end_round();
    Ok(())
}

/// How often an engine is killed.
fn rounds() -> anyhow::Result<usize> {
    std::env::var("TOLLGATE_KILLS").map_or(Ok(50), |rounds| rounds.parse().context("TOLLGATE_KILLS is a number"))
}

fn finished(test: impl Future<Output = anyhow::Result<()>>) -> Result<(), Failed> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(test).map_err(|error| format!("{error:?}").into())
}
