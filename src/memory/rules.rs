use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock};

use crate::book::{Override, Plan, Row, Rules, Setting};
use crate::{Key, Rule};

/// The plans, the mode and the overrides of a store in memory.
#[derive(Debug, Default)]
pub(super) struct RuleBook {
    chosen: RwLock<Chosen>,
    any: AtomicBool,
}

#[derive(Debug, Default)]
pub(super) struct Chosen {
    pub(super) all: Setting,
    pub(super) plans: HashMap<Key, Plan>,
    pub(super) overrides: HashMap<Key, Override>,
}

impl RuleBook {
    /// Whether a bucket under its own terms may be ruled by anything else.
    pub(super) fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// What rules a key.
    pub(super) fn of(&self, key: &Key, rule: &Rule, row: Option<&Row>) -> Rules {
        let chosen = self.chosen.read().unwrap_or_else(PoisonError::into_inner);
        let plan = match rule {
            Rule::Plan(plan) => Some(plan),
            Rule::Provisioned => row.and_then(|row| row.plan.as_ref()),
            Rule::Quota(_) | Rule::Window(_) => None,
        };
        Rules {
            all: chosen.all,
            plan: plan.and_then(|plan| chosen.plans.get(plan)).copied(),
            over: chosen.overrides.get(key).copied(),
        }
    }

    pub(super) fn change(&self, change: impl FnOnce(&mut Chosen)) {
        let mut chosen = self.chosen.write().unwrap_or_else(PoisonError::into_inner);
        change(&mut chosen);
        self.any.store(chosen.all.mode.is_some() || !chosen.overrides.is_empty(), Ordering::Release);
    }
}
