//! One suite for every database: a list of cases, run on each engine and at each isolation level that it has.
//!
//! An engine contributes a constructor and its capabilities (`engines.rs`); a case is a function over a [`Rig`]
//! (`cases/`). An engine whose server is absent fails its cases.

mod cases;
mod client;
mod engines;
#[path = "../vectors/mod.rs"]
mod golden;
mod matrix;
#[path = "../model/mod.rs"]
mod model;
mod random;
mod rig;

fn main() {
    let arguments = libtest_mimic::Arguments::from_args();
    libtest_mimic::run(&arguments, matrix::trials()).exit();
}
