use std::sync::Arc;

use http::HeaderMap;
use smallvec::SmallVec;
use tollgate::{Decision, Take, model::Source};

use super::gate::Charge;
use super::headers::{add_policy, add_rate_limit, is_limited};
use super::limits::LayerLimit;

/// What a request for tokens came to.
pub(super) struct LayerAnswer<'a> {
    pub(super) decision: Decision,
    pub(super) take: Take,
    /// Of each bucket of the request.
    pub(super) limits: Limits<'a>,
    pub(super) charge: Option<Box<dyn Charge>>,
}

/// In the order in which a request names their buckets.
pub(super) type Limits<'a> = SmallVec<[&'a LayerLimit; 1]>;

impl LayerAnswer<'_> {
    /// The name of the limit that decided.
    pub(super) fn limit(&self) -> &Arc<str> {
        &self.limits[self.decision.limit()].name
    }

    /// Adds what is left under each limit, and its terms, to an answer, which may be a denial. Where nothing
    /// limited the request, there is nothing to say.
    pub(super) fn add_headers(&self, headers: &mut HeaderMap, denied: bool) {
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
            }
        }
    }
}
