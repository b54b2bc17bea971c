//! The methods of operators for the store in memory.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;

use chrono::{DateTime, Utc};

use super::MemoryStore;
use crate::admin::{
    AdminError, BucketLevel, DenialCount, Explanation, Filter, ModeSetting, Override, Page, Plan, Usage, UsageFilter,
    UsageRecording,
};
use crate::admin::{explain, limited, plan_limits};
use crate::clock::Clock;
use crate::model::decide;
use crate::model::decide::BucketRow;
use crate::model::{Error, Key, Limits, Mode, NamedLimit, Quota, Rule, TakeError, WindowLevel};
use crate::store::Admin;

impl<C: Clock> Admin for MemoryStore<C> {
    async fn create_bucket(&self, key: &Key, quota: Quota) -> Result<(), AdminError> {
        Ok(self.provision(key, limited(quota)?).map_err(Error::from)?)
    }

    async fn peek(&self, key: &Key) -> Result<Option<BucketLevel>, Error> {
        let mut shard = self.shard(key).lock();
        let now = self.clock.now();
        Ok(shard.row(key).map(|row| BucketLevel::new(key.clone(), row, now)))
    }

    async fn peek_window(&self, key: &Key) -> Result<Option<WindowLevel>, Error> {
        let mut shard = self.shard(key).lock();
        let now = self.clock.now();
        Ok(shard.window_of(key).and_then(|row| WindowLevel::new(key, row.clone(), now)))
    }

    /// Reads every bucket for each page.
    async fn list(&self, filter: &Filter, after: Option<&Key>, limit: u32) -> Result<Page<BucketLevel>, Error> {
        let mut levels = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock();
            let now = self.clock.now();
            let wanted = shard.rows().filter(|(key, row)| {
                after.is_none_or(|after| *key > after) && filter.admits(key, row.plan.as_deref(), row.provisioned)
            });
            levels.extend(wanted.map(|(key, row)| BucketLevel::new(key.clone(), row, now)));
        }
        levels.sort_unstable_by(|one, other| one.key.cmp(&other.key));
        levels.truncate(limit as usize);
        Ok(levels.into())
    }

    /// Reads every window for each page.
    async fn windows(&self, prefix: Option<&Key>, after: Option<&Key>, limit: u32) -> Result<Page<WindowLevel>, Error> {
        let filter = prefix.cloned().into_iter().fold(Filter::default(), Filter::prefix);
        let mut levels = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock();
            let now = self.clock.now();
            let wanted = shard
                .windows()
                .filter(|(key, _)| after.is_none_or(|after| *key > after) && filter.admits(key, None, false));
            levels.extend(wanted.filter_map(|(key, row)| WindowLevel::new(key, row.clone(), now)));
        }
        levels.sort_unstable_by(|one, other| one.key.cmp(&other.key));
        levels.truncate(limit as usize);
        Ok(levels.into())
    }

    async fn reset(&self, key: &Key) -> Result<bool, Error> {
        let mut shard = self.shard(key).lock();
        let now = self.clock.now();
        let window = shard.forget_window(key);
        let rules = self.rules.key_settings(key, &Rule::Provisioned, shard.row(key).as_deref());
        Ok(shard.change(key, |row| decide::reset(row, &rules, now)) || window)
    }

    async fn delete(&self, key: &Key) -> Result<bool, Error> {
        Ok(self.shard(key).lock().remove(key))
    }

    async fn explain(&self, key: &Key, plan: Option<&Key>) -> Result<Explanation, Error> {
        let mut shard = self.shard(key).lock();
        let now = self.clock.now();
        let row = shard.row(key).cloned();
        let settings = self.rules.admin_settings(key, plan.or_else(|| row.as_ref()?.plan.as_deref()));
        Ok(explain(row, plan, &settings, now))
    }

    async fn create_plan(&self, name: &Key, limits: Limits) -> Result<(), AdminError> {
        let limits = plan_limits(name, limits)?;
        self.rules.change(|settings| {
            settings.plans.retain(|row, _| {
                row == name || row.without_limit() != *name || limits.buckets(name).any(|(id, _)| id == *row)
            });
            for (row, NamedLimit { quota, name: limit, cost }) in limits.buckets(name) {
                // A new further limit has the mode of the first one.
                let known = settings.plans.get(&row).or_else(|| settings.plans.get(name));
                let mode = known.and_then(|plan| plan.mode.clone());
                let plan = Plan { name: row.clone(), limit: limit.clone(), cost: cost.clone(), quota: *quota, mode };
                settings.plans.insert(row, plan);
            }
            settings.limits.insert(name.clone(), limits.clone());
        });
        Ok(())
    }

    async fn set_plan_mode(
        &self,
        name: &Key,
        mode: Option<Mode>,
        reason: Option<&str>,
        until: Option<DateTime<Utc>>,
    ) -> Result<bool, AdminError> {
        let mode = mode.map(|mode| ModeSetting::checked(mode, reason, until, self.clock.now())).transpose()?;
        Ok(self.rules.change(|settings| {
            let rows = settings.plans.range_mut(name.clone()..).map(|(_, plan)| plan);
            let of_plan = rows.take_while(|plan| plan.name == *name || plan.name.without_limit() == *name);
            of_plan.map(|plan| plan.mode.clone_from(&mode)).count() > 0
        }))
    }

    async fn plan(&self, name: &Key) -> Result<Option<Plan>, Error> {
        Ok(self.rules.read(|settings| settings.plans.get(name).cloned()))
    }

    async fn plans(&self, after: Option<&Key>, limit: u32) -> Result<Page<Plan>, Error> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let page = (from, Bound::Unbounded);
        Ok(self.rules.read(|settings| {
            settings
                .plans
                .range::<Key, _>(page)
                .take(limit as usize)
                .map(|(_, plan)| plan.clone())
                .collect::<Vec<_>>()
                .into()
        }))
    }

    async fn delete_plan(&self, name: &Key) -> Result<bool, Error> {
        Ok(self.rules.change(|settings| {
            settings.plans.retain(|row, _| row == name || row.without_limit() != *name);
            settings.limits.remove(name);
            settings.plans.remove(name).is_some()
        }))
    }

    async fn set_mode(&self, mode: Mode, reason: Option<&str>, until: Option<DateTime<Utc>>) -> Result<(), AdminError> {
        let mode = ModeSetting::checked(mode, reason, until, self.clock.now())?;
        self.rules.change(|settings| settings.all = mode);
        Ok(())
    }

    async fn mode(&self) -> Result<ModeSetting, Error> {
        Ok(self.rules.read(|settings| settings.all.clone()))
    }

    async fn set_override(&self, key: &Key, over: Override) -> Result<(), AdminError> {
        let over = over.checked(self.clock.now())?;
        self.rules.change(|settings| settings.overrides.insert(key.clone(), over));
        Ok(())
    }

    async fn overrides(&self, after: Option<&Key>, limit: u32) -> Result<Page<(Key, Override)>, Error> {
        let mut all: Vec<(Key, Override)> = self.rules.read(|settings| {
            let later = settings.overrides.iter().filter(|(key, _)| after.is_none_or(|after| *key > after));
            later.map(|(key, over)| (key.clone(), over.clone())).collect()
        });
        all.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        all.truncate(limit as usize);
        Ok(all.into())
    }

    async fn clear_override(&self, key: &Key) -> Result<bool, Error> {
        Ok(self.rules.change(|settings| settings.overrides.remove(key)).is_some())
    }

    async fn most_denied(&self, limit: u32) -> Result<Page<DenialCount>, Error> {
        Ok(self.stats.lock().most(limit, self.clock.now()).into())
    }

    async fn set_usage_recording(&self, recording: Option<UsageRecording>) -> Result<(), AdminError> {
        if recording.map(UsageRecording::checked).transpose()?.is_some() { Err(AdminError::NoUsage) } else { Ok(()) }
    }

    async fn usage_recording(&self) -> Result<Option<UsageRecording>, Error> {
        Ok(None)
    }

    async fn usage(&self, _: &UsageFilter, _: Option<&Key>, _: u32) -> Result<Vec<Usage>, Error> {
        Ok(Vec::new())
    }
}

impl<C: Clock> MemoryStore<C> {
    fn provision(&self, key: &Key, quota: Quota) -> Result<(), TakeError> {
        let mut shard = self.shard(key).lock();
        let now = self.clock.now();
        match shard.row(key) {
            Some(row) => {
                row.provision(quota, now);
                Ok(())
            }
            None => shard.insert(key.clone(), BucketRow::provisioned(quota, now), now),
        }
    }
}

/// Counts of denials by key, for each hour since 1970.
#[derive(Debug, Default)]
pub(super) struct Stats {
    hours: BTreeMap<i64, HashMap<Key, (i64, i64)>>,
}

impl Stats {
    /// Adds counts, up to the limit of keys, and forgets counts that are older than two days.
    pub(super) fn count(&mut self, denials: &[(Key, u64)], now: i64) {
        let hour = self.hours.entry(now.div_euclid(HOUR)).or_default();
        for (key, denied) in DenialCount::bounded(denials) {
            if hour.len() < MAX_DENIED_KEYS || hour.contains_key(&key) {
                let (sum, last) = hour.entry(key).or_insert((0, now));
                *sum = sum.saturating_add(denied);
                *last = now.max(*last);
            }
        }
        self.forget(now);
    }

    /// Forgets counts that are older than two days, and returns how many.
    pub(super) fn forget(&mut self, now: i64) -> usize {
        let count = |hours: &BTreeMap<i64, HashMap<_, _>>| hours.values().map(HashMap::len).sum::<usize>();
        let before = count(&self.hours);
        self.hours.retain(|hour, _| hour * HOUR > now.saturating_sub(48 * HOUR));
        before - count(&self.hours)
    }

    /// Returns the keys with the most denials in the last 24 hours.
    pub(super) fn most(&self, limit: u32, now: i64) -> Vec<DenialCount> {
        let mut keys: HashMap<&Key, (i64, i64)> = HashMap::new();
        for (_, hour) in self.hours.iter().filter(|(hour, _)| **hour * HOUR > now.saturating_sub(24 * HOUR)) {
            for (key, (denied, at)) in hour {
                let (sum, last) = keys.entry(key).or_insert((0, *at));
                *sum = sum.saturating_add(*denied);
                *last = (*at).max(*last);
            }
        }
        let denials = |(key, (denied, last)): (&Key, (i64, i64))| DenialCount {
            key: key.clone(),
            denied: denied.unsigned_abs(),
            last_denied_at: DateTime::from_timestamp_nanos(last),
        };
        DenialCount::most(keys.into_iter().map(denials).collect(), limit)
    }
}

/// How many keys the store counts denials of in one hour.
const MAX_DENIED_KEYS: usize = 10_000;
const HOUR: i64 = 3_600_000_000_000;
