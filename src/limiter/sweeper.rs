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

/// Sweeps in the background while requests come, a bounded run of steps at a time.
#[derive(Debug)]
pub(super) struct Sweeper {
    requests: AtomicU64,
    /// From how many requests on the next run is due.
    due: AtomicU64,
    /// Between how many times `REQUESTS_PER_RUN` requests runs are made.
    pace: AtomicU64,
    progress: Mutex<Progress>,
}

#[derive(Debug, Default)]
struct Progress {
    /// Whether a run is under way.
    busy: bool,
    rests_until: Option<Instant>,
}

impl Progress {
    /// Whether the caller is the one to begin a run.
    fn begin(&mut self) -> bool {
        if self.busy || self.rests_until.is_some_and(|until| Instant::now() < until) {
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
    /// Counts requests that may have made rows; after so many, a task of its own goes on sweeping, if none is at it.
    pub(super) fn count<S: Store>(self: &Arc<Self>, requests: u64, stack: &Stack<S>) {
        // What others count at this moment is lost, which puts a run off and no more; to exclude them costs all of them.
        let requests = self.requests.load(Ordering::Relaxed) + requests;
        self.requests.store(requests, Ordering::Relaxed);
        if requests < self.due.load(Ordering::Relaxed) {
            return;
        }
        // So that those who come while it is under way, or where there is no runtime, pass by this.
        self.due.store(requests + REQUESTS_PER_RUN, Ordering::Relaxed);
        if !self.progress.lock().begin() {
            return;
        }
        let (busy, store) = (RunGuard(Arc::clone(self)), Arc::clone(&stack.store));
        // Without a runtime there is only this process's memory, which clears away by itself when it is full.
        if let Ok(runtime) = Handle::try_current() {
            // A role that may not sweep limits all the same.
            let run = async move {
                let began = Instant::now();
                let much = run(&*store).await;
                // What is in memory is bounded, and a step there walks more rows than it was asked to.
                let rest = if much && !store.capabilities().in_process {
                    Duration::ZERO
                } else {
                    began.elapsed() * PAUSE_PER_RUN
                };
                busy.0.rest(requests, much, rest.min(MAX_PAUSE));
            };
            stack.tasks.spawn_on(run, &runtime);
        }
    }

    /// Says when the next run is due, after one that began at so many requests, and whether it found much.
    fn rest(&self, requests: u64, much: bool, rest: Duration) {
        let pace = if much { 1 } else { (self.pace.load(Ordering::Relaxed) * 2).min(MAX_SLOWDOWN) };
        self.pace.store(pace, Ordering::Relaxed);
        self.due.store(requests + REQUESTS_PER_RUN * pace, Ordering::Relaxed);
        self.progress.lock().rests_until = (!rest.is_zero()).then(|| Instant::now() + rest);
    }
}

/// Steps through as many rows as keep up with the requests, to the end, or until there is no answer; says whether so many
/// said nothing any more that they may soon outnumber the others.
async fn run<S: Store>(store: &S) -> bool {
    let Some(store) = store.maintenance() else { return false };
    let (mut deleted, mut looked_at) = (0, 0);
    for _ in 0..MAX_STEPS {
        let swept = store.sweep(ROWS_PER_STEP).await;
        telemetry::swept(&swept);
        let Ok(SweepResult { deleted: rows, finished }) = swept else { break };
        deleted += rows;
        looked_at += u64::from(ROWS_PER_STEP);
        if finished {
            break;
        }
    }
    deleted > 0 && deleted >= looked_at / MUCH_EXPIRED_RATIO
}

/// One run at a time, however it ends.
struct RunGuard(Arc<Sweeper>);

impl Drop for RunGuard {
    fn drop(&mut self) {
        self.0.progress.lock().busy = false;
    }
}

/// A run that finds much looks at two rows for each request. A row that says nothing any more so goes within half as many
/// requests as there are rows; if requests make a row each, half of the rows are such at most.
const REQUESTS_PER_RUN: u64 = 1024;
const ROWS_PER_STEP: u32 = 256;
const MAX_STEPS: u32 = 8;
/// One row of so many that says nothing any more is much: what comes more seldom would leave behind as many as it finds.
const MUCH_EXPIRED_RATIO: u64 = 4;
/// While runs find little, as where the same keys are asked for again and again, they would cost more than they save: they are
/// made this much more seldom, and take no more than a fiftieth of the time, however many requests go in a call.
const MAX_SLOWDOWN: u64 = 8;
const PAUSE_PER_RUN: u32 = 49;
const MAX_PAUSE: Duration = Duration::from_secs(60);
