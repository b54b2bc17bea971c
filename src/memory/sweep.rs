use super::{MemoryStore, SHARDS};
use crate::{Clock, Key, SweepCursor, Swept};

impl<C: Clock> MemoryStore<C> {
    /// Sweeps whole shards, one after the other, until there were `limit` keys: a key says where a step ended by the shard
    /// that it is in.
    pub(super) fn sweep_step(&self, after: Option<&SweepCursor>, limit: u32) -> Swept {
        let after = after.and_then(SweepCursor::place).and_then(|(_, key)| Key::try_from(key).ok());
        let mut swept = Swept::default();
        let (mut seen, limit) = (0, limit as usize);
        for place in after.map_or(0, |key| self.shard_of(&key) + 1)..SHARDS {
            let mut shard = self.shards[place].lock();
            let Some(key) = shard.any_key() else {
                continue;
            };
            let before = shard.len();
            shard.sweep(self.clock.now());
            swept.deleted += (before - shard.len()) as u64;
            seen += before;
            if seen >= limit && place + 1 < SHARDS {
                swept.next = Some(SweepCursor::from(&key));
                return swept;
            }
        }
        let denials = self.stats.lock().forget(self.clock.now());
        swept.deleted += (self.forget_receipts() + self.forget_overrides() + denials) as u64;
        swept
    }

    fn forget_receipts(&self) -> usize {
        let mut receipts = self.receipts.lock();
        receipts.sweep(self.clock.now())
    }

    fn forget_overrides(&self) -> usize {
        let now = self.clock.now();
        self.rules.change(|choices| {
            let before = choices.overrides.len();
            choices.overrides.retain(|_, over| crate::book::Override::from(&*over).setting.holds(now));
            before - choices.overrides.len()
        })
    }
}
