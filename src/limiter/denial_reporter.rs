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

/// How often keys were denied, of those that are denied most. A task of its own tells the store now and then: what was not
/// told when the process dies is lost.
pub(super) struct DenialReporter {
    counts: Cache<Key, u64, UnitWeighter, RandomState>,
    /// Whether a task is about to tell.
    telling: SingleFlight,
}

impl DenialReporter {
    pub(super) fn new(max_keys: usize) -> Self {
        let most = max_keys.clamp(1, MAX_KEYS);
        // One shard, so that keys that are denied often do not compete for a small part of the room.
        let options =
            OptionsBuilder::new().estimated_items_capacity(most).weight_capacity(most as u64).shards(1).build();
        let options = options.expect("its capacity was said");
        let (hasher, lifecycle) = (RandomState::default(), DefaultLifecycle::default());
        Self { counts: Cache::with_options(options, UnitWeighter, hasher, lifecycle), telling: SingleFlight::default() }
    }

    /// Counts a denial; if nobody is about to tell of it, a task will.
    pub(super) fn count<S: Store>(self: &Arc<Self>, key: &Key, store: &Arc<S>) {
        let known = self.counts.entry(key, None, |_, count| {
            *count += 1;
            EntryAction::Retain(())
        });
        if let EntryResult::Vacant(place) = known {
            // Fails if it is taken away at this moment.
            let _ = place.insert(1);
        }
        if !self.telling.begin() {
            return;
        }
        // Who drops the limiter does not want it any more.
        let (telling, store) = (ReportTask(Arc::downgrade(self)), Arc::downgrade(store));
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(async move {
                sleep(REPORT_INTERVAL).await;
                if let (Some(denied), Some(store)) = (telling.0.upgrade(), store.upgrade()) {
                    // First: what is counted from now on finds nobody about to tell.
                    drop(telling);
                    // A role that may not tell limits all the same.
                    drop(denied.report(&*store).await);
                }
            });
        }
    }

    /// Tells what was counted since the last time, which is forgotten whatever comes of it.
    pub(super) async fn report<S: Store>(&self, store: &S) -> Result<(), Error> {
        let counts: Vec<(Key, u64)> = self.counts.drain().collect();
        match store.maintenance() {
            Some(store) if !counts.is_empty() => store.count_denials(&counts).await,
            _ => Ok(()),
        }
    }
}

/// The task that is about to tell. If there is no runtime for it, or its runtime ends, the next denial makes another one.
struct ReportTask(Weak<DenialReporter>);

impl Drop for ReportTask {
    fn drop(&mut self) {
        if let Some(denied) = self.0.upgrade() {
            denied.telling.end();
        }
    }
}

impl fmt::Debug for DenialReporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Denied").field("keys", &self.counts.len()).finish_non_exhaustive()
    }
}

/// As many as a store is told of at once.
const MAX_KEYS: usize = 1000;

/// Rarely enough to cost the store nothing, and often enough to see an attack while it lasts.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);
