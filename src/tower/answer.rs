use std::sync::Arc;

use http::HeaderMap;
use smallvec::SmallVec;

use super::gate::Charge;
use super::headers::{add_policy, add_rate_limit};
use crate::{Decision, Rule};

/// What a request for tokens came to.
pub(super) struct Answer {
    pub(super) decision: Decision,
    pub(super) cost: u64,
    pub(super) limits: Limits,
    pub(super) charge: Option<Box<dyn Charge>>,
}

/// The names and terms of the limits, in the order in which the request named their buckets.
pub(super) type Limits = SmallVec<[(Arc<str>, Rule); 1]>;

impl Answer {
    /// The name of the limit that decided.
    pub(super) fn limit(&self) -> &Arc<str> {
        &self.limits[self.decision.limit()].0
    }

    pub(super) fn add_headers(&self, headers: &mut HeaderMap) {
        add_rate_limit(headers, self.limit(), &self.decision);
        for (name, rule) in &self.limits {
            add_policy(headers, name, rule);
        }
    }
}
