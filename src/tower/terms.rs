use std::sync::Arc;

use http::request::Parts;

use super::gate::Gate;
use super::key::{join, key};
use super::{KeyExtractor, NoKey};
use crate::{Error, Key, Rule};

/// One limit of a layer: whose tokens a request takes, and under which terms.
#[derive(Clone)]
pub(super) struct Limit {
    pub(super) name: Arc<str>,
    /// Whether the name is a part of the keys.
    pub(super) named: bool,
    pub(super) key: Arc<dyn KeyExtractor>,
    pub(super) terms: Terms,
}

#[derive(Clone)]
pub(super) enum Terms {
    OfLimiter,
    Always(Rule),
    ByRequest(OfRequest<Result<Rule, Error>>),
}

/// What a closure says of a request.
pub(super) type OfRequest<T> = Arc<dyn Fn(&Parts) -> T + Send + Sync>;

/// Why there is no answer to a request.
pub(super) enum Unanswered {
    NoKey(NoKey),
    Failed(Error),
}

impl Limit {
    pub(super) fn key(&self, request: &Parts) -> Result<Key, Unanswered> {
        let text = self.key.extract(request).map_err(Unanswered::NoKey)?;
        let text = if self.named { join(&[&self.name, &text]) } else { text };
        key(&text).map_err(|error| Unanswered::NoKey(NoKey::of_client(error.to_string())))
    }

    pub(super) fn rule(&self, request: &Parts, limiter: &dyn Gate) -> Result<Rule, Unanswered> {
        match &self.terms {
            Terms::OfLimiter => Ok(limiter.rule()),
            Terms::Always(rule) => Ok(rule.clone()),
            Terms::ByRequest(choose) => choose(request).map_err(Unanswered::Failed),
        }
    }
}
