//! Databases that are killed in the middle of requests with ids: what was answered stays, what was not is paid once.
//!
//! Each engine is a server of this program's own, in a directory of its own; neither outlives it. How often each is
//! killed says `TOLLGATE_KILLS`: fifty times if not said, and a process that has a file twice as often. What a crash
//! forgets, as durable as the commits are. And processes that lease tokens, which are stopped and killed.

// Nothing outside uses a test.
#![allow(unreachable_pub)]

#[path = "kills/accounting.rs"]
mod accounting;
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
#[path = "kills/together.rs"]
mod together;
#[path = "kills/worker.rs"]
mod worker;

use std::sync::Arc;

use anyhow::{Context, ensure};
use libtest_mimic::{Arguments, Failed, Trial};

use accounting::Books;
use callers::Callers;
use database::{Database, Engine};
use gate::{Gate, between, written};
use guard::Guard;
use server::Server;
use together::Together;
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
        Trial::test("postgres::a_crash_forgets_nothing_that_was_answered_or_only_what_was_answered_last", || {
            finished(durability::a_crash_forgets_nothing_that_was_answered_or_only_what_was_answered_last())
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

/// One request is held between its id and its debit, another one where it has both, and the others are anywhere, alone and
/// in calls for many. Commits are as durable as `scripts/servers` has them, and in every other round on the disk when they
/// are answered.
async fn a_request_that_is_killed_with_its_server_pays_once(engine: Engine) -> anyhow::Result<()> {
    let mut server = Server::start(engine).await?;
    let mut database = server.connect().await?;
    database.migrate().await?;
    gate::build(&database).await?;

    let books = Arc::new(Books::default());
    let mut cut_off = 0;
    for round in 0..rounds()? {
        if round % 2 == 1 {
            database.commit_to_the_disk().await?;
        }
        let cuts = [between(&database, round), written(&database, round)];
        let callers = Callers::new(database.clone(), Arc::clone(&books));
        callers.are_answered().await?;
        let together = Together::new(&database, Arc::clone(&books));
        let crowd = callers.crowd().into_iter().chain(together.crowd());
        let (mut gates, mut held, mut ids) = (Vec::new(), Vec::new(), Vec::new());
        for (before, cut) in (0..).zip(cuts) {
            let mut gate = Gate::close(&database, cut).await?;
            let request = cut.request();
            ids.push(request.id);
            let asked = tokio::spawn(callers.clone().ask(request));
            gate.is_reached(&asked, before + 1).await.with_context(|| format!("{cut:?}"))?;
            gates.push(gate);
            held.push(asked);
        }
        server.kill().await?;
        drop(gates);
        // Nobody waits for a connection to what is dead.
        database.close().await;

        for (held, cut) in held.into_iter().zip(cuts) {
            let error = held.await??.context("a dead server granted a request")?;
            ensure!(error.is_outcome_unknown(), "{cut:?}: {error:?}");
        }
        for caller in crowd {
            caller.await??;
        }
        cut_off += together.cut_off();
        server.restart()?;
        database = server.connect().await?;
        audit(&database, &books, &ids).await.with_context(|| format!("round {round}, {cuts:?}"))?;
    }
    // One or two a round.
    ensure!(cut_off > 0 || rounds()? < 10, "no call for many was under way when the server died");
    Ok(())
}

/// As above, one after the other, as only one at a time writes to a file; now and then at any point of any request.
async fn a_request_that_is_killed_with_its_process_pays_once() -> anyhow::Result<()> {
    let guard = Guard::new()?;
    let file = guard.path().join("buckets.db");
    let mut database = Database::file(&file, |_| {}).await?;
    database.migrate().await?;
    gate::build(&database).await?;

    let books = Books::default();
    // Twice in each.
    for round in 0..rounds()? {
        let later = (round % 2 == 0).then(|| written(&database, round / 2));
        for cut in [Some(between(&database, round)), later] {
            // Nobody else has the file, so that the next to open it finds it as it was left.
            database.close().await;
            let mut worker = Worker::start(&file, cut)?;
            let held = worker.is_held(&books).await?;
            worker.kill(&books).await?;
            database = Database::file(&file, |_| {}).await?;
            audit(&database, &books, held.as_slice()).await.with_context(|| format!("round {round}, {cut:?}"))?;
        }
    }
    database.close().await;
    Ok(())
}

/// After a death: what was answered is there, each debit has its id, of what was held nothing is there, and everybody
/// who asks again has paid once.
async fn audit(database: &Database, books: &Books, held: &[u128]) -> anyhow::Result<()> {
    let found = database.found().await?;
    books.agree_with(&found)?;
    ensure!(!found.receipts.keys().any(|(id, _)| held.contains(id)), "what was not committed is there");
    for request in books.of_this_round() {
        for _ in 0..2 {
            ensure!(database.ask(&request).await?.is_granted(), "{request:?} is denied");
        }
        books.answered(request.id);
    }
    let found = database.found().await?;
    books.agree_with(&found).context("after all had asked again")?;
    books.end_round(&found);
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
