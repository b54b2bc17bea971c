use std::fmt;
use std::sync::Arc;

use super::{HeaderPreset, UpstreamResponse, headers};
use tollgate::Throttle;

/// A closure that computes a value from an answer.
pub(super) type ResponseFn<T> = Arc<dyn Fn(&UpstreamResponse<'_>) -> T + Send + Sync>;

/// Reads the answers for one limit.
#[derive(Clone, Default)]
pub(super) struct ResponseReader {
    pub(super) presets: Vec<HeaderPreset>,
    pub(super) closures: Vec<ResponseFn<Option<Throttle>>>,
    pub(super) cost: Cost,
}

/// How the cost of a request is determined.
#[derive(Clone, Default)]
pub(super) enum Cost {
    #[default]
    Known,
    /// An estimate, settled by the head of the answer.
    ByHead(ResponseFn<Option<u64>>),
    /// An estimate, settled by the caller after the body has been read.
    ByBody,
}

impl ResponseReader {
    /// Returns the tokens left, according to the headers.
    pub(super) fn reported(&self, answer: &UpstreamResponse<'_>) -> Option<Throttle> {
        let by_closures = self.closures.iter().filter_map(|read| read(answer));
        headers::reported(answer.headers, &self.presets).into_iter().chain(by_closures).reduce(Throttle::and)
    }

    /// Whether the reader has presets or closures.
    pub(super) fn reads_responses(&self) -> bool {
        !self.presets.is_empty() || !self.closures.is_empty()
    }

    /// Whether the cost is an estimate.
    pub(super) fn is_estimated(&self) -> bool {
        !matches!(self.cost, Cost::Known)
    }

    /// Whether the caller settles the estimate after reading the body.
    pub(super) fn settles_later(&self) -> bool {
        matches!(self.cost, Cost::ByBody)
    }

    /// Returns the tokens used, if the head of the answer reports them. A refusal used nothing. An overloaded upstream
    /// can have begun with the request, so its refusals report nothing by themselves.
    pub(super) fn used(&self, answer: &UpstreamResponse<'_>, is_refusal: bool) -> Option<u64> {
        match &self.cost {
            Cost::Known => None,
            _ if is_refusal && !answer.is_overload() => Some(0),
            Cost::ByHead(used) => used(answer),
            Cost::ByBody => None,
        }
    }
}

impl fmt::Debug for ResponseReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_estimated = self.is_estimated();
        f.debug_struct("ResponseReader")
            .field("presets", &self.presets)
            .field("closures", &self.closures.len())
            .field("is_estimated", &is_estimated)
            .finish_non_exhaustive()
    }
}
