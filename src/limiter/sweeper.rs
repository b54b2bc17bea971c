//! Sweeps expired rows in a background task, at most one per limiter, started by requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::time::Instant;

use super::stack::Stack;
use crate::admin::SweepResult;
use crate::store::Store;
use crate::telemetry;

/// Sweeps in the background while requests come. Each run has a bounded number of steps.
#[derive(Debug)]
pub(super) struct Sweeper {
    requests: AtomicU64,
    /// The number of requests at which the next run is due.
    due: AtomicU64,
    /// The distance between runs, in multiples of `REQUESTS_PER_RUN`.
    pace: AtomicU64,
    progress: Mutex<Progress>,
}

#[derive(Debug, Default)]
struct Progress {
    /// Whether a run is in progress.
    busy: bool,
    paused_until: Option<Instant>,
}

impl Progress {
    /// Returns whether the caller begins a run.
    fn begin(&mut self) -> bool {
        if self.busy || self.paused_until.is_some_and(|until| Instant::now() < until) {
            return false;
        }
        self.busy = true;
        true
    }
}

impl Default for Sweeper {
    fn default() -> Self {
        let (requests, due, pace) = (AtomicU64::new(0), AtomicU64::new(REQUESTS_PER_RUN), AtomicU64::new(1));
        Self { requests, due, pace, progress: Mutex::default() }
    }
}

impl Sweeper {
    /// Counts requests that may have made rows. When a run is due and none is in progress, spawns a task for it.
    pub(super) fn count<S: Store>(self: &Arc<Self>, requests: u64, stack: &Stack<S>) {
        // Not atomic: a lost count only delays a run, and an atomic add would slow down every request.
        let requests = self.requests.load(Ordering::Relaxed) + requests;
        self.requests.store(requests, Ordering::Relaxed);
        if requests < self.due.load(Ordering::Relaxed) {
            return;
        }
        // Requests return early during a run, and also without a runtime.
        self.due.store(requests + REQUESTS_PER_RUN, Ordering::Relaxed);
        if !self.progress.lock().begin() {
            return;
        }
        let (busy, store) = (RunGuard(Arc::clone(self)), Arc::clone(&stack.store));
        // Without a runtime the store is in memory, which deletes expired buckets when it is full.
        if let Ok(runtime) = Handle::try_current() {
            // Errors are ignored: a role without the privilege to sweep can still limit.
            let run = async move {
                let began = Instant::now();
                let is_productive = run(&*store).await;
                // A store in memory is bounded, and its steps read more rows than the limit, so it always pauses.
                let pause = if is_productive && !store.capabilities().in_process {
                    Duration::ZERO
                } else {
                    began.elapsed() * PAUSE_PER_RUN
                };
                busy.0.pause(requests, is_productive, pause.min(MAX_PAUSE));
            };
            stack.tasks.spawn_on(run, &runtime);
        }
    }

    /// Sets when the next run is due. `requests`: the count at the start of this run. `is_productive`: whether many rows were
    /// expired.
    fn pause(&self, requests: u64, is_productive: bool, pause: Duration) {
        let pace = if is_productive { 1 } else { (self.pace.load(Ordering::Relaxed) * 2).min(MAX_SLOWDOWN) };
        self.pace.store(pace, Ordering::Relaxed);
        self.due.store(requests + REQUESTS_PER_RUN * pace, Ordering::Relaxed);
        self.progress.lock().paused_until = (!pause.is_zero()).then(|| Instant::now() + pause);
    }
}

/// Sweeps until the step limit, the end of the rows, or an error. Returns whether many rows were expired, so that they could
/// soon outnumber the others.
async fn run<S: Store>(store: &S) -> bool {
    let Some(store) = store.maintenance() else { return false };
    let (mut deleted, mut read) = (0, 0);
    for _ in 0..MAX_STEPS {
        let swept = store.sweep(ROWS_PER_STEP).await;
        telemetry::swept(swept.as_ref().map(|swept| swept.deleted));
        let Ok(SweepResult { deleted: rows, finished }) = swept else { break };
        deleted += rows;
        read += u64::from(ROWS_PER_STEP);
        if finished {
            break;
        }
    }
    deleted > 0 && deleted >= read / MUCH_EXPIRED_RATIO
}

/// Allows the next run when this one ends, even by a panic or a dropped runtime.
struct RunGuard(Arc<Sweeper>);

impl Drop for RunGuard {
    fn drop(&mut self) {
        self.0.progress.lock().busy = false;
    }
}

/// At full pace, a run reads two rows for each request. So an expired row is deleted within half as many requests as there are
/// rows. If each request makes a row, at most half of the rows are expired.
const REQUESTS_PER_RUN: u64 = 1024;
const ROWS_PER_STEP: u32 = 256;
const MAX_STEPS: u32 = 8;
/// A run keeps the full pace if at least one of this many rows was expired. A lower pace would leave as many rows as it finds.
const MUCH_EXPIRED_RATIO: u64 = 4;
/// The most that runs slow down while they find few expired rows, for instance if the same keys repeat. Such runs also pause
/// for 49 times their duration, so they take at most a fiftieth of the time.
const MAX_SLOWDOWN: u64 = 8;
const PAUSE_PER_RUN: u32 = 49;
const MAX_PAUSE: Duration = Duration::from_secs(60);
