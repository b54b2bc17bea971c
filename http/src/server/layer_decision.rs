use std::sync::Arc;

use http::HeaderMap;
use smallvec::SmallVec;
use tollgate::{Decision, Key, Limit, Receipt, Take, model::Source};

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
    /// Returns the name of the limit that decided: its own beside others of its key, or the name that the layer gives it.
    pub(super) fn limit(&self) -> Arc<str> {
        self.name(&self.decision)
    }

    /// Returns the name of a limit. Beside other limits of the layer, its own name follows the layer's.
    fn name(&self, decision: &Decision) -> Arc<str> {
        let of_layer = &self.limits[decision.limit_index()].name;
        match decision.limit_name() {
            Some(name) if self.limits.len() > 1 => format!("{of_layer}-{name}").into(),
            Some(name) => name.into(),
            None => Arc::clone(of_layer),
        }
    }

    /// Returns the limit whose tokens a receipt is about.
    pub(super) fn limit_of(&self, receipt: &Receipt) -> Option<&LayerLimit> {
        let decided = self.decision.each().iter().find(|decision| self.bucket(decision) == Some(receipt.key()))?;
        self.limits.get(decided.limit_index()).copied()
    }

    /// Returns the bucket of an answer.
    pub(super) fn bucket<'a>(&'a self, decision: &'a Decision) -> Option<&'a Key> {
        decision.bucket().or_else(|| self.take.keys().nth(decision.limit_index()))
    }

    /// Adds `RateLimit` and `RateLimit-Policy` for each limit, as after the refunds. Adds nothing if no limit applied to
    /// the request. `x`: also adds `X-RateLimit-…` for the limit that decides.
    pub(super) fn add_headers(&self, headers: &mut HeaderMap, denied: bool, x: bool) {
        let served = self.decision.is_granted();
        if served && self.decision.source() == Source::Fallback {
            return;
        }
        let each: SmallVec<[(Decision, &Limit); 1]> = self.decisions_after_refunds().collect();
        let decides = self.decides(&each).cloned();
        for (decision, requested) in &each {
            let place = decision.limit_index();
            let limit = self.limits[place];
            let name = self.name(decision);
            if !served || is_limited(decision) {
                add_rate_limit(headers, &name, requested.get_min_remaining(), decision, denied);
                add_policy(
                    headers,
                    &name,
                    limit.unit.as_deref(),
                    requested.rule(),
                    requested.get_min_remaining(),
                    decision,
                );
                if x && self.bucket(decision) == decides.as_ref() {
                    add_x_rate_limit(headers, requested.rule(), requested.get_min_remaining(), decision);
                }
            }
        }
    }

    /// Iterates over the answers of the buckets, as after the refunds.
    fn decisions_after_refunds(&self) -> impl Iterator<Item = (Decision, &Limit)> {
        self.decision.each().iter().filter_map(|decision| {
            let requested = self.take.limits().nth(decision.limit_index())?;
            let bucket = self.bucket(decision);
            let refund = self.refunds.iter().find_map(|(key, tokens)| (Some(key) == bucket).then_some(*tokens));
            Some((refund.map_or_else(|| decision.clone(), |tokens| decision.after_refund(tokens)), requested))
        })
    }

    /// Returns the bucket that decided. After refunds, the one with tokens for the fewest equal requests.
    fn decides<'a>(&'a self, each: &'a [(Decision, &Limit)]) -> Option<&'a Key> {
        if self.refunds.is_empty() {
            return self.bucket(&self.decision);
        }
        // Compares remaining ÷ cost without a division.
        let suffices = |one: &Decision, other: &Limit| {
            u128::from(one.remaining().unwrap_or(u64::MAX)) * u128::from(other.get_cost())
        };
        let fewest = each
            .iter()
            .min_by(|(one, of_one), (other, of_other)| suffices(one, of_other).cmp(&suffices(other, of_one)));
        self.bucket(fewest.map_or(&self.decision, |(decision, _)| decision))
    }
}
