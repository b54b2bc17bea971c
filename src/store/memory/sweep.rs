use std::sync::atomic::Ordering;

use super::{MemoryStore, SHARDS};
use crate::admin::Swept;
use crate::clock::Clock;

impl<C: Clock> MemoryStore<C> {
    /// Sweeps whole shards, one after the other, until there were `limit` rows.
    pub(super) fn sweep_step(&self, limit: u32) -> Swept {
        let mut swept = Swept::default();
        let (mut seen, limit) = (0, limit as usize);
        for place in self.sweeps_from.load(Ordering::Relaxed)..SHARDS {
            let mut shard = self.shards[place].lock();
            let before = shard.len() + shard.receipts.len();
            let now = self.clock.now();
            shard.sweep(now, false);
            shard.receipts.sweep(now);
            swept.deleted += (before - shard.len() - shard.receipts.len()) as u64;
            seen += before;
            if seen >= limit && place + 1 < SHARDS {
                self.sweeps_from.store(place + 1, Ordering::Relaxed);
                swept.finished = false;
                return swept;
            }
        }
        self.sweeps_from.store(0, Ordering::Relaxed);
        let denials = self.stats.lock().forget(self.clock.now());
        swept.deleted += (self.forget_overrides() + denials) as u64;
        swept
    }

    fn forget_overrides(&self) -> usize {
        let now = self.clock.now();
        self.rules.change(|choices| {
            let before = choices.overrides.len();
            choices.overrides.retain(|_, over| crate::model::decide::Override::from(&*over).setting.holds(now));
            before - choices.overrides.len()
        })
    }
}
