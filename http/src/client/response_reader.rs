use std::fmt;
use std::sync::Arc;

use super::{HeaderPreset, UpstreamResponse, headers};
use tollgate::Throttle;

/// What a closure says of an answer.
pub(super) type ResponseFn<T> = Arc<dyn Fn(&UpstreamResponse<'_>) -> T + Send + Sync>;

/// What is read of an answer for one limit.
#[derive(Clone, Default)]
pub(super) struct ResponseReader {
    pub(super) presets: Vec<HeaderPreset>,
    pub(super) by: Vec<ResponseFn<Option<Throttle>>>,
    pub(super) cost: Cost,
}

/// What a request takes.
#[derive(Clone, Default)]
pub(super) enum Cost {
    #[default]
    Known,
    /// An estimate, which is settled by the head of the answer.
    ByHead(ResponseFn<Option<u64>>),
    /// One that is settled by whoever reads the body.
    ByBody,
}

impl ResponseReader {
    /// What is left, by the headers that are read.
    pub(super) fn said(&self, answer: &UpstreamResponse<'_>) -> Option<Throttle> {
        let by = self.by.iter().filter_map(|by| by(answer));
        headers::said(answer.headers, &self.presets).into_iter().chain(by).reduce(Throttle::and)
    }

    /// Whether anything is.
    pub(super) fn is_read(&self) -> bool {
        !self.presets.is_empty() || !self.by.is_empty()
    }

    /// Whether the cost is an estimate.
    pub(super) fn is_estimated(&self) -> bool {
        !matches!(self.cost, Cost::Known)
    }

    /// Whether it is settled by whoever reads the body.
    pub(super) fn is_open(&self) -> bool {
        matches!(self.cost, Cost::ByBody)
    }

    /// What was used of an estimate, if that is known by the head of the answer. Who is overloaded may have begun with it, so
    /// there a refusal is no answer, but what it says is.
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
            .field("closures", &self.by.len())
            .field("is_estimated", &is_estimated)
            .finish_non_exhaustive()
    }
}
