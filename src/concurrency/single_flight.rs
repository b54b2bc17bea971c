use crate::concurrency::atomics::{AtomicBool, Ordering};

/// Whether somebody is at a piece of work, one at a time: whoever has begun it ends it.
///
/// Whoever finds that it has ended sees what was done, which `tests/orderings` explores.
#[derive(Debug, Default)]
pub(crate) struct SingleFlight(AtomicBool);

impl SingleFlight {
    /// Whether the caller is the one to begin.
    #[inline]
    pub(crate) fn begin(&self) -> bool {
        // Looked at first: each exchange would take the word from all others who look.
        !self.0.load(Ordering::Relaxed) && !self.0.swap(true, Ordering::Acquire)
    }

    /// Whether nobody is at it, and it has left nothing. In this order: what comes of it comes before its end.
    pub(crate) fn is_over(&self, nothing_left: impl FnOnce() -> bool) -> bool {
        !self.0.load(Ordering::Acquire) && nothing_left()
    }

    pub(crate) fn end(&self) {
        self.0.store(false, Ordering::Release);
    }
}
