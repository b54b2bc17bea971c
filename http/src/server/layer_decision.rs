use std::sync::Arc;

use http::HeaderMap;
use smallvec::SmallVec;
use tollgate::{Decision, Limit, Take, model::Source};

use super::headers::{add_policy, add_rate_limit, add_x_rate_limit, is_limited};
use super::layer_limit::LayerLimit;
use super::refund::{Charge, Refunds};

/// The limiter's answer to a request for tokens.
pub(super) struct LayerDecision<'a> {
    pub(super) decision: Decision,
    pub(super) take: Take,
    /// The limit of each bucket of the request.
    pub(super) limits: Limits<'a>,
    pub(super) charge: Option<Box<dyn Charge>>,
    pub(super) refunds: Refunds,
}

/// Limits in the order of the request's buckets.
pub(super) type Limits<'a> = SmallVec<[&'a LayerLimit; 1]>;

impl LayerDecision<'_> {
    /// Returns the name of the limit that decided.
    pub(super) fn limit(&self) -> &Arc<str> {
        &self.limits[self.decision.limit_index()].name
    }

    /// Adds `RateLimit` and `RateLimit-Policy` for each limit, as after the refunds. Adds nothing if no limit applied to
    /// the request. `x`: also adds `X-RateLimit-…` for the limit that decides.
    pub(super) fn add_headers(&self, headers: &mut HeaderMap, denied: bool, x: bool) {
        let served = self.decision.is_granted();
        if served && self.decision.source() == Source::Fallback {
            return;
        }
        let each: SmallVec<[(Decision, &Limit); 1]> = self.decisions_after_refunds().collect();
        let decides = self.decides(&each);
        for (decision, requested) in &each {
            let place = decision.limit_index();
            let limit = self.limits[place];
            if !served || is_limited(decision) {
                add_rate_limit(headers, &limit.name, requested.get_min_remaining(), decision, denied);
                add_policy(
                    headers,
                    &limit.name,
                    limit.unit.as_deref(),
                    requested.rule(),
                    requested.get_min_remaining(),
                    decision,
                );
                if x && place == decides {
                    add_x_rate_limit(headers, requested.rule(), requested.get_min_remaining(), decision);
                }
            }
        }
    }

    /// Iterates over the answers of the buckets, as after the refunds.
    fn decisions_after_refunds(&self) -> impl Iterator<Item = (Decision, &Limit)> {
        self.decision.each().iter().filter_map(|decision| {
            let requested = self.take.limits().nth(decision.limit_index())?;
            let refund = self.refunds.iter().find_map(|(key, tokens)| (key == requested.key()).then_some(*tokens));
            Some((refund.map_or_else(|| decision.clone(), |tokens| decision.after_refund(tokens)), requested))
        })
    }

    /// Returns the place of the limit that decided. After refunds, of the limit with tokens for the fewest equal requests.
    fn decides(&self, each: &[(Decision, &Limit)]) -> usize {
        if self.refunds.is_empty() {
            return self.decision.limit_index();
        }
        // Compares remaining ÷ cost without a division.
        let suffices = |one: &Decision, other: &Limit| {
            u128::from(one.remaining().unwrap_or(u64::MAX)) * u128::from(other.get_cost())
        };
        let fewest = each
            .iter()
            .min_by(|(one, of_one), (other, of_other)| suffices(one, of_other).cmp(&suffices(other, of_one)));
        fewest.map_or_else(|| self.decision.limit_index(), |(decision, _)| decision.limit_index())
    }
}
