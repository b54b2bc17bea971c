use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};

use foldhash::fast::RandomState;

use crate::Key;

/// How often others have refused requests in this process: who was given a turn before that asks for another one. Keys that
/// share a place cost each other a turn now and then, and nothing else.
#[derive(Debug)]
pub(super) struct Refusals {
    counts: [AtomicU64; PLACES],
    hasher: RandomState,
}

impl Refusals {
    pub(super) fn count(&self, key: &Key) -> u64 {
        self.place(key).load(Ordering::SeqCst)
    }

    pub(super) fn add(&self, key: &Key) {
        self.place(key).fetch_add(1, Ordering::SeqCst);
    }

    fn place(&self, key: &Key) -> &AtomicU64 {
        #[expect(clippy::cast_possible_truncation, reason = "any bits will do")]
        let hash = self.hasher.hash_one(key) as usize;
        &self.counts[hash % PLACES]
    }
}

impl Default for Refusals {
    fn default() -> Self {
        Self { counts: [const { AtomicU64::new(0) }; PLACES], hasher: RandomState::default() }
    }
}

const PLACES: usize = 256;
