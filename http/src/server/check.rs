use http::request::Parts;
use smallvec::SmallVec;
use tollgate::telemetry::MiddlewareEvent;
use tollgate::{Key, Limit, Take};

use super::MissingKey;
use super::answer::{LayerAnswer, Limits};
use super::gate::{PendingDecision, WaitOptions};
use super::layer::RateLimitLayer;
use super::limits::{LayerLimit, Unanswered};
use super::paid_limits::PaidLimits;
use super::refusal::Refusal;

/// The layer's result for a request. An exempt request has neither an answer nor a refusal.
#[derive(Default)]
pub(super) struct Checked<'a> {
    pub(super) answer: Option<LayerAnswer<'a>>,
    pub(super) refusal: Option<Refusal>,
}

impl RateLimitLayer {
    /// Takes the tokens of a request. Gets only the head, so it cannot read the body.
    pub(super) async fn check(&self, request: &Parts) -> Checked<'_> {
        match self.ask(request).await {
            Ok(None) => Checked::default(),
            Ok(Some(answer)) => {
                let denied = || Refusal::Denied {
                    decision: Box::new(answer.decision.clone()),
                    limit: answer.limit().clone(),
                    key: answer.take.keys().nth(answer.decision.limit()).cloned(),
                };
                let refusal = (!answer.decision.is_granted()).then(denied);
                Checked { answer: Some(answer), refusal }
            }
            Err(Unanswered::MissingKey(none)) => {
                // Does not log the reason of a client error: the client has the reason, and can have written parts of
                // it.
                let reason = none.status().is_server_error().then(|| none.to_string());
                let (status, reason) = (none.status().as_u16(), reason.as_deref());
                self.gate.record(MiddlewareEvent::RefusedWithoutKey { status, reason });
                Checked { answer: None, refusal: Some(Refusal::MissingKey(none)) }
            }
            Err(Unanswered::Failed(error)) => Checked { answer: None, refusal: Some(Refusal::Failed(error)) },
        }
    }

    async fn ask(&self, request: &Parts) -> Result<Option<LayerAnswer<'_>>, Unanswered> {
        if self.exempt.as_ref().is_some_and(|exempt| exempt(request)) {
            return Ok(None);
        }
        let Some((take, limits)) = self.take(request)? else {
            return Ok(None);
        };
        let refundable = self.refund.is_some() || limits.iter().any(|limit| limit.refund.is_some());
        let take = take.max_wait(self.max_wait);
        let take = if refundable { take.refundable() } else { take };
        let take = if self.shadow { take.shadow() } else { take };
        let waits = !self.max_wait.is_zero() && !self.shadow;
        let asked = match self.gate.ask(&take, WaitOptions { waits, refundable }) {
            PendingDecision::Now(decision) => decision.map(|decision| (decision, None)),
            PendingDecision::Later(asked) => asked.await,
        };
        let (decision, charge) = asked.map_err(Unanswered::Failed)?;
        Ok(Some(LayerAnswer { decision, take, limits, charge, refunds: Vec::new() }))
    }

    /// The buckets of an answer, and the tokens that the request asked each for.
    pub(super) fn buckets(&self, answer: &LayerAnswer<'_>, request: &Parts) -> SmallVec<[(Key, u64); 1]> {
        let cost = |limit: &LayerLimit| limit.cost.as_ref().or(self.cost.as_ref()).map_or(1, |cost| cost(request));
        answer.take.keys().cloned().zip(answer.limits.iter().map(|limit| cost(limit))).collect()
    }

    /// Builds the request for tokens from all limits, except those that cost nothing, those that an outer layer has
    /// taken, and those whose missing key is allowed.
    fn take(&self, request: &Parts) -> Result<Option<(Take, Limits<'_>)>, Unanswered> {
        let of_request = self.cost.as_ref().map_or(1, |cost| cost(request));
        let (mut take, mut limits, mut is_nobodys) = (None::<Take>, Limits::new(), false);
        for (place, limit) in self.limits.iter().enumerate() {
            let own = limit.cost.as_ref().map(|cost| cost(request));
            let cost = own.unwrap_or(of_request);
            if cost == 0 {
                continue;
            }
            let key = match limit.key(request) {
                Err(Unanswered::MissingKey(none)) if self.passes_without_key && none.is_left_out() => {
                    is_nobodys = true;
                    continue;
                }
                key => key?,
            };
            if PaidLimits::contain(request, self.gate.id(), &key, cost) {
                continue;
            }
            let rule = limit.rule(request, &*self.gate)?;
            let asked = own.into_iter().fold(Limit::new(key, rule), Limit::cost);
            let asked = limit.local.into_iter().fold(asked, Limit::fallback_quota);
            if take.iter().flat_map(Take::keys).any(|key| key == asked.key()) {
                // `name` was called after the limits were combined. The limiter would refuse the request, without the name.
                let same_name =
                    format!("Two limits of the layer are called '{}'. Give each limit its own name.", limit.name);
                return Err(Unanswered::MissingKey(MissingKey::server_error(same_name)));
            }
            take = Some(match take {
                None => self.gate.request(asked, place == 0),
                Some(take) => take.and_limit(asked),
            });
            limits.push(limit);
        }
        if is_nobodys && take.is_none() {
            self.gate.record(MiddlewareEvent::AdmittedWithoutKey);
        }
        // These values apply to limits without their own.
        Ok(take.map(|take| (take.min_remaining(self.gate.required_remaining()).cost(of_request), limits)))
    }
}
