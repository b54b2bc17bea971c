//! What the parts of a decision cost by themselves, in nanoseconds.
//!
//! ```text
//! cargo bench --package tollgate-side-by-side --bench micro
//! ```

mod arithmetic;
mod limiter;
mod memory;

use criterion::{criterion_group, criterion_main};

criterion_group!(parts, arithmetic::bench, memory::bench, limiter::bench);
criterion_main!(parts);
