use std::collections::{HashMap, HashSet};
use std::hash::BuildHasher;
use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use hashbrown::hash_table::{Entry, OccupiedEntry};
use parking_lot::MutexGuard;

use super::receipts::{Receipts, Room};
use crate::model::bucket::NEVER_NS;
use crate::model::decide::Row;
use crate::model::window::WindowRow;
use crate::model::{Key, TakeError, Window};

/// A part of the keys: their buckets and windows, and what is remembered of requests for them.
#[derive(Debug)]
pub(super) struct Shard {
    rows: Rows,
    windows: HashMap<Key, WindowRow, RandomState>,
    pub(super) receipts: Receipts,
    most_keys: usize,
    /// No bucket that could be forgotten is full before, unless the clock is set back.
    none_full_before: i64,
    swept_at: i64,
}

impl Shard {
    pub(super) fn new(most_keys: usize, hasher: RandomState, room: Arc<Room>) -> Self {
        let (rows, windows, receipts) = (Rows::new(hasher), HashMap::default(), Receipts::new(room));
        Self { rows, windows, receipts, most_keys, none_full_before: i64::MIN, swept_at: i64::MIN }
    }

    /// Of receipts there may be as many as there is room for.
    pub(super) fn hold_at_most(&mut self, keys: usize, room: Arc<Room>) {
        self.most_keys = keys;
        self.receipts.share(room);
    }

    pub(super) fn len(&self) -> usize {
        self.rows.len() + self.windows.len()
    }

    /// That of a key whose hash is known.
    #[inline]
    pub(super) fn hashed(&mut self, hash: u64, key: &Key) -> Option<&mut Row> {
        self.rows.hashed(hash, key)
    }

    pub(super) fn row(&mut self, key: &Key) -> Option<&mut Row> {
        self.rows.get_mut(key)
    }

    pub(super) fn rows(&self) -> impl Iterator<Item = (&Key, &Row)> {
        self.rows.iter()
    }

    /// Changes a bucket in a way that may make it full earlier, and says whether it exists.
    pub(super) fn change(&mut self, key: &Key, change: impl FnOnce(&mut Row)) -> bool {
        self.none_full_before = i64::MIN;
        self.rows.get_mut(key).map(change).is_some()
    }

    /// Something was given back: its bucket is full, or its window empty, earlier than was thought.
    pub(super) fn given_back(&mut self, key: &Key) {
        if let Some(row) = self.rows.get(key) {
            self.none_full_before = self.none_full_before.min(full_at(row));
        }
        if let Some(row) = self.windows.get(key) {
            self.none_full_before = self.none_full_before.min(row.ring.empty_at(&row.window));
        }
    }

    /// Forgets a key's bucket and window, and says whether there was one.
    pub(super) fn remove(&mut self, key: &Key) -> bool {
        let window = self.forget_window(key);
        self.rows.remove(key) || window
    }

    /// Says whether anything was counted in it.
    pub(super) fn forget_window(&mut self, key: &Key) -> bool {
        self.windows.remove(key).is_some_and(|row| row.ring.granted > 0)
    }

    /// Adds a bucket, or replaces it. If there is no room, those that are full are forgotten.
    pub(super) fn insert(&mut self, key: Key, row: Row, now: i64) -> Result<(), TakeError> {
        if self.rows.get(&key).is_none() {
            self.make_room(&key, 1, now)?;
        }
        let (terms, full_at) = (row.terms(), full_at(&row));
        match self.rows.insert(key, row) {
            Some(before) if before.terms() == terms => {}
            Some(_) => self.none_full_before = self.none_full_before.min(full_at),
            None => self.none_full_before = i64::MIN,
        }
        Ok(())
    }

    /// The window of a key, made if need be.
    pub(super) fn window(&mut self, key: &Key, window: &Window, now: i64) -> Result<&mut WindowRow, TakeError> {
        if !self.windows.contains_key(key) {
            self.make_room(key, 1, now)?;
            // It is empty sooner than others, perhaps.
            self.none_full_before = i64::MIN;
        }
        Ok(self.windows.entry(key.clone()).or_insert_with(|| WindowRow::new(*window, now)))
    }

    /// The same to look at: not made.
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
        if self.len() + keys > self.most_keys && may_be_full {
            self.sweep(now, true);
        }
        if self.len() + keys > self.most_keys { Err(TakeError::TooManyKeys(key.clone())) } else { Ok(()) }
    }

    /// Forgets buckets that are full and were not provisioned: they are full as well when they are made again. But of
    /// requests that can be settled more may have to be paid, so theirs stay, too, while there is room.
    pub(super) fn sweep(&mut self, now: i64, for_room: bool) {
        let mut earliest = NEVER_NS;
        let open = if for_room { HashSet::new() } else { self.receipts.open(now) };
        self.swept_at = now;
        self.rows.retain(|key, row| {
            // As its next request would find it: it is forgotten a refill from now, and not when the clock is where it was.
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
            !row.is_empty(now) || (!open.is_empty() && open.contains(&key.of_window()))
        });
        self.none_full_before = earliest;
    }
}

fn full_at(row: &Row) -> i64 {
    row.terms().instant(row.bucket.anchor, row.bucket.full_at)
}

/// The buckets of a shard by their keys' hashes, which choose the shard as well: the key of a request is hashed once.
#[derive(Debug)]
struct Rows {
    hasher: RandomState,
    table: HashTable<(Key, Row)>,
}

impl Rows {
    /// Whose keys are hashed by `hasher`.
    fn new(hasher: RandomState) -> Self {
        Self { hasher, table: HashTable::new() }
    }

    fn len(&self) -> usize {
        self.table.len()
    }

    /// That of a key whose hash is known.
    #[inline]
    fn hashed(&mut self, hash: u64, key: &Key) -> Option<&mut Row> {
        self.table.find_mut(hash, |(other, _)| other == key).map(|(_, row)| row)
    }

    fn get(&self, key: &Key) -> Option<&Row> {
        self.table.find(self.hasher.hash_one(key), |(other, _)| other == key).map(|(_, row)| row)
    }

    fn get_mut(&mut self, key: &Key) -> Option<&mut Row> {
        self.hashed(self.hasher.hash_one(key), key)
    }

    /// Adds a bucket or replaces it, and says what it was.
    fn insert(&mut self, key: Key, row: Row) -> Option<Row> {
        let hasher = |(key, _): &(Key, Row)| self.hasher.hash_one(key);
        match self.table.entry(self.hasher.hash_one(&key), |(other, _)| *other == key, hasher) {
            Entry::Occupied(mut entry) => Some(std::mem::replace(&mut entry.get_mut().1, row)),
            Entry::Vacant(entry) => {
                entry.insert((key, row));
                None
            }
        }
    }

    /// Says whether there was one.
    fn remove(&mut self, key: &Key) -> bool {
        let found = self.table.find_entry(self.hasher.hash_one(key), |(other, _)| other == key);
        found.map(OccupiedEntry::remove).is_ok()
    }

    fn iter(&self) -> impl Iterator<Item = (&Key, &Row)> {
        self.table.iter().map(|(key, row)| (key, row))
    }

    fn retain(&mut self, mut keep: impl FnMut(&Key, &mut Row) -> bool) {
        self.table.retain(|(key, row)| keep(key, row));
    }
}

/// Shards that one request has locked, with their places.
pub(super) struct Guards<'a>(pub(super) Vec<(usize, MutexGuard<'a, Shard>)>);

impl Guards<'_> {
    pub(super) fn row(&mut self, place: usize, key: &Key) -> Option<&Row> {
        self.shard(place).row(key).map(|row| &*row)
    }

    /// Whether all of a request's buckets can be written, before any is.
    pub(super) fn make_room<'k>(
        &mut self,
        keys: &(impl Iterator<Item = (usize, &'k Key)> + Clone),
        now: i64,
    ) -> Result<(), TakeError> {
        // Again for those that the first time has forgotten: then no more are.
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

    pub(super) fn write(&mut self, place: usize, key: &Key, row: Row, now: i64) -> Result<(), TakeError> {
        self.shard(place).insert(key.clone(), row, now)
    }

    pub(super) fn shard(&mut self, place: usize) -> &mut Shard {
        let locked = self.0.iter_mut().find(|(locked, _)| *locked == place);
        &mut locked.expect("every key's shard was locked").1
    }
}
