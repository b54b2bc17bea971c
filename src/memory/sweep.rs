use super::{MemoryStore, SHARDS};
use crate::{Clock, Key, SweepCursor, Swept};

impl<C: Clock> MemoryStore<C> {
    /// Sweeps whole shards, one after the other, until there were `limit` rows.
    pub(super) fn sweep_step(&self, after: Option<&SweepCursor>, limit: u32) -> Swept {
        let mut swept = Swept::default();
        let (mut seen, limit) = (0, limit as usize);
        for place in after.map_or(0, |after| self.shard_after(after))..SHARDS {
            let mut shard = self.shards[place].lock();
            let before = shard.len() + shard.receipts.len();
            let now = self.clock.now();
            shard.sweep(now, false);
            shard.receipts.sweep(now);
            swept.deleted += (before - shard.len() - shard.receipts.len()) as u64;
            seen += before;
            if seen >= limit && place + 1 < SHARDS {
                swept.next = Some(SweepCursor::behind(A_SHARD, &place.to_string()));
                return swept;
            }
        }
        let denials = self.stats.lock().forget(self.clock.now());
        swept.deleted += (self.forget_overrides() + denials) as u64;
        swept
    }

    /// A key's bucket is as good a place as a shard's number.
    fn shard_after(&self, after: &SweepCursor) -> usize {
        let place = match after.place() {
            Some((A_SHARD, place)) => place.parse().ok(),
            Some((_, key)) => Key::try_from(key).ok().map(|key| self.shard_of(&key)),
            None => None,
        };
        place.map_or(0, |place| place + 1)
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

const A_SHARD: &str = "shards";
