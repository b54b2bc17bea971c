//! Processes that share one bucket, and the checker of their answers: for the example `fleet`, the tests and the benchmarks.

pub mod checker;
pub mod database;
pub mod worker;
