use super::{Counts, Ring, Window};
use crate::model::answer::Word;
use crate::model::bucket;
use crate::model::bucket::{NEVER_NS, Request, Verdict};
use crate::model::{Decision, Mode, Outcome, Take, TakeError};

/// A store's answer to a request under a sliding window.
#[derive(Clone, Debug)]
pub struct Counted {
    pub(crate) word: Word,
    pub(crate) mode: Mode,
    pub(crate) now: i64,
    /// When the request acts; if blocked, until when.
    pub(crate) acts_at: Option<i64>,
    pub(crate) counts: Counts,
    /// The resolution that the newest sub-interval was counted in.
    pub(crate) resolution_ns: i64,
}

impl Counted {
    /// How many requests were counted in sub-intervals that may count still.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.counts.iter().map(|(_, count)| count.unsigned_abs()).fold(0, u64::saturating_add)
    }

    /// What was left of a window at the instant of the answer; negative: promised to requests that wait for it.
    #[must_use]
    pub fn available(&self, window: &Window) -> i64 {
        let ring = Ring { counts: self.counts.clone(), ..Ring::default() };
        window.most - ring.counted(window, self.now)
    }

    pub(crate) fn new(word: Word, now: i64, acts_at: i64, ring: &Ring) -> Self {
        let counts = ring.counts.clone();
        Self { word, mode: Mode::Enforce, now, acts_at: Some(acts_at), counts, resolution_ns: ring.resolution_ns }
    }

    pub(crate) fn outcome(self, take: &Take, window: &Window, request: Request) -> Outcome {
        let key = || take.key().clone();
        match self.word {
            Word::Granted | Word::Denied | Word::Spared => {}
            Word::Never => {
                return Err(TakeError::NeverPossible {
                    key: key(),
                    cost: take.cost,
                    keep: take.keep,
                    capacity: window.max_requests(),
                });
            }
            Word::Reused => return Err(TakeError::Reused(take.id.unwrap_or_default())),
            Word::Unknown | Word::Unplanned | Word::Conflict => return Err(TakeError::UnknownBucket(key())),
        }
        let Self { mode, now, acts_at, counts, .. } = self;
        let ring = Ring { counts, resolution_ns: self.resolution_ns, ..Ring::default() };
        let took = self.word == Word::Granted && mode == Mode::Enforce;
        let blocked = mode == Mode::Block;
        let next = ring.earliest(window, window.most - request.cost - request.keep, now) - now;
        let verdict = Verdict {
            granted: self.word == Word::Granted,
            remaining: (window.most - ring.counted(window, now)).max(0),
            wait: if took { acts_at.map_or(0, |at| at - now) } else { 0 },
            retry_after: if blocked { acts_at.map_or(NEVER_NS, |until| until - now) } else { next },
            reset_after: (ring.empty_at(window) - now).max(0),
        };
        let receipt = bucket::Receipt { cost: request.cost, granted: 0, acts_at: acts_at.unwrap_or(now) };
        let decision = if took { Decision::of(verdict, Some(receipt)) } else { Decision::new(verdict).under(mode) };
        Ok(decision.of_window(window))
    }
}
