//! State that tasks and threads share, independent of limits.

pub(crate) mod single_flight;

/// The atomics of code whose memory orderings are written by hand.
///
/// `tests/orderings` includes the files that use them, with loom's atomics in their place.
pub(crate) mod atomics {
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
}
