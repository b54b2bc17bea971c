//! Measures the parts of a decision in nanoseconds.
//!
//! ```text
//! cargo bench --package tollgate-side-by-side --bench micro
//! ```

mod arithmetic;
mod layers;
mod limiter;
mod memory;
mod null;

use criterion::{criterion_group, criterion_main};

criterion_group!(parts, arithmetic::bench, memory::bench, layers::bench, limiter::bench);
criterion_main!(parts);
