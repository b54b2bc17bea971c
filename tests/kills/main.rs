//! Kills databases during requests with ids. Answered requests stay, and a retry of an unanswered request is charged once.
//!
//! Each test starts a server in a directory of its own, and removes both at the end. Each engine is
//! killed ten times, and a process that has an SQLite file open twenty times; more often in `scripts/test --long`.
//!
//! Other tests check which grants a crash forgets, and stop or kill processes that lease tokens.

// No other crate uses the items of a test.
#![allow(unreachable_pub)]

mod accounting;
mod batched;
mod callers;
mod database;
mod durability;
mod gate;
mod guard;
mod leases;
mod process;
mod server;
mod worker;

use std::sync::Arc;

use anyhow::{Context, ensure};
use libtest_mimic::{Arguments, Failed, Trial};
use tollgate_tests::rounds::rounds;

use accounting::Books;
use batched::BatchedCallers;
use callers::Callers;
use database::{Database, Engine};
use gate::{Gate, between, written};
use guard::Guard;
use server::Server;
use worker::Worker;

fn main() -> anyhow::Result<()> {
    if let Some(worked) = worker::work().or_else(leases::work) {
        return worked;
    }
    let mut trials = vec![
        Trial::test("sqlite::request_killed_with_its_process_is_charged_once", || {
            finished(request_killed_with_its_process_is_charged_once())
        }),
        Trial::test("sqlite::leases_of_stopped_and_killed_processes_keep_the_bound", || {
            finished(leases::leases_of_stopped_and_killed_processes_keep_the_bound(None))
        }),
        Trial::test("postgres::crash_forgets_only_the_latest_asynchronous_grants", || {
            finished(durability::crash_forgets_only_the_latest_asynchronous_grants())
        }),
    ];
    for engine in [Engine::Postgres, Engine::MySql, Engine::MariaDb] {
        let name = format!("{}::request_killed_with_its_server_is_charged_once", engine.name());
        let trial = move || finished(request_killed_with_its_server_is_charged_once(engine));
        trials.push(Trial::test(name, trial));
        let name = format!("{}::leases_of_stopped_and_killed_processes_keep_the_bound", engine.name());
        let trial = move || finished(leases::leases_of_stopped_and_killed_processes_keep_the_bound(Some(engine)));
        trials.push(Trial::test(name, trial));
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

/// Holds one request between its id and its debit, and another one after both. The other requests are at any point, alone
/// and in batches. In every other round, commits wait for the disk. Otherwise `scripts/servers` sets their durability.
async fn request_killed_with_its_server_is_charged_once(engine: Engine) -> anyhow::Result<()> {
    let mut server = Server::start(engine).await?;
    let mut database = server.connect().await?;
    database.migrate().await?;
    gate::build(&database).await?;

    let books = Arc::new(Books::default());
    let mut cut_off = 0;
    for round in 0..usize::try_from(rounds(KILLS)?)? {
        if round % 2 == 1 {
            database.commit_to_the_disk().await?;
        }
        let cuts = [between(&database, round), written(&database, round)];
        let callers = Callers::new(database.clone(), Arc::clone(&books));
        callers.take_once_each().await?;
        let batched = BatchedCallers::new(&database, Arc::clone(&books));
        let tasks = callers.spawn_all().into_iter().chain(batched.spawn_all());
        let (mut gates, mut waiting, mut ids) = (Vec::new(), Vec::new(), Vec::new());
        for (before, cut) in (0..).zip(cuts) {
            let mut gate = Gate::close(&database, cut).await?;
            let request = cut.request();
            ids.push(request.id);
            let pending = tokio::spawn(callers.clone().send(request));
            gate.until_reached(&pending, before + 1).await.with_context(|| format!("{cut:?}"))?;
            gates.push(gate);
            waiting.push(pending);
        }
        server.kill().await?;
        drop(gates);
        // Ends all waits for connections to the dead server.
        database.close().await;

        for (request, cut) in waiting.into_iter().zip(cuts) {
            let error = request.await??.context("a dead server granted a request")?;
            ensure!(error.is_outcome_unknown(), "{cut:?}: {error:?}");
        }
        for task in tasks {
            task.await??;
        }
        cut_off += batched.cut_off();
        server.restart()?;
        database = server.connect().await?;
        audit(&database, &books, &ids).await.with_context(|| format!("round {round}, {cuts:?}"))?;
    }
    // There are usually one or two per round.
    ensure!(cut_off > 0, "no batch was in flight when the server was killed");
    Ok(())
}

/// Holds one request at a time, because only one at a time writes to a file. In some rounds, kills the process at any point.
async fn request_killed_with_its_process_is_charged_once() -> anyhow::Result<()> {
    let guard = Guard::new()?;
    let file = guard.path().join("buckets.db");
    let mut database = Database::file(&file, |_| {}).await?;
    database.migrate().await?;
    gate::build(&database).await?;

    let books = Books::default();
    // Kills a process twice per round.
    for round in 0..usize::try_from(rounds(KILLS)?)? {
        let later = (round % 2 == 0).then(|| written(&database, round / 2));
        for cut in [Some(between(&database, round)), later] {
            // Only the worker has the file open, so the next connection finds the file as the worker left it.
            database.close().await;
            let mut worker = Worker::start(&file, cut)?;
            let gated = worker.until_at_gate(&books).await?;
            worker.kill(&books).await?;
            database = Database::file(&file, |_| {}).await?;
            audit(&database, &books, gated.as_slice()).await.with_context(|| format!("round {round}, {cut:?}"))?;
        }
    }
    database.close().await;
    Ok(())
}

/// Checks a database after a kill: answered requests are there, each debit has its id, and held requests left nothing. Then
/// repeats all requests, and checks that each is charged once.
async fn audit(database: &Database, books: &Books, gated: &[u128]) -> anyhow::Result<()> {
    let found = database.found().await?;
    books.agree_with(&found)?;
    ensure!(!found.receipts.keys().any(|(id, _)| gated.contains(id)), "a request was held and is committed");
    for request in books.of_this_round() {
        for _ in 0..2 {
            ensure!(database.send(&request).await?.is_granted(), "{request:?} is denied");
        }
        books.answered(request.id);
    }
    let found = database.found().await?;
    books.agree_with(&found).context("after all retries")?;
    books.end_round(&found);
    Ok(())
}

fn finished(test: impl Future<Output = anyhow::Result<()>>) -> Result<(), Failed> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(test).map_err(|error| format!("{error:?}").into())
}

/// How often each engine is killed.
const KILLS: u32 = 10;
