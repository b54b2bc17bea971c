use crate::concurrency::atomics::{AtomicBool, Ordering};

/// Whether a task keeps house, so that there is one while there is anything to keep, and never two.
///
/// Whoever adds something looks here afterwards, and the task looks once more for something after it has said here that it
/// ends. One of the two sees the other, which `tests/orderings` explores.
#[derive(Debug, Default)]
pub(super) struct Keeping(AtomicBool);

impl Keeping {
    /// After something was added: whether the caller is the one to start the task.
    pub(super) fn begin(&self) -> bool {
        !self.0.swap(true, Ordering::AcqRel)
    }

    /// Whether the task may end, as there is nothing left.
    pub(super) fn end(&self, nothing: impl Fn() -> bool) -> bool {
        if !nothing() {
            return false;
        }
        // Exchanged and not stored: so it sees what was added by whoever found the task running just before that.
        self.0.swap(false, Ordering::AcqRel);
        nothing() || !self.begin()
    }

    /// The task ends, whatever is left: another may start.
    pub(super) fn break_off(&self) {
        self.0.store(false, Ordering::Release);
    }
}
