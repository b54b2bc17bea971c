use std::collections::HashMap;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};

use crossbeam_utils::sync::{ShardedLock, ShardedLockReadGuard, ShardedLockWriteGuard};
use foldhash::fast::RandomState;
use smallvec::SmallVec;

use super::held::Held;
use crate::model::{Key, Limit, Take};

/// Of one key. Few are under several rules or keeps.
pub(super) type Leases = SmallVec<[Arc<Held>; 1]>;

/// All leases, by key.
///
/// Where a key is hot, all threads look for the same lease at once, and few are ever added or forgotten. So those who look
/// share no lock that each of them has to write to.
#[derive(Debug)]
pub(super) struct Table {
    shards: [ShardedLock<Shard>; SHARDS],
    hasher: RandomState,
    len: AtomicUsize,
}

type Shard = HashMap<Key, Leases, RandomState>;

impl Table {
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

    /// Does something with the lease that a request may be served from.
    #[inline]
    pub(super) fn find<T>(&self, take: &Take, with: impl FnOnce(&Arc<Held>) -> T) -> Option<T> {
        let Limit { key, rule, .. } = take.lendable()?;
        let shard = self.read(key);
        let held = shard.get(key)?.iter().find(|held| held.is_for(rule, take.keep))?;
        Some(with(held))
    }

    /// Does something with all leases of a key.
    pub(super) fn each(&self, key: &Key, with: impl FnMut(&Arc<Held>)) {
        self.read(key).get(key).into_iter().flatten().for_each(with);
    }

    /// Adds a lease if there is room and no other like it.
    pub(super) fn add(&self, held: &Arc<Held>, most: usize) -> bool {
        let Limit { key, rule, .. } = &held.ask.limits[0];
        let mut shard = self.write(key);
        if shard.get(key).is_some_and(|leases| leases.iter().any(|other| other.is_for(rule, held.ask.keep))) {
            return false;
        }
        let room = |len: usize| (len < most).then_some(len + 1);
        if self.len.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room).is_err() {
            return false;
        }
        shard.entry(key.clone()).or_default().push(Arc::clone(held));
        true
    }

    /// Forgets the leases of a key.
    pub(super) fn remove(&self, key: &Key) -> Leases {
        let leases = self.write(key).remove(key).unwrap_or_default();
        self.len.fetch_sub(leases.len(), Ordering::Relaxed);
        leases
    }

    /// Goes through all leases, and forgets those that it is told to.
    pub(super) fn retain(&self, mut keep: impl FnMut(&Held) -> bool) {
        for shard in &self.shards {
            shard.write().unwrap_or_else(PoisonError::into_inner).retain(|_, leases| {
                let before = leases.len();
                leases.retain(|held| keep(held));
                self.len.fetch_sub(before - leases.len(), Ordering::Relaxed);
                !leases.is_empty()
            });
        }
    }

    fn read(&self, key: &Key) -> ShardedLockReadGuard<'_, Shard> {
        self.shards[place(self.hash(key))].read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, key: &Key) -> ShardedLockWriteGuard<'_, Shard> {
        self.shards[place(self.hash(key))].write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    pub(super) fn held(&self) -> u64 {
        let tokens = |leases: &Leases| leases.iter().map(|held| held.tokens()).sum::<u64>();
        let shards = self.shards.iter().map(|shard| shard.read().unwrap_or_else(PoisonError::into_inner));
        shards.map(|shard| shard.values().map(tokens).sum::<u64>()).sum()
    }
}

fn place(hash: u64) -> usize {
    // The table that the shard is takes the others.
    (hash >> 32) as usize % SHARDS
}

const SHARDS: usize = 16;
