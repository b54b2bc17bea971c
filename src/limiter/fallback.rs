use std::time::Duration;

use crate::decision::Source;
use crate::{Decision, Error, HoldBack, Key, MemoryStore, Quota, Rule, Take, TakeError};

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
                for (place, limit) in local.limits.iter_mut().enumerate() {
                    let stands_for =
                        (place == 0 && take.own) || matches!(limit.rule, Rule::Plan(_) | Rule::Provisioned);
                    if let Some(quota) = limit.local.take().map(|own| *own).or_else(|| stands_for.then_some(*quota)) {
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

    /// What a third party says holds in this process at least. A bucket that nobody asked for yet is under the quota that
    /// stands for others.
    pub(super) fn hold_back(&self, key: &Key, hold: HoldBack) {
        if let Fallback::Local(quota) = &self.fallback {
            let asked = self.local.lower(key, &Rule::Provisioned, hold);
            if matches!(asked, Err(Error::Take(TakeError::UnknownBucket(_)))) {
                // There is no room for it, or it never refills.
                drop(self.local.lower(key, &Rule::Quota(*quota), hold));
            }
        }
    }
}

const LOCAL_KEYS: usize = 100_000;
