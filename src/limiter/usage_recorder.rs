//! Records usage in a background task, at most one per limiter, started by requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::runtime::Handle;

use super::stack::Stack;
use crate::store::Store;
use crate::telemetry;

/// Asks the store once a minute, while requests come, whether a period of usage has ended, and records it then.
#[derive(Debug, Default)]
pub(super) struct UsageRecorder {
    is_scheduled: AtomicBool,
    /// Whether a run has begun. Short-lived limiters have none.
    has_run: AtomicBool,
}

impl UsageRecorder {
    /// Schedules a run, unless one was begun in the last minute. The first run is in a minute. After a pause of the requests, a run
    /// begins at once, so that few of the new period's tokens count under the one before.
    #[inline]
    pub(super) fn schedule<S: Store>(self: &Arc<Self>, stack: &Stack<S>) {
        if !self.is_scheduled.load(Ordering::Relaxed) {
            self.spawn_run(stack);
        }
    }

    #[cold]
    fn spawn_run<S: Store>(self: &Arc<Self>, stack: &Stack<S>) {
        let Ok(runtime) = Handle::try_current() else { return };
        if self.is_scheduled.swap(true, Ordering::Relaxed) {
            return;
        }
        // Does not keep the store of a dropped limiter, nor delay its `close`.
        let (scheduled, store) = (RunGuard(Arc::clone(self)), Arc::downgrade(&stack.store));
        runtime.spawn(async move {
            if !scheduled.0.has_run.swap(true, Ordering::Relaxed) {
                tokio::time::sleep(PAUSE).await;
            }
            if let Some(store) = store.upgrade() {
                run(&*store).await;
            }
            tokio::time::sleep(PAUSE).await;
            drop(scheduled);
        });
    }
}

/// Records until the end of the buckets, or an error. The next run continues there.
async fn run<S: Store>(store: &S) {
    let Some(store) = store.maintenance() else { return };
    loop {
        let recorded = store.record_usage(BUCKETS_PER_STEP).await;
        telemetry::recorded_usage(recorded.as_ref().map(|recorded| recorded.buckets));
        if recorded.map_or(true, |recorded| recorded.finished) {
            return;
        }
    }
}

/// Allows the next run when this one ends, even by a panic or a dropped runtime.
struct RunGuard(Arc<UsageRecorder>);

impl Drop for RunGuard {
    fn drop(&mut self) {
        self.0.is_scheduled.store(false, Ordering::Relaxed);
    }
}

/// So much of a period can count under the period before.
const PAUSE: Duration = Duration::from_secs(60);
/// A step holds the locks of its buckets for a few milliseconds.
const BUCKETS_PER_STEP: u32 = 256;
