//! One suite for every database: a list of cases, run on each engine and at each of its isolation levels.
//!
//! An engine contributes a constructor and its capabilities (`engines.rs`); a case is a function over a [`TestDb`]
//! (`cases/`). An engine whose server is absent fails its cases.

// Items of a test have no users outside.
#![allow(unreachable_pub)]

mod caller_sessions;
#[path = "../cancellation/mod.rs"]
mod cancellation;
mod cases;
#[path = "../../examples/fleet/checker.rs"]
mod checker;
mod client;
#[path = "../../examples/fleet/database.rs"]
mod database;
mod engines;
#[path = "../vectors/mod.rs"]
mod golden;
mod layers;
mod matrix;
#[path = "../model/mod.rs"]
mod model;
mod operator;
mod pools;
#[path = "../../examples/common/processes.rs"]
mod processes;
mod proxy;
mod random;
#[path = "../rounds/mod.rs"]
mod rounds;
#[path = "../scenarios/mod.rs"]
mod scenarios;
mod session;
mod store;
mod taken;
mod test_db;
mod transcript;
#[path = "../../examples/fleet/worker.rs"]
mod worker;
mod workers;

fn main() -> anyhow::Result<()> {
    if let Some(worked) = workers::work() {
        return worked;
    }
    let arguments = libtest_mimic::Arguments::from_args();
    let conclusion = libtest_mimic::run(&arguments, matrix::trials());
    for name in matrix::FLAKY.lock().iter() {
        println!("FLAKY {name}");
    }
    conclusion.exit();
}
