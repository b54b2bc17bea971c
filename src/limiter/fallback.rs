use std::time::Duration;

use crate::model::decision::Source;
use crate::model::{Decision, Error, HoldBack, HoldBackError, Key, Quota, Rule, Take, TakeError};
use crate::store::MemoryStore;

/// What a limiter answers when its store does not, or not in time.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fallback {
    /// Everything passes.
    Open,
    /// Everything is denied; it says to come again after this time.
    Closed(Duration),
    /// A bucket for each key in this process, under a quota that is safe for one process; what a request
    /// [keeps](crate::Limit::keep) for others is not kept of it.
    ///
    /// Of several limits it stands for the limiter's own, the first, and for those whose terms are the database's (plans,
    /// provisioned buckets); others keep the quotas that the request states, each process for itself. A limit that counts
    /// something else [says its own](crate::Limit::locally).
    Local(Quota),
}

/// Who answers then.
#[derive(Debug)]
pub(super) struct Instead {
    fallback: Fallback,
    local: MemoryStore,
}

impl Instead {
    pub(super) fn new(fallback: Fallback) -> Self {
        Self { fallback, local: MemoryStore::new().most_keys(LOCAL_KEYS) }
    }

    pub(super) fn decide(&self, take: &Take) -> Result<Decision, TakeError> {
        let decision = match &self.fallback {
            Fallback::Open => Decision::grant(u64::MAX),
            Fallback::Closed(retry_after) => Decision::denial(*retry_after),
            Fallback::Local(quota) => {
                let mut local = take.clone();
                // What it grants cannot be settled, and nobody repeats the request: there is nothing to remember it for.
                local.id = local.id.filter(|_| !take.has_fresh_id());
                for (place, limit) in local.limits.iter_mut().enumerate() {
                    let own = place == 0 && take.own;
                    if let Some(quota) = stands_for(*quota, &limit.rule, own, limit.local.as_deref()) {
                        (limit.rule, limit.keep) = (Rule::Quota(quota), 0);
                    }
                }
                // More than the local quota ever holds, or keys or ids than there is room for, are only not to be had until
                // the store is back.
                self.local.decide(&local).or_else(|error| match error {
                    TakeError::NeverPossible { .. } | TakeError::TooManyKeys(_) | TakeError::TooManyIds(_) => {
                        Ok(Decision::denial(Duration::MAX))
                    }
                    other => Err(other),
                })?
            }
        };
        Ok(decision.by(Source::Fallback).untaken())
    }

    /// What a third party says holds in this process, while that decides. The limit is the limiter's own, or may have a
    /// [quota of its own](crate::Limit::locally).
    pub(super) fn hold_back(&self, key: &Key, rule: &Rule, own: bool, local: Option<&Quota>, hold: HoldBack) {
        let Fallback::Local(quota) = &self.fallback else { return };
        let lower = |rule: &Rule| {
            let lowered = self.local.lower(key, rule, hold);
            match (&lowered, hold.left()) {
                (Err(Error::HoldBack(HoldBackError::NeverRefills(_))), Some(left)) => {
                    self.local.lower(key, rule, HoldBack::remaining(left))
                }
                _ => lowered,
            }
        };
        // A debt is tokens, which other terms would rescale: so under those that the bucket has, or else will have.
        if matches!(lower(&Rule::Provisioned), Err(Error::Take(TakeError::UnknownBucket(_)))) {
            let quota = stands_for(*quota, rule, own, local).map(Rule::Quota);
            // There is no room for it, or it cannot be held back.
            drop(lower(quota.as_ref().unwrap_or(rule)));
        }
    }
}

/// The quota under which this process decides, if that is not what the request states.
fn stands_for(quota: Quota, rule: &Rule, own: bool, local: Option<&Quota>) -> Option<Quota> {
    let for_others = own || matches!(rule, Rule::Plan(_) | Rule::Provisioned);
    local.copied().or_else(|| for_others.then_some(quota))
}

const LOCAL_KEYS: usize = 100_000;
