use http::request::Parts;
use smallvec::SmallVec;
use tollgate::middleware::MiddlewareEvent;
use tollgate::{Key, Limit, Take};

use super::MissingKey;
use super::erased_limiter::{PendingDecision, WaitOptions};
use super::layer::RateLimitLayer;
use super::layer_decision::{LayerDecision, Limits};
use super::layer_limit::{LayerLimit, UndecidedError};
use super::paid_limits::PaidLimits;
use super::refusal::Refusal;

/// The layer's result for a request. An exempt request has neither an answer nor a refusal.
#[derive(Default)]
pub(super) struct Admission<'a> {
    pub(super) decided: Option<LayerDecision<'a>>,
    pub(super) refusal: Option<Refusal>,
}

impl RateLimitLayer {
    /// Takes the tokens of a request. Gets only the head, so it cannot read the body.
    pub(super) async fn admit(&self, request: &Parts) -> Admission<'_> {
        match self.ask(request).await {
            Ok(None) => Admission::default(),
            Ok(Some(decided)) => {
                let denied = || Refusal::Denied {
                    decision: Box::new(decided.decision.clone()),
                    limit: decided.limit(),
                    key: decided.bucket(&decided.decision).cloned(),
                };
                let refusal = (!decided.decision.is_granted()).then(denied);
                Admission { decided: Some(decided), refusal }
            }
            Err(UndecidedError::MissingKey(missing)) => {
                // Does not log the reason of a client error: the client has the reason, and can have written parts of
                // it.
                let reason = missing.status().is_server_error().then(|| missing.to_string());
                let (status, reason) = (missing.status().as_u16(), reason.as_deref());
                self.limiter.record(MiddlewareEvent::RefusedWithoutKey { status, reason });
                Admission { decided: None, refusal: Some(Refusal::MissingKey(missing)) }
            }
            Err(UndecidedError::Failed(error)) => Admission { decided: None, refusal: Some(Refusal::Failed(error)) },
        }
    }

    async fn ask(&self, request: &Parts) -> Result<Option<LayerDecision<'_>>, UndecidedError> {
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
        let decided = match self.limiter.ask(&take, WaitOptions { waits, refundable }) {
            PendingDecision::Now(decision) => decision.map(|decision| (decision, None)),
            PendingDecision::Later(decided) => decided.await,
        };
        let (decision, charge) = decided.map_err(UndecidedError::Failed)?;
        Ok(Some(LayerDecision { decision, take, limits, charge, refunds: Vec::new() }))
    }

    /// The buckets of an answer, and the tokens that the request asked each for.
    pub(super) fn buckets(&self, decided: &LayerDecision<'_>, request: &Parts) -> SmallVec<[(Key, u64); 1]> {
        let cost = |limit: &LayerLimit| limit.cost.as_ref().or(self.cost.as_ref()).map_or(1, |cost| cost(request));
        decided.take.keys().cloned().zip(decided.limits.iter().map(|limit| cost(limit))).collect()
    }

    /// Builds the request for tokens from all limits, except those that cost nothing, those that an outer layer has
    /// taken, and those whose missing key is allowed.
    fn take(&self, request: &Parts) -> Result<Option<(Take, Limits<'_>)>, UndecidedError> {
        let request_cost = self.cost.as_ref().map_or(1, |cost| cost(request));
        let (mut take, mut limits, mut lacks_key) = (None::<Take>, Limits::new(), false);
        for (place, limit) in self.limits.iter().enumerate() {
            let own = limit.cost.as_ref().map(|cost| cost(request));
            let cost = own.unwrap_or(request_cost);
            if cost == 0 {
                continue;
            }
            let key = match limit.key(request) {
                Err(UndecidedError::MissingKey(missing)) if self.passes_without_key && missing.is_absent() => {
                    lacks_key = true;
                    continue;
                }
                key => key?,
            };
            if PaidLimits::contain(request, self.limiter.id(), &key, cost) {
                continue;
            }
            let rule = limit.rule(request, &*self.limiter)?;
            let requested = own.into_iter().fold(Limit::new(key, rule), Limit::cost);
            let requested = limit.fallback_quota.into_iter().fold(requested, Limit::fallback_quota).mode(limit.mode);
            if take.iter().flat_map(Take::keys).any(|key| key == requested.key()) {
                // `name` was called after the limits were combined. The limiter would refuse the request, without the name.
                let same_name =
                    format!("Two limits of the layer are called '{}'. Give each limit its own name.", limit.name);
                return Err(UndecidedError::MissingKey(MissingKey::server_error(same_name)));
            }
            take = Some(match take {
                None => self.limiter.request(requested, place == 0),
                Some(take) => take.and_limit(requested),
            });
            limits.push(limit);
        }
        if lacks_key && take.is_none() {
            self.limiter.record(MiddlewareEvent::AdmittedWithoutKey);
        }
        // These values apply to limits without their own.
        Ok(take.map(|take| (take.min_remaining(self.limiter.min_remaining()).cost(request_cost), limits)))
    }
}
