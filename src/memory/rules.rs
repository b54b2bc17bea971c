use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::RwLock;

use crate::admin::Chosen;
use crate::book::{self, Row, Rules, Setting};
use crate::{Key, Mode, Override, Plan, Rule, Switch};

/// The plans, the mode and the overrides of a store in memory.
#[derive(Debug, Default)]
pub(super) struct RuleBook {
    choices: RwLock<Choices>,
    any: AtomicBool,
}

#[derive(Debug, Default)]
pub(super) struct Choices {
    pub(super) all: Switch,
    pub(super) plans: BTreeMap<Key, Plan>,
    pub(super) overrides: HashMap<Key, Override>,
}

impl RuleBook {
    /// Whether a bucket under its own terms may be ruled by anything else.
    #[inline]
    pub(super) fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// What rules a key.
    pub(super) fn of(&self, key: &Key, rule: &Rule, row: Option<&Row>) -> Rules {
        let plan = match rule {
            Rule::Plan(plan) => Some(plan),
            Rule::Provisioned => row.and_then(|row| row.plan.as_deref()),
            Rule::Quota(_) | Rule::Window(_) => None,
        };
        self.read(|choices| Rules {
            all: Setting::of_all(&choices.all),
            plan: plan.and_then(|plan| choices.plans.get(plan)).map(book::Plan::from),
            over: choices.overrides.get(key).map(book::Override::from),
        })
    }

    /// What was chosen for a key, and for a plan if one is named.
    pub(super) fn chosen(&self, key: &Key, plan: Option<&Key>) -> Chosen {
        self.read(|choices| Chosen {
            all: choices.all.clone(),
            plan: plan.and_then(|plan| choices.plans.get(plan)).cloned(),
            over: choices.overrides.get(key).cloned(),
        })
    }

    pub(super) fn read<T>(&self, read: impl FnOnce(&Choices) -> T) -> T {
        read(&self.choices.read())
    }

    pub(super) fn change<T>(&self, change: impl FnOnce(&mut Choices) -> T) -> T {
        let mut choices = self.choices.write();
        let changed = change(&mut choices);
        self.any.store(choices.all.mode != Mode::Enforce || !choices.overrides.is_empty(), Ordering::Release);
        changed
    }
}
