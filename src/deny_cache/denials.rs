use std::fmt;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};

use foldhash::fast::RandomState;
use quick_cache::UnitWeighter;
use quick_cache::sync::{Cache, DefaultLifecycle, EntryAction, EntryResult};
use tokio::time::Instant;

use super::denial::Denial;
use crate::{Decision, Key, Outcome, Take};

/// What was denied, by key, as far as there is room.
pub(super) struct Denials {
    cache: Cache<Key, Denial, UnitWeighter, RandomState>,
    /// How often keys were forgotten, each counted in one of a few places: a denial that was on its way meanwhile is not
    /// kept.
    forgotten: [AtomicU64; 64],
    hasher: RandomState,
}

/// What is known of the answer to a request.
pub(super) enum Known {
    Denied(Decision),
    /// It was denied before.
    Past,
    Nothing,
}

impl Known {
    pub(super) fn denied(self) -> Option<Decision> {
        match self {
            Self::Denied(decision) => Some(decision),
            Self::Past | Self::Nothing => None,
        }
    }
}

/// When a question was sent, and how often its key had been forgotten by then.
#[derive(Clone, Copy)]
pub(super) struct Question {
    sent: Instant,
    forgotten: u64,
}

impl Denials {
    pub(super) fn new(most_keys: usize) -> Self {
        let hasher = RandomState::default();
        let most = most_keys.max(1);
        let cache = Cache::with(most, most as u64, UnitWeighter, hasher.clone(), DefaultLifecycle::default());
        Self { cache, forgotten: [const { AtomicU64::new(0) }; 64], hasher }
    }

    pub(super) fn len(&self) -> usize {
        self.cache.len()
    }

    /// What is known of the answer to a request.
    #[inline]
    pub(super) fn find(&self, take: &Take) -> Known {
        let Some((key, rule)) = take.plain().filter(|_| take.max_wait.is_zero()) else { return Known::Nothing };
        self.cache.get(key).map_or(Known::Nothing, |denial| denial.answer(take, rule))
    }

    /// Before the store is asked.
    pub(super) fn question(&self, take: &Take) -> Question {
        // In this order: what is forgotten between the two is on no account missed.
        let forgotten = self.count(take.key()).load(Ordering::SeqCst);
        Question { sent: Instant::now(), forgotten }
    }

    /// Keeps what the store denied.
    pub(super) fn learn(&self, take: &Take, question: Question, outcome: &Outcome) {
        let Some(denial) = outcome.as_ref().ok().and_then(|decision| Denial::of(take, question.sent, decision)) else {
            return;
        };
        let key = take.key();
        let mut later = Some(denial);
        let kept = self.cache.entry(key, None, |_, known| {
            if let Some(later) = later.take() {
                known.add(later, take);
            }
            EntryAction::Retain(())
        });
        if let (EntryResult::Vacant(place), Some(denial)) = (kept, later) {
            // Fails if it is forgotten at this moment.
            let _ = place.insert(denial);
        }
        // Whoever forgets counts first. So either the key is counted here, or what was just kept is found there.
        if self.count(key).load(Ordering::SeqCst) != question.forgotten {
            self.remove(key);
        }
    }

    pub(super) fn forget(&self, key: &Key) {
        self.count(key).fetch_add(1, Ordering::SeqCst);
        self.remove(key);
    }

    /// Does not remember any more that a key was denied.
    pub(super) fn remove(&self, key: &Key) {
        self.cache.remove(key);
    }

    fn count(&self, key: &Key) -> &AtomicU64 {
        #[expect(clippy::cast_possible_truncation, reason = "any bits will do")]
        let hash = self.hasher.hash_one(key) as usize;
        &self.forgotten[hash % self.forgotten.len()]
    }
}

impl fmt::Debug for Denials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Denials").field("keys", &self.len()).finish_non_exhaustive()
    }
}
