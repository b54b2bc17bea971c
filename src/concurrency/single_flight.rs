//! A flag that lets one thread at a time do a piece of work.

use crate::concurrency::atomics::{AtomicBool, Ordering};

/// Whether a piece of work is in progress, one at a time. The thread that begins it ends it.
///
/// A thread that finds the work ended sees its effects, which `tests/orderings` explores.
#[derive(Debug, Default)]
pub(crate) struct SingleFlight(AtomicBool);

impl SingleFlight {
    /// Whether the caller begins the work.
    #[inline]
    pub(crate) fn begin(&self) -> bool {
        // Loads first, because each swap would take the cache line from all other threads.
        !self.0.load(Ordering::Relaxed) && !self.0.swap(true, Ordering::Acquire)
    }

    /// Whether no work is in progress and the last one has left nothing. Checked in this order, because the effects come before
    /// the end.
    pub(crate) fn is_over(&self, nothing_left: impl FnOnce() -> bool) -> bool {
        !self.0.load(Ordering::Acquire) && nothing_left()
    }

    pub(crate) fn end(&self) {
        self.0.store(false, Ordering::Release);
    }
}
