use std::sync::Arc;

use http::HeaderMap;
use smallvec::SmallVec;

use super::gate::Charge;
use super::headers::{add_policy, add_rate_limit};
use super::terms::Limit;
use crate::{Decision, Take};

/// What a request for tokens came to.
pub(super) struct Answer<'a> {
    pub(super) decision: Decision,
    pub(super) take: Take,
    /// Of each bucket of the request.
    pub(super) limits: Limits<'a>,
    pub(super) charge: Option<Box<dyn Charge>>,
}

/// In the order in which a request names their buckets.
pub(super) type Limits<'a> = SmallVec<[&'a Limit; 1]>;

impl Answer<'_> {
    /// The name of the limit that decided.
    pub(super) fn limit(&self) -> &Arc<str> {
        &self.limits[self.decision.limit()].name
    }

    pub(super) fn add_headers(&self, headers: &mut HeaderMap) {
        add_rate_limit(headers, self.limit(), &self.decision);
        for (limit, (_, rule)) in self.limits.iter().zip(&self.take.limits) {
            add_policy(headers, &limit.name, rule);
        }
    }
}
