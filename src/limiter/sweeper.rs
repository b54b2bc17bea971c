use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};
use tokio::runtime::Handle;

use crate::{Error, Store, SweepCursor, telemetry};

/// Clears away in the background while requests come, a bounded run of steps at a time, and remembers where it stopped.
#[derive(Debug, Default)]
pub(super) struct Sweeper {
    requests: AtomicU64,
    busy: AtomicBool,
    after: Mutex<Option<SweepCursor>>,
}

impl Sweeper {
    /// Counts a request that may have made a row; at every so many, a task of its own goes on sweeping, if none is at it.
    pub(super) fn count<S: Store>(self: &Arc<Self>, store: &Arc<S>) {
        let requests = self.requests.fetch_add(1, Ordering::Relaxed) + 1;
        if !requests.is_multiple_of(EVERY) || self.busy.swap(true, Ordering::AcqRel) {
            return;
        }
        let (busy, store) = (Busy(Arc::clone(self)), Arc::clone(store));
        // Without a runtime there is only this process's memory, which clears away by itself when it is full.
        if let Ok(runtime) = Handle::try_current() {
            // A role that may not sweep limits all the same.
            runtime.spawn(async move { drop(busy.0.run(&*store).await) });
        }
    }

    /// Steps through as many rows as keep up with the requests, or to the end.
    async fn run<S: Store>(&self, store: &S) -> Result<(), Error> {
        for _ in 0..MOST_STEPS {
            let after = self.after().clone();
            let swept = store.sweep(after.as_ref(), ROWS).await;
            telemetry::swept(&swept);
            let next = swept?.next;
            let at_the_end = next.is_none();
            *self.after() = next;
            if at_the_end {
                break;
            }
        }
        Ok(())
    }

    fn after(&self) -> MutexGuard<'_, Option<SweepCursor>> {
        self.after.lock()
    }
}

/// One run at a time, however it ends.
struct Busy(Arc<Sweeper>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.busy.store(false, Ordering::Release);
    }
}

/// A run looks at two rows for each request, whatever it finds. A row that says nothing any more so goes within half as many
/// requests as there are rows; if requests make a row each, half of the rows are such at most.
const EVERY: u64 = 1024;
const ROWS: u32 = 256;
const MOST_STEPS: u32 = 8;
