use std::fmt;
use std::hash::BuildHasher;

use foldhash::fast::RandomState;
use quick_cache::UnitWeighter;
use quick_cache::sync::{Cache, DefaultLifecycle, EntryAction, EntryResult};
use tokio::time::Instant;

use super::denial::Denial;
use super::forgotten::Forgotten;
use crate::model::{Decision, Key, Limit, Outcome, Take};

/// What was denied, by key, as far as there is room.
pub(super) struct Denials {
    cache: Cache<Key, Denial, UnitWeighter, RandomState>,
    forgotten: Forgotten,
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
        Self { cache, forgotten: Forgotten::new(), hasher }
    }

    pub(super) fn len(&self) -> usize {
        self.cache.len()
    }

    /// What is known of the answer to a request.
    #[inline]
    pub(super) fn find(&self, take: &Take) -> Known {
        let Some(Limit { key, rule, .. }) = take.plain().filter(|_| take.max_wait.is_zero()) else {
            return Known::Nothing;
        };
        self.cache.get(key).map_or(Known::Nothing, |denial| denial.answer(take, rule))
    }

    /// Before the store is asked.
    pub(super) fn question(&self, take: &Take) -> Question {
        // In this order: what is forgotten between the two is on no account missed.
        let forgotten = self.forgotten.times(self.hash(take.key()));
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
        if self.forgotten.times(self.hash(key)) != question.forgotten {
            self.remove(key);
        }
    }

    pub(super) fn forget(&self, key: &Key) {
        self.forgotten.count(self.hash(key));
        self.remove(key);
    }

    /// Does not remember any more that a key was denied.
    pub(super) fn remove(&self, key: &Key) {
        self.cache.remove(key);
    }

    fn hash(&self, key: &Key) -> u64 {
        self.hasher.hash_one(key)
    }
}

impl fmt::Debug for Denials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Denials").field("keys", &self.len()).finish_non_exhaustive()
    }
}
