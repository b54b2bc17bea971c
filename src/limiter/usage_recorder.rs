//! Records usage in a background task, at most one per limiter, started by requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::runtime::Handle;
use tokio::time::Instant;

use super::stack::Stack;
use crate::store::Store;
use crate::telemetry;

/// Asks the store once a minute, while requests come, whether a period of usage has ended, and records it then.
#[derive(Debug)]
pub(super) struct UsageRecorder {
    began: Instant,
    /// When the next run is due, in seconds since `began`. `u64::MAX` during a run.
    due: AtomicU64,
}

impl Default for UsageRecorder {
    fn default() -> Self {
        Self { began: Instant::now(), due: AtomicU64::new(SECONDS_PER_RUN) }
    }
}

impl UsageRecorder {
    /// When a run is due and none is in progress, spawns a task for it.
    pub(super) fn check<S: Store>(self: &Arc<Self>, stack: &Stack<S>) {
        let due = self.due.load(Ordering::Relaxed);
        if due == u64::MAX || self.began.elapsed().as_secs() < due {
            return;
        }
        let Ok(runtime) = Handle::try_current() else { return };
        if self.due.compare_exchange(due, u64::MAX, Ordering::Relaxed, Ordering::Relaxed).is_err() {
            return;
        }
        let (busy, store) = (RunGuard(Arc::clone(self)), Arc::clone(&stack.store));
        let run = async move {
            run(&*store).await;
            drop(busy);
        };
        stack.tasks.spawn_on(run, &runtime);
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

/// Sets when the next run is due when this one ends, even by a panic or a dropped runtime.
struct RunGuard(Arc<UsageRecorder>);

impl Drop for RunGuard {
    fn drop(&mut self) {
        let recorder = &self.0;
        recorder.due.store(recorder.began.elapsed().as_secs() + SECONDS_PER_RUN, Ordering::Relaxed);
    }
}

/// The first minute of a period can count under the period before.
const SECONDS_PER_RUN: u64 = 60;
/// A step holds the locks of its buckets for a few milliseconds.
const BUCKETS_PER_STEP: u32 = 256;
