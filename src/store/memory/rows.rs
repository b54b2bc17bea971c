use std::hash::BuildHasher;

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use hashbrown::hash_table::{Entry, OccupiedEntry};

use crate::model::Key;
use crate::model::decide::Row;

/// The buckets of a shard by their keys' hashes, which choose the shard as well: the key of a request is hashed once.
#[derive(Debug)]
pub(super) struct Rows {
    hasher: RandomState,
    table: HashTable<(Key, Row)>,
}

impl Rows {
    /// Whose keys are hashed by `hasher`.
    pub(super) fn new(hasher: RandomState) -> Self {
        Self { hasher, table: HashTable::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    /// That of a key whose hash is known.
    #[inline]
    pub(super) fn hashed(&mut self, hash: u64, key: &Key) -> Option<&mut Row> {
        self.table.find_mut(hash, |(other, _)| other == key).map(|(_, row)| row)
    }

    pub(super) fn get(&self, key: &Key) -> Option<&Row> {
        self.table.find(self.hasher.hash_one(key), |(other, _)| other == key).map(|(_, row)| row)
    }

    pub(super) fn get_mut(&mut self, key: &Key) -> Option<&mut Row> {
        self.hashed(self.hasher.hash_one(key), key)
    }

    /// Adds a bucket or replaces it, and says what it was.
    pub(super) fn insert(&mut self, key: Key, row: Row) -> Option<Row> {
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
    pub(super) fn remove(&mut self, key: &Key) -> bool {
        let found = self.table.find_entry(self.hasher.hash_one(key), |(other, _)| other == key);
        found.map(OccupiedEntry::remove).is_ok()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Key, &Row)> {
        self.table.iter().map(|(key, row)| (key, row))
    }

    pub(super) fn retain(&mut self, mut keep: impl FnMut(&Key, &mut Row) -> bool) {
        self.table.retain(|(key, row)| keep(key, row));
    }
}
