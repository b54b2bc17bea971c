use std::sync::Arc;

use http::HeaderMap;
use smallvec::SmallVec;
use tollgate::{Decision, Take, model::Source};

use super::gate::Charge;
use super::headers::{add_policy, add_rate_limit, add_x_rate_limit, is_limited};
use super::limits::LayerLimit;

/// The limiter's answer to a request for tokens.
pub(super) struct LayerAnswer<'a> {
    pub(super) decision: Decision,
    pub(super) take: Take,
    /// The limit of each bucket of the request.
    pub(super) limits: Limits<'a>,
    pub(super) charge: Option<Box<dyn Charge>>,
}

/// Limits in the order of the request's buckets.
pub(super) type Limits<'a> = SmallVec<[&'a LayerLimit; 1]>;

impl LayerAnswer<'_> {
    /// Returns the name of the limit that decided.
    pub(super) fn limit(&self) -> &Arc<str> {
        &self.limits[self.decision.limit()].name
    }

    /// Adds `RateLimit` and `RateLimit-Policy` for each limit. Adds nothing if no limit applied to the request.
    /// `x`: also adds `X-RateLimit-…` for the limit that decided.
    pub(super) fn add_headers(&self, headers: &mut HeaderMap, denied: bool, x: bool) {
        let served = self.decision.is_granted();
        if served && self.decision.source() == Source::Fallback {
            return;
        }
        for decision in self.decision.each() {
            let place = decision.limit();
            let (limit, Some(asked)) = (self.limits[place], self.take.limits().nth(place)) else { continue };
            if !served || is_limited(decision) {
                add_rate_limit(headers, &limit.name, asked.required_remaining(), decision, denied);
                add_policy(
                    headers,
                    &limit.name,
                    limit.unit.as_deref(),
                    asked.rule(),
                    asked.required_remaining(),
                    decision,
                );
                if x && place == self.decision.limit() {
                    add_x_rate_limit(headers, asked.rule(), asked.required_remaining(), decision);
                }
            }
        }
    }
}
