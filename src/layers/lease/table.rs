//! The leases by key, in shards, and the counters that find hot keys.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};

use crossbeam_utils::sync::{ShardedLock, ShardedLockReadGuard, ShardedLockWriteGuard};
use foldhash::fast::RandomState;
use smallvec::SmallVec;

use super::entry::LeaseEntry;
use crate::model::{Key, Limit, Take};

/// The leases of one key: usually one, more under several rules or minimums.
pub(super) type Leases = SmallVec<[Arc<LeaseEntry>; 1]>;

/// All leases, by key.
///
/// All threads look up the lease of a hot key, and leases are rarely added or removed. So readers share no lock word that each of
/// them would have to write.
#[derive(Debug)]
pub(super) struct LeaseTable {
    shards: [ShardedLock<TableShard>; SHARDS],
    hasher: RandomState,
    len: AtomicUsize,
}

type TableShard = HashMap<Key, Leases, RandomState>;

impl LeaseTable {
    pub(super) fn new() -> Self {
        Self {
            shards: std::array::from_fn(|_| ShardedLock::default()),
            hasher: RandomState::default(),
            len: AtomicUsize::new(0),
        }
    }

    pub(super) fn hash(&self, key: &Key) -> u64 {
        self.hasher.hash_one(key)
    }

    /// Calls a closure with the lease that can serve a request.
    #[inline]
    pub(super) fn find<T>(&self, take: &Take, with: impl FnOnce(&Arc<LeaseEntry>) -> T) -> Option<T> {
        let Limit { key, rule, .. } = take.lendable()?;
        let shard = self.read(key);
        let entry = shard.get(key)?.iter().find(|entry| entry.is_for(rule, take.min_remaining))?;
        Some(with(entry))
    }

    /// Calls a closure with each lease of a key.
    pub(super) fn each(&self, key: &Key, with: impl FnMut(&Arc<LeaseEntry>)) {
        self.read(key).get(key).into_iter().flatten().for_each(with);
    }

    /// Adds a lease, unless the table is full or has one for the same requests.
    pub(super) fn add(&self, entry: &Arc<LeaseEntry>, most: usize) -> bool {
        let Limit { key, rule, .. } = &entry.debit.limits[0];
        let mut shard = self.write(key);
        if shard.get(key).is_some_and(|leases| leases.iter().any(|other| other.is_for(rule, entry.debit.min_remaining)))
        {
            return false;
        }
        let room = |len: usize| (len < most).then_some(len + 1);
        if self.len.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room).is_err() {
            return false;
        }
        shard.entry(key.clone()).or_default().push(Arc::clone(entry));
        true
    }

    /// Removes the leases of a key.
    pub(super) fn remove(&self, key: &Key) -> Leases {
        let leases = self.write(key).remove(key).unwrap_or_default();
        self.len.fetch_sub(leases.len(), Ordering::Relaxed);
        leases
    }

    /// Keeps only the leases for which the closure returns true.
    pub(super) fn retain(&self, mut keep: impl FnMut(&LeaseEntry) -> bool) {
        for shard in &self.shards {
            shard.write().unwrap_or_else(PoisonError::into_inner).retain(|_, leases| {
                let before = leases.len();
                leases.retain(|entry| keep(entry));
                self.len.fetch_sub(before - leases.len(), Ordering::Relaxed);
                !leases.is_empty()
            });
        }
    }

    fn read(&self, key: &Key) -> ShardedLockReadGuard<'_, TableShard> {
        self.shards[shard_of(self.hash(key))].read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, key: &Key) -> ShardedLockWriteGuard<'_, TableShard> {
        self.shards[shard_of(self.hash(key))].write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    pub(super) fn tokens(&self) -> u64 {
        let tokens = |leases: &Leases| leases.iter().map(|entry| entry.tokens()).sum::<u64>();
        let shards = self.shards.iter().map(|shard| shard.read().unwrap_or_else(PoisonError::into_inner));
        shards.map(|shard| shard.values().map(tokens).sum::<u64>()).sum()
    }
}

fn shard_of(hash: u64) -> usize {
    // The map in the shard uses the other bits.
    (hash >> 32) as usize % SHARDS
}

const SHARDS: usize = 16;

/// Counts the requests of each key in a table of fixed size, to find hot keys.
///
/// A place holds a part of the key's hash, a period and the requests in that period. Another key or another period restarts the
/// count. So a place lost to another key, or a count lost to a concurrent thread, makes a lease late and never wrong. A million
/// keys that are used once take no memory and displace nothing that matters.
#[derive(Debug)]
pub(super) struct KeyFrequency(Box<[AtomicU64]>);

impl KeyFrequency {
    pub(super) fn new() -> Self {
        Self((0..HEAT_PLACES).map(|_| AtomicU64::new(0)).collect())
    }

    /// Counts a request for a key. Returns the count of this period if the key is hot.
    pub(super) fn count(&self, hash: u64, period: u64) -> Option<u64> {
        #[expect(clippy::cast_possible_truncation, reason = "any bits will do")]
        let place = &self.0[hash as usize % HEAT_PLACES];
        // The upper half of the hash, 16 bits of the period, 16 of the count.
        let tag = (hash & !0xFFFF_FFFF) | (period & 0xFFFF) << 16;
        let before = place.load(Ordering::Relaxed);
        let count = if before & !0xFFFF == tag { (before & 0xFFFF) + 1 } else { 1 };
        place.store(tag | count.min(0xFFFF), Ordering::Relaxed);
        (count >= HOT_COUNT).then_some(count)
    }
}

const HEAT_PLACES: usize = 4096;
/// The requests in a period that make a key hot.
const HOT_COUNT: u64 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_is_hot_after_many_requests_in_one_period() {
        let key_frequency = KeyFrequency::new();
        assert_eq!([1, 1, 1, 1, 1].map(|period| key_frequency.count(7, period)), [None, None, None, Some(4), Some(5)]);
        assert_eq!(
            [2, 2, 3, 3, 3, 3].map(|period| key_frequency.count(7, period)),
            [None, None, None, None, None, Some(4)]
        );
        let other = 7 | 1 << 40;
        assert_eq!(
            [other, 7, other, 7, other].map(|hash| key_frequency.count(hash, 4)),
            [None; 5],
            "they share a place"
        );
    }
}
