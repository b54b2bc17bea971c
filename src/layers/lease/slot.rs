use std::sync::atomic::{AtomicU64, Ordering};

/// Tokens that may be used until an instant: both in one word, so that no token can be used without its instant having been
/// looked at, and each use is one exchange of that word.
///
/// Nothing else is published by the word, and nothing else has to agree with it: whoever exchanges it has the tokens by which
/// it changed. So no ordering is needed, and there is nothing between two atomics for a model checker to explore.
#[derive(Debug, Default)]
pub(super) struct Slot(AtomicU64);

impl Slot {
    /// Uses tokens at an instant, all or none, and says how many are left. Instants are in nanoseconds.
    #[inline]
    pub(super) fn spend(&self, cost: u64, now: u64) -> Option<u64> {
        let spent = |word: u64| if now / MS < word >> BITS && cost <= word & MOST { Some(word - cost) } else { None };
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, spent).ok().map(|before| (before & MOST) - cost)
    }

    /// Puts tokens into an empty slot. Only one at a time may.
    pub(super) fn fill(&self, tokens: u64, until: u64) {
        self.0.store(((until / MS).min(u64::MAX >> BITS) << BITS) | tokens.min(MOST), Ordering::Relaxed);
    }

    /// Takes out all that is left.
    pub(super) fn empty(&self) -> u64 {
        self.0.swap(0, Ordering::Relaxed) & MOST
    }

    /// What is there, expired or not.
    #[inline]
    pub(super) fn tokens(&self) -> u64 {
        self.0.load(Ordering::Relaxed) & MOST
    }

    /// What may be used still.
    #[inline]
    pub(super) fn left(&self, now: u64) -> u64 {
        let word = self.0.load(Ordering::Relaxed);
        if now / MS < word >> BITS { word & MOST } else { 0 }
    }

    pub(super) fn is_expired(&self, now: u64) -> bool {
        now / MS >= self.0.load(Ordering::Relaxed) >> BITS
    }
}

/// The most tokens that a slot holds: 24 bits. The 40 others are milliseconds, for 34 years.
pub(super) const MOST: u64 = (1 << BITS) - 1;
const BITS: u32 = 24;
const MS: u64 = 1_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_used_until_their_instant_and_each_once() {
        let slot = Slot::default();
        assert_eq!(slot.spend(1, 0), None);
        slot.fill(5, 3 * MS);
        assert_eq!([slot.spend(2, 0), slot.spend(4, 0), slot.spend(3, 3 * MS)], [Some(3), None, None]);
        assert_eq!([slot.left(0), slot.left(3 * MS), slot.tokens()], [3, 0, 3]);
        assert_eq!([slot.spend(3, 3 * MS - 1), slot.spend(1, 0)], [Some(0), None]);
        slot.fill(u64::MAX, u64::MAX);
        assert_eq!((slot.spend(1, 1 << 59), slot.is_expired(1 << 59)), (Some(MOST - 1), false));
        assert_eq!((slot.empty(), slot.tokens()), (MOST - 1, 0));
    }

    #[test]
    fn threads_use_what_is_there_and_no_more() {
        let slot = Slot::default();
        slot.fill(100_000, MS);
        let spend = || (0..40_000).filter(|_| slot.spend(1, 0).is_some()).count();
        let used: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(spend)).collect();
            threads.into_iter().map(|thread| thread.join().expect("a thread counts")).sum()
        });
        assert_eq!((used, slot.tokens()), (100_000, 0));
    }
}
