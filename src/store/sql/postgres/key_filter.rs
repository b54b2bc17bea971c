//! A set of keys that is sometimes wrong, for choices that change no answer.

use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};

use foldhash::fast::FixedState;

use crate::model::Key;

/// Has one bit per hash of a key. Keys with the same bit, in several databases too, are in the set together.
pub(super) struct KeyFilter([AtomicU64; WORDS]);

impl KeyFilter {
    pub(super) const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; WORDS])
    }

    pub(super) fn contains(&self, key: &Key) -> bool {
        let (word, bit) = self.place(key);
        word.load(Ordering::Relaxed) & bit != 0
    }

    pub(super) fn set(&self, key: &Key, is_in: bool) {
        let (word, bit) = self.place(key);
        // A write would take the word from other threads, so nothing is written without a change.
        if (word.load(Ordering::Relaxed) & bit != 0) == is_in {
            return;
        }
        if is_in {
            word.fetch_or(bit, Ordering::Relaxed);
        } else {
            word.fetch_and(!bit, Ordering::Relaxed);
        }
    }

    #[allow(clippy::cast_possible_truncation, reason = "a part of the hash suffices")]
    fn place(&self, key: &Key) -> (&AtomicU64, u64) {
        let hash = FixedState::default().hash_one(key);
        (&self.0[(hash >> 6) as usize % WORDS], 1 << (hash % 64))
    }
}

/// 65,536 bits in 8 KiB. With more busy keys, most share a bit.
const WORDS: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_is_in_the_set_until_it_is_taken_out() {
        let (filter, key) = (KeyFilter::new(), Key::try_from("k").expect("a valid key"));
        assert!(!filter.contains(&key));
        for is_in in [true, true, false, false] {
            filter.set(&key, is_in);
            assert_eq!(filter.contains(&key), is_in);
        }
    }
}
