//! A request whose limits have modes of their own, as the requests that a store decides one after another.

use std::collections::VecDeque;
use std::time::Duration;

use smallvec::SmallVec;

use crate::model::{Checked, Decision, Error, Mode, Outcome, Source, Take};

/// A request whose limits have [modes of their own](crate::Limit::mode), in parts.
///
/// The first part has all limits that can deny the request. Each further part has one limit that is only tried, and is decided
/// after a grant. So a denied request takes nothing from any limit.
#[derive(Debug)]
pub(crate) struct TakeInParts<'a, E = Error> {
    take: Checked<&'a Take>,
    parts: VecDeque<Part>,
    /// The answers of the limits, each with its place in the request.
    answers: Vec<(usize, Decision)>,
    /// Why there is no decision.
    failure: Option<Result<Outcome, E>>,
}

/// A request for some of the limits.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) take: Checked<Take>,
    places: SmallVec<[usize; 4]>,
    /// Whether its limit is in shadow mode.
    pub(crate) is_trial: bool,
}

impl<'a, E> TakeInParts<'a, E> {
    /// `None`: every limit is enforced.
    #[inline]
    pub(crate) fn of(take: Checked<&'a Take>) -> Option<Self> {
        take.has_modes().then(|| Self::new(take))
    }

    fn new(take: Checked<&'a Take>) -> Self {
        let places = |mode: Mode| (0..take.limits.len()).filter(move |&place| take.get().limits[place].mode == mode);
        let mut this = Self { take, parts: VecDeque::new(), answers: Vec::new(), failure: None };
        let enforced: SmallVec<[usize; 4]> = places(Mode::Enforce).collect();
        if let Some(blocked) = places(Mode::Block).next() {
            this.answers.push((blocked, Decision::denial(None).with_mode(Mode::Block)));
            return this;
        }
        if !enforced.is_empty() {
            this.parts.push_back(Part { take: Checked::part(take, &enforced), places: enforced, is_trial: false });
        }
        for place in places(Mode::Shadow) {
            let take = Checked::part(take, &[place]).max_wait(Duration::ZERO);
            this.parts.push_back(Part { take, places: SmallVec::from_slice(&[place]), is_trial: true });
        }
        this
    }

    /// The next part for the store, if the request is still granted.
    pub(crate) fn next_part(&mut self) -> Option<Part> {
        self.parts.pop_front()
    }

    /// Records the store's answer to a part.
    pub(crate) fn record(&mut self, part: &Part, answer: Result<Outcome, E>) {
        match answer {
            Ok(Ok(decision)) => {
                // Without the store, only the limits that can deny are worth a wait.
                if !part.is_trial && (!decision.is_granted() || decision.source() == Source::Fallback) {
                    self.parts.clear();
                }
                let each = decision.each().iter().filter(|_| !part.take.is_unlimited());
                self.answers.extend(each.map(|one| (part.places[one.place()], part.passed(one.clone()))));
            }
            // Such a request would never pass.
            Ok(Err(_)) if part.is_trial => self.answers.push((part.places[0], part.passed(Decision::denial(None)))),
            // A limit that is only tried fails no request.
            Err(_) if part.is_trial => {}
            failure => {
                self.parts.clear();
                self.failure = Some(failure);
            }
        }
    }

    /// The answer to the whole request.
    pub(crate) fn into_answer(self) -> Result<Outcome, E> {
        let Self { take, answers, failure, .. } = self;
        failure.unwrap_or_else(|| {
            let is_off = take.limits.iter().all(|limit| limit.mode == Mode::Off);
            let mode = if is_off { Mode::Off } else { Mode::Enforce };
            let without_limit = || Decision::without_limit().with_mode(mode);
            Ok(Ok(Decision::combine(answers, take.get()).unwrap_or_else(without_limit)))
        })
    }
}

impl Part {
    /// The decision of a limit, which passes if it is only tried.
    fn passed(&self, decision: Decision) -> Decision {
        if self.is_trial && !decision.is_granted() { decision.granted_by(Mode::Shadow) } else { decision }
    }
}
