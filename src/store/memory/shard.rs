use parking_lot::MutexGuard;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use foldhash::fast::RandomState;

use super::receipts::{Receipts, Room};
use super::rows::Rows;
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
