//! The atomics of what is ordered by hand. `tests/orderings` includes the files that use them, with loom's instead.

pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
