use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;

use crate::model::Rule;

/// The rule that holds now. Few limiters ever change theirs: until then no counter is touched to read it, which would be a
/// tenth of a decision in memory.
#[derive(Debug)]
pub(super) struct CurrentRule {
    first: Rule,
    later: OnceLock<ArcSwap<Rule>>,
}

impl CurrentRule {
    pub(super) fn new(first: Rule) -> Self {
        Self { first, later: OnceLock::new() }
    }

    #[inline]
    pub(super) fn get(&self) -> Rule {
        self.later.get().map_or_else(|| self.first.clone(), |later| Rule::clone(&later.load()))
    }

    pub(super) fn set(&self, rule: Rule) {
        let rule = Arc::new(rule);
        self.later.get_or_init(|| ArcSwap::new(Arc::clone(&rule))).store(rule);
    }
}
