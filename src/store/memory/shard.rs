//! A shard of the store in memory: buckets, windows and receipts under one lock.

use std::collections::{HashMap, HashSet};
use std::hash::BuildHasher;
use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use hashbrown::hash_table::{Entry, OccupiedEntry};
use parking_lot::MutexGuard;

use super::receipts::{ReceiptRoom, Receipts};
use crate::model::bucket::NEVER_NS;
use crate::model::decide::BucketRow;
use crate::model::window::WindowRow;
use crate::model::{Key, TakeError, Window};

/// A part of the keys: their buckets, windows and receipts.
#[derive(Debug)]
pub(super) struct Shard {
    rows: Rows,
    windows: HashMap<Key, WindowRow, RandomState>,
    pub(super) receipts: Receipts,
    max_keys: usize,
    /// No bucket that the shard can forget is full before this instant, unless the clock is set back.
    none_full_before: i64,
    swept_at: i64,
}

impl Shard {
    pub(super) fn new(max_keys: usize, hasher: RandomState, room: Arc<ReceiptRoom>) -> Self {
        let (rows, windows, receipts) = (Rows::new(hasher), HashMap::default(), Receipts::new(room));
        Self { rows, windows, receipts, max_keys, none_full_before: i64::MIN, swept_at: i64::MIN }
    }

    /// Sets how many keys the shard holds at most, and the room for its receipts.
    pub(super) fn hold_at_most(&mut self, keys: usize, room: Arc<ReceiptRoom>) {
        self.max_keys = keys;
        self.receipts.share(room);
    }

    pub(super) fn len(&self) -> usize {
        self.rows.len() + self.windows.len()
    }

    /// Returns the bucket of a key whose hash is known.
    #[inline]
    pub(super) fn hashed(&mut self, hash: u64, key: &Key) -> Option<&mut BucketRow> {
        self.rows.hashed(hash, key)
    }

    pub(super) fn row(&mut self, key: &Key) -> Option<&mut BucketRow> {
        self.rows.get_mut(key)
    }

    pub(super) fn rows(&self) -> impl Iterator<Item = (&Key, &BucketRow)> {
        self.rows.iter()
    }

    /// Changes a bucket in a way that can make it full earlier, and returns whether the bucket exists.
    pub(super) fn change(&mut self, key: &Key, change: impl FnOnce(&mut BucketRow)) -> bool {
        self.none_full_before = i64::MIN;
        self.rows.get_mut(key).map(change).is_some()
    }

    /// Notes a refund: the key's bucket is full, or its window empty, earlier than before.
    pub(super) fn given_back(&mut self, key: &Key) {
        if let Some(row) = self.rows.get(key) {
            self.none_full_before = self.none_full_before.min(full_at(row));
        }
        if let Some(row) = self.windows.get(key) {
            self.none_full_before = self.none_full_before.min(row.ring.empty_at(&row.window));
        }
    }

    /// Forgets a key's bucket and window, and returns whether there was one.
    pub(super) fn remove(&mut self, key: &Key) -> bool {
        let window = self.forget_window(key);
        self.rows.remove(key) || window
    }

    /// Forgets a key's window, and returns whether it had counted a request.
    pub(super) fn forget_window(&mut self, key: &Key) -> bool {
        self.windows.remove(key).is_some_and(|row| row.ring.granted > 0)
    }

    /// Adds or replaces a bucket. Without room, forgets full buckets.
    pub(super) fn insert(&mut self, key: Key, row: BucketRow, now: i64) -> Result<(), TakeError> {
        if self.rows.get(&key).is_none() {
            self.make_room(&key, 1, now)?;
        }
        let (limits, full_at) = (row.limits(), full_at(&row));
        match self.rows.insert(key, row) {
            Some(before) if before.limits() == limits => {}
            Some(_) => self.none_full_before = self.none_full_before.min(full_at),
            None => self.none_full_before = i64::MIN,
        }
        Ok(())
    }

    /// Returns the window of a key. Creates the window if there is none.
    pub(super) fn window(&mut self, key: &Key, window: &Window, now: i64) -> Result<&mut WindowRow, TakeError> {
        if !self.windows.contains_key(key) {
            self.make_room(key, 1, now)?;
            // The new window can be empty sooner than the others.
            self.none_full_before = i64::MIN;
        }
        Ok(self.windows.entry(key.clone()).or_insert_with(|| WindowRow::new(*window, now)))
    }

    /// Returns a copy of a key's window, or an empty one that is not stored.
    pub(super) fn known_window(&self, key: &Key, window: &Window, now: i64) -> WindowRow {
        self.windows.get(key).cloned().unwrap_or_else(|| WindowRow::new(*window, now))
    }

    pub(super) fn windows(&self) -> impl Iterator<Item = (&Key, &WindowRow)> {
        self.windows.iter()
    }

    pub(super) fn window_of(&mut self, key: &Key) -> Option<&mut WindowRow> {
        self.windows.get_mut(key)
    }

    fn make_room(&mut self, key: &Key, keys: usize, now: i64) -> Result<(), TakeError> {
        let may_be_full = now >= self.none_full_before || now < self.swept_at;
        if self.len() + keys > self.max_keys && may_be_full {
            self.sweep(now, true);
        }
        if self.len() + keys > self.max_keys { Err(TakeError::TooManyKeys(key.clone())) } else { Ok(()) }
    }

    /// Forgets full buckets that were not provisioned: they are full again when they are created again. Forgets them at
    /// once, because creating one is cheap here. While there is room, keeps the buckets of requests that can be settled,
    /// because settling can charge more.
    pub(super) fn sweep(&mut self, now: i64, for_room: bool) {
        let mut earliest = NEVER_NS;
        let open = if for_room { HashSet::new() } else { self.receipts.open(now) };
        self.swept_at = now;
        self.rows.retain(|key, row| {
            // As the next request would find it: after the clock was set back, the bucket is full a refill from now.
            row.step_back(now);
            if row.is_idle(now) && !open.contains(key) {
                return false;
            }
            if !row.provisioned {
                earliest = earliest.min(full_at(row));
            }
            true
        });
        self.windows.retain(|key, row| {
            row.ring.step_back(now);
            earliest = earliest.min(row.ring.empty_at(&row.window));
            !row.is_empty(now) || (!open.is_empty() && open.contains(&key.window_receipt_key()))
        });
        self.none_full_before = earliest;
    }
}

fn full_at(row: &BucketRow) -> i64 {
    row.limits().instant(row.bucket.anchor, row.bucket.full_at)
}

/// The buckets of a shard, by their keys' hashes. The same hash chooses the shard, so that each request hashes its key
/// once.
#[derive(Debug)]
struct Rows {
    hasher: RandomState,
    table: HashTable<(Key, BucketRow)>,
}

impl Rows {
    /// Creates an empty table whose keys `hasher` hashes.
    fn new(hasher: RandomState) -> Self {
        Self { hasher, table: HashTable::new() }
    }

    fn len(&self) -> usize {
        self.table.len()
    }

    /// Returns the bucket of a key whose hash is known.
    #[inline]
    fn hashed(&mut self, hash: u64, key: &Key) -> Option<&mut BucketRow> {
        self.table.find_mut(hash, |(other, _)| other == key).map(|(_, row)| row)
    }

    fn get(&self, key: &Key) -> Option<&BucketRow> {
        self.table.find(self.hasher.hash_one(key), |(other, _)| other == key).map(|(_, row)| row)
    }

    fn get_mut(&mut self, key: &Key) -> Option<&mut BucketRow> {
        self.hashed(self.hasher.hash_one(key), key)
    }

    /// Adds or replaces a bucket, and returns the previous one.
    fn insert(&mut self, key: Key, row: BucketRow) -> Option<BucketRow> {
        let hasher = |(key, _): &(Key, BucketRow)| self.hasher.hash_one(key);
        match self.table.entry(self.hasher.hash_one(&key), |(other, _)| *other == key, hasher) {
            Entry::Occupied(mut entry) => Some(std::mem::replace(&mut entry.get_mut().1, row)),
            Entry::Vacant(entry) => {
                entry.insert((key, row));
                None
            }
        }
    }

    /// Removes a bucket, and returns whether there was one.
    fn remove(&mut self, key: &Key) -> bool {
        let found = self.table.find_entry(self.hasher.hash_one(key), |(other, _)| other == key);
        found.map(OccupiedEntry::remove).is_ok()
    }

    fn iter(&self) -> impl Iterator<Item = (&Key, &BucketRow)> {
        self.table.iter().map(|(key, row)| (key, row))
    }

    fn retain(&mut self, mut keep: impl FnMut(&Key, &mut BucketRow) -> bool) {
        self.table.retain(|(key, row)| keep(key, row));
    }
}

/// The shards that one request has locked, with their places.
pub(super) struct Guards<'a>(pub(super) Vec<(usize, MutexGuard<'a, Shard>)>);

impl Guards<'_> {
    pub(super) fn row(&mut self, place: usize, key: &Key) -> Option<&BucketRow> {
        self.shard(place).row(key).map(|row| &*row)
    }

    /// Makes room for all buckets of a request before any is written.
    pub(super) fn make_room<'k>(
        &mut self,
        keys: &(impl Iterator<Item = (usize, &'k Key)> + Clone),
        now: i64,
    ) -> Result<(), TakeError> {
        // The first pass can forget buckets of this request. The second pass makes room for those, and forgets no more.
        for _ in 0..2 {
            let mut new = Vec::new();
            for (place, key) in keys.clone() {
                if self.row(place, key).is_none() {
                    new.push(place);
                    let keys = new.iter().filter(|other| **other == place).count();
                    self.shard(place).make_room(key, keys, now)?;
                }
            }
        }
        Ok(())
    }

    pub(super) fn write(&mut self, place: usize, key: &Key, row: BucketRow, now: i64) -> Result<(), TakeError> {
        self.shard(place).insert(key.clone(), row, now)
    }

    pub(super) fn shard(&mut self, place: usize) -> &mut Shard {
        let locked = self.0.iter_mut().find(|(locked, _)| *locked == place);
        &mut locked.expect("every key's shard was locked").1
    }
}
