//! Counters that keep a denial out of the cache if its key was forgotten while the call was in flight.

use crate::concurrency::atomics::{AtomicU64, Ordering};

/// How often keys were forgotten, so that a denial that was in flight meanwhile is not kept.
///
/// A thread that forgets a key counts before it removes the denial. A thread that keeps a denial reads the count afterwards. One
/// of the two sees the other, which `tests/orderings` explores. Keys share the places, which sometimes costs a denial.
#[derive(Debug)]
pub(super) struct ForgetCounts([AtomicU64; PLACES]);

impl ForgetCounts {
    pub(super) fn new() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }

    /// The count of a key. Called before the store is asked.
    pub(super) fn times(&self, hash: u64) -> u64 {
        self.place(hash).load(Ordering::SeqCst)
    }

    /// Counts a key. Called before its denial is removed.
    pub(super) fn count(&self, hash: u64) {
        self.place(hash).fetch_add(1, Ordering::SeqCst);
    }

    fn place(&self, hash: u64) -> &AtomicU64 {
        #[expect(clippy::cast_possible_truncation, reason = "any bits will do")]
        let hash = hash as usize;
        &self.0[hash % PLACES]
    }
}

const PLACES: usize = 64;
