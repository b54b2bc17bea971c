use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How many requests that somebody may repeat all shards of a store remember. Half of it is theirs, each its part, so that
/// nobody is kept out by those of another shard; half is for whichever need more: those for one key are all in one shard.
#[derive(Debug)]
pub(in crate::store::memory) struct Room {
    pub(super) own: usize,
    common: usize,
    lent: AtomicUsize,
}

impl Room {
    /// For so many in each shard, if they were all alike.
    pub(in crate::store::memory) fn new(each: usize, shards: usize) -> Arc<Self> {
        let own = each.div_ceil(2);
        Arc::new(Self { own, common: (each - own) * shards, lent: AtomicUsize::new(0) })
    }

    /// Whether a shard with so many may have one more. Several that ask at once may all have the last one.
    pub(super) fn is_left(&self, len: usize) -> bool {
        len < self.own || self.lent.load(Ordering::Relaxed) < self.common
    }

    /// A shard has so many now, and had borrowed that much; says how much it borrows from now on.
    pub(super) fn lend(&self, before: usize, len: usize) -> usize {
        let lent = len.saturating_sub(self.own);
        if lent > before {
            self.lent.fetch_add(lent - before, Ordering::Relaxed);
        } else if lent < before {
            self.lent.fetch_sub(before - lent, Ordering::Relaxed);
        }
        lent
    }
}
