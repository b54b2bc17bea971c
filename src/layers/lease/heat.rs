use std::sync::atomic::{AtomicU64, Ordering};

/// Which keys are asked for often: a count for each, in a table of fixed size.
///
/// A place holds a part of the key's hash, a period and how often the key was asked for in it. Whoever finds another key or
/// another period there begins anew. So a place lost to another key, or a count lost to a thread at the same moment, makes
/// a lease late and never wrong, and a million keys that are used once take no memory and push nothing out that matters.
#[derive(Debug)]
pub(super) struct Heat(Box<[AtomicU64]>);

impl Heat {
    pub(super) fn new() -> Self {
        Self((0..PLACES).map(|_| AtomicU64::new(0)).collect())
    }

    /// Counts that a key was asked for, and says how often it was in this period if that is often.
    pub(super) fn count(&self, hash: u64, period: u64) -> Option<u64> {
        #[expect(clippy::cast_possible_truncation, reason = "any bits will do")]
        let place = &self.0[hash as usize % PLACES];
        // The upper half of the hash, 16 bits of the period, 16 of the count.
        let whose = (hash & !0xFFFF_FFFF) | (period & 0xFFFF) << 16;
        let before = place.load(Ordering::Relaxed);
        let count = if before & !0xFFFF == whose { (before & 0xFFFF) + 1 } else { 1 };
        place.store(whose | count.min(0xFFFF), Ordering::Relaxed);
        (count >= OFTEN).then_some(count)
    }
}

const PLACES: usize = 4096;
/// How often in a period makes a lease worth while.
const OFTEN: u64 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_hot_that_is_asked_for_often_in_one_period() {
        let heat = Heat::new();
        assert_eq!([1, 1, 1, 1, 1].map(|period| heat.count(7, period)), [None, None, None, Some(4), Some(5)]);
        assert_eq!([2, 2, 3, 3, 3, 3].map(|period| heat.count(7, period)), [None, None, None, None, None, Some(4)]);
        let other = 7 | 1 << 40;
        assert_eq!([other, 7, other, 7, other].map(|hash| heat.count(hash, 4)), [None; 5], "they share a place");
    }
}
