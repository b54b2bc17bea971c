use std::time::Duration;

use http::request::Parts;
use smallvec::SmallVec;

use super::answer::{Answer, Limits};
use super::layer::{Mode, RateLimitLayer};
use super::refusal::Refusal;
use super::terms::{Limit, Unanswered};
use crate::{Key, Rule, Take};

/// What the layer found out about a request: nothing if it is exempt.
#[derive(Default)]
pub(super) struct Checked {
    pub(super) answer: Option<Answer>,
    pub(super) refusal: Option<Refusal>,
}

impl RateLimitLayer {
    /// Asks for a request's tokens. It has only its head: nothing here can read the body.
    pub(super) async fn check(&self, request: &Parts) -> Checked {
        match self.ask(request).await {
            Ok(None) => Checked::default(),
            Ok(Some(answer)) => {
                let denied = || Refusal::Denied { decision: answer.decision.clone(), limit: answer.limit().clone() };
                let refusal = (!answer.decision.is_granted()).then(denied);
                Checked { answer: Some(answer), refusal }
            }
            Err(Unanswered::NoKey(_)) if self.passes_without_key => Checked::default(),
            Err(Unanswered::NoKey(none)) => Checked { answer: None, refusal: Some(Refusal::NoKey(none)) },
            Err(Unanswered::Failed(error)) => Checked { answer: None, refusal: Some(Refusal::Failed(error)) },
        }
    }

    async fn ask(&self, request: &Parts) -> Result<Option<Answer>, Unanswered> {
        if self.exempt.as_ref().is_some_and(|exempt| exempt(request)) {
            return Ok(None);
        }
        let cost = self.cost.as_ref().map_or(1, |cost| cost(request));
        if cost == 0 {
            return Ok(None);
        }
        let (take, limits) = self.take(request, cost)?;
        let longest = if let Mode::Wait(longest) = self.mode { longest } else { Duration::ZERO };
        let asked = self.gate.ask(take.max_wait(longest), self.refund.is_some());
        let (decision, charge) = asked.await.map_err(Unanswered::Failed)?;
        Ok(Some(Answer { decision, cost, limits, charge }))
    }

    /// The request for tokens of all limits.
    fn take(&self, request: &Parts, cost: u64) -> Result<(Take, Limits), Unanswered> {
        let keyed: SmallVec<[(Key, &Limit); 1]> =
            self.limits.iter().map(|limit| Ok((limit.key(request)?, limit))).collect::<Result<_, Unanswered>>()?;
        let mut take = None::<Take>;
        for (key, limit) in &keyed {
            let rule = limit.rule(request, &*self.gate)?;
            take = Some(match take {
                None => self.gate.take(key.clone(), cost).rule(rule),
                Some(take) => take.and(key.clone(), rule),
            });
        }
        let take = take.expect("a layer has a limit");
        // By their keys: limits that have one bucket are one.
        let of = |(key, rule): &(Key, Rule)| {
            let limit = keyed.iter().rev().find(|(other, _)| other == key);
            limit.map(|(_, limit)| (limit.name.clone(), rule.clone()))
        };
        let limits = take.limits.iter().filter_map(of).collect();
        Ok((take, limits))
    }
}
