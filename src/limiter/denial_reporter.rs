//! Counts denials by key in memory, and reports the counts to the store in a background task.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use foldhash::fast::RandomState;
use quick_cache::sync::{Cache, DefaultLifecycle, EntryAction, EntryResult};
use quick_cache::{OptionsBuilder, UnitWeighter};
use tokio::runtime::Handle;
use tokio::time::sleep;

use crate::concurrency::single_flight::SingleFlight;
use crate::model::{Error, Key};
use crate::store::Store;

/// The denial counts of the keys that are denied most. A background task reports them to the store now and then. Counts that
/// were not reported when the process dies are lost.
pub(super) struct DenialReporter {
    counts: Cache<Key, u64, UnitWeighter, RandomState>,
    /// Whether a task is about to report.
    reporting: SingleFlight,
}

impl DenialReporter {
    pub(super) fn new(max_keys: usize) -> Self {
        let most = max_keys.clamp(1, MAX_KEYS);
        // With several shards, keys that are denied often could share a small part of the capacity.
        let options =
            OptionsBuilder::new().estimated_items_capacity(most).weight_capacity(most as u64).shards(1).build();
        let options = options.expect("its capacity was said");
        let (hasher, lifecycle) = (RandomState::default(), DefaultLifecycle::default());
        Self {
            counts: Cache::with_options(options, UnitWeighter, hasher, lifecycle),
            reporting: SingleFlight::default(),
        }
    }

    /// Counts a denial, and spawns a task to report it unless one is pending.
    pub(super) fn count<S: Store>(self: &Arc<Self>, key: &Key, store: &Arc<S>) {
        let known = self.counts.entry(key, None, |_, count| {
            *count += 1;
            EntryAction::Retain(())
        });
        if let EntryResult::Vacant(place) = known {
            // Fails if another thread removes the entry at this moment.
            let _ = place.insert(1);
        }
        if !self.reporting.begin() {
            return;
        }
        // Weak, because the task must not keep a dropped limiter alive.
        let (task, store) = (ReportTask(Arc::downgrade(self)), Arc::downgrade(store));
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(async move {
                sleep(REPORT_INTERVAL).await;
                if let (Some(denials), Some(store)) = (task.0.upgrade(), store.upgrade()) {
                    // Before the report, so that denials counted from now on spawn the next task.
                    drop(task);
                    // Ignored: a role without the privilege to report can still limit.
                    drop(denials.report(&*store).await);
                }
            });
        }
    }

    /// Reports the counts since the last report. On an error, these counts are lost.
    pub(super) async fn report<S: Store>(&self, store: &S) -> Result<(), Error> {
        let counts: Vec<(Key, u64)> = self.counts.drain().collect();
        match store.maintenance() {
            Some(store) if !counts.is_empty() => store.count_denials(&counts).await,
            _ => Ok(()),
        }
    }
}

/// The pending report. If there is no runtime to run it, or the runtime ends, the next denial spawns another one.
struct ReportTask(Weak<DenialReporter>);

impl Drop for ReportTask {
    fn drop(&mut self) {
        if let Some(denials) = self.0.upgrade() {
            denials.reporting.end();
        }
    }
}

impl fmt::Debug for DenialReporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DenialReporter").field("keys", &self.counts.len()).finish_non_exhaustive()
    }
}

/// The most keys of one report.
const MAX_KEYS: usize = 1000;

/// Rarely enough to cost the store nothing, and often enough to see an attack while it lasts.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);
