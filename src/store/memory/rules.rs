//! The plans, overrides and modes of the store in memory. A flag saves most requests their lock.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::RwLock;

use crate::admin::AdminSettings;
use crate::admin::{ModeSetting, Override, Plan};
use crate::model::decide;
use crate::model::decide::{BucketRow, KeySettings, TimedMode};
use crate::model::{Key, Limits, Mode, Rule};

/// The plans, the mode and the overrides of a store in memory.
#[derive(Debug, Default)]
pub(super) struct OperatorSettings {
    settings: RwLock<Settings>,
    /// Whether the mode or an override can affect a key. The mode and the overrides themselves are read only under the
    /// lock.
    any: AtomicBool,
}

#[derive(Debug, Default)]
pub(super) struct Settings {
    pub(super) all: ModeSetting,
    pub(super) plans: BTreeMap<Key, Plan>,
    /// The limits of each plan, in their order.
    pub(super) limits: HashMap<Key, Limits>,
    pub(super) overrides: HashMap<Key, Override>,
}

impl Settings {
    fn leaves_to_tokens(&self, key: &Key, plan: Option<&Key>, row: &BucketRow, now: i64) -> bool {
        let over = self.overrides.get(key).map(decide::OverrideSettings::from).filter(|over| over.setting.holds(now));
        self.all.mode == Mode::Enforce
            && over.is_none_or(|over| over.setting.mode.is_none())
            && over.and_then(|over| over.quota).as_ref() == row.over.as_deref()
            && plan.is_none_or(|plan| {
                self.plans.get(plan).is_some_and(|plan| plan.mode.is_none() && plan.quota == row.own_quota)
            })
    }
}

impl OperatorSettings {
    /// Returns whether a bucket already has its effective limits, so that its tokens alone decide.
    #[inline]
    pub(super) fn leaves_to_tokens(&self, key: &Key, rule: &Rule, row: &BucketRow, now: i64) -> bool {
        let plan = match rule {
            Rule::Quota(quota) if *quota == row.own_quota && row.plan.is_none() => None,
            Rule::Provisioned => row.plan.as_deref(),
            Rule::Plan(plan) if row.plan.as_deref() == Some(plan) => Some(plan),
            _ => return false,
        };
        if plan.is_none() && !self.any.load(Ordering::Relaxed) {
            return row.over.is_none();
        }
        self.read(|settings| settings.leaves_to_tokens(key, plan, row, now))
    }

    /// Returns the settings that apply to a key.
    pub(super) fn key_settings(&self, key: &Key, rule: &Rule, row: Option<&BucketRow>) -> KeySettings {
        let plan = match rule {
            Rule::Plan(plan) => Some(plan),
            Rule::Provisioned => row.and_then(|row| row.plan.as_deref()),
            Rule::Quota(_) | Rule::Window(_) | Rule::Limits(_) => None,
        };
        self.read(|settings| KeySettings {
            all: TimedMode::from_setting(&settings.all),
            plan: plan.and_then(|plan| settings.plans.get(plan)).map(decide::PlanSettings::from),
            over: settings.overrides.get(key).map(decide::OverrideSettings::from),
        })
    }

    /// Returns what an operator chose for a key, and for a plan if one is named.
    pub(super) fn admin_settings(&self, key: &Key, plan: Option<&Key>) -> AdminSettings {
        self.read(|settings| AdminSettings {
            all: settings.all.clone(),
            plan: plan.and_then(|plan| settings.plans.get(plan)).cloned(),
            over: settings.overrides.get(key).cloned(),
        })
    }

    pub(super) fn read<T>(&self, read: impl FnOnce(&Settings) -> T) -> T {
        read(&self.settings.read())
    }

    pub(super) fn change<T>(&self, change: impl FnOnce(&mut Settings) -> T) -> T {
        let mut settings = self.settings.write();
        let changed = change(&mut settings);
        self.any.store(settings.all.mode != Mode::Enforce || !settings.overrides.is_empty(), Ordering::Relaxed);
        changed
    }
}
