//! One suite for every database: a list of cases, run on each engine and at each of its isolation levels.
//!
//! An engine contributes a constructor and its capabilities (`engines.rs`); a case is a function over a [`TestDb`]
//! (`cases/`). An engine whose server is absent fails its cases.

// Items of a test have no users outside.
#![allow(unreachable_pub)]

mod caller_sessions;
mod cases;
mod client;
mod engines;
mod layers;
mod matrix;
mod operator;
mod pools;
mod proxy;
mod random;
mod session;
mod store;
mod taken;
mod test_db;
mod transcript;
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
    for (elapsed, name) in matrix::slowest(10) {
        println!("SLOW {:.1} s {name}", elapsed.as_secs_f64());
    }
    conclusion.exit();
}
