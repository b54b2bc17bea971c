//! A flag that keeps exactly one housekeeping task running while there are leases.

use crate::concurrency::atomics::{AtomicBool, Ordering};

/// Whether the housekeeping task runs: exactly one runs while there are leases.
///
/// A thread that adds a lease reads the flag afterwards. The task clears the flag before it ends, and then looks for leases once
/// more. One of the two sees the other, which `tests/orderings` explores.
#[derive(Debug, Default)]
pub(super) struct KeeperFlag(AtomicBool);

impl KeeperFlag {
    /// Whether the caller must start the task. Called after a lease was added.
    pub(super) fn begin(&self) -> bool {
        !self.0.swap(true, Ordering::AcqRel)
    }

    /// Whether the task can end because no lease is left.
    pub(super) fn end(&self, nothing: impl Fn() -> bool) -> bool {
        if !nothing() {
            return false;
        }
        // A swap and not a store: it synchronizes with a thread that found the task running just before and had added a lease.
        self.0.swap(false, Ordering::AcqRel);
        nothing() || !self.begin()
    }

    /// Ends the task, even if leases are left. Another task can start.
    pub(super) fn break_off(&self) {
        self.0.store(false, Ordering::Release);
    }
}
