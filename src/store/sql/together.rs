use std::sync::Arc;

use smallvec::SmallVec;

use super::ask::Ask;
use super::outcomes;
use crate::model::answer::Answer;
use crate::model::{Error, Outcome};

/// Requests for several buckets each, in the order in which they came.
pub(super) struct Together {
    pub(super) asks: Arc<[Ask]>,
    origins: Vec<Origin>,
}

/// Where a request stood in the caller's order, and at which places its limits did, if others limit nothing.
struct Origin {
    place: usize,
    limits: Option<SmallVec<[usize; 4]>>,
}

impl Together {
    pub(super) fn of(all: Vec<(usize, Ask)>) -> Self {
        let (asks, origins): (Vec<Ask>, Vec<Origin>) = all
            .into_iter()
            .map(|(place, ask)| match ask.take.limited() {
                None => (ask, Origin { place, limits: None }),
                Some((limited, limits)) => (Ask { take: limited, ..ask }, Origin { place, limits: Some(limits) }),
            })
            .unzip();
        Self { asks: asks.into(), origins }
    }

    /// Enters the answers where their requests stood.
    pub(super) fn enter(
        self,
        answers: Vec<Answer>,
        attempts: u32,
        outcomes: &mut [Option<Outcome>],
    ) -> Result<(), Error> {
        let decided = outcomes::of_all(answers, &self.asks, attempts)?;
        for (Origin { place, limits }, outcome) in self.origins.into_iter().zip(decided) {
            outcomes[place] = Some(outcome.map(|decision| match limits {
                None => decision,
                Some(limits) => decision.among(&limits),
            }));
        }
        Ok(())
    }
}
