use std::collections::{BTreeMap, HashMap};

use chrono::DateTime;

use crate::admin::Denials;
use crate::model::Key;

/// How often keys were denied, by the hour since 1970.
#[derive(Debug, Default)]
pub(super) struct Stats {
    hours: BTreeMap<i64, HashMap<Key, (i64, i64)>>,
}

impl Stats {
    /// Adds what was counted, as far as there is room, and forgets what is older than two days.
    pub(super) fn count(&mut self, denials: &[(Key, u64)], now: i64) {
        let hour = self.hours.entry(now.div_euclid(HOUR)).or_default();
        for (key, denied) in Denials::sound(denials) {
            if hour.len() < MOST_KEYS || hour.contains_key(&key) {
                let (sum, last) = hour.entry(key).or_insert((0, now));
                *sum = sum.saturating_add(denied);
                *last = now.max(*last);
            }
        }
        self.forget(now);
    }

    /// Forgets what is older than two days, and says how many counts that was.
    pub(super) fn forget(&mut self, now: i64) -> usize {
        let count = |hours: &BTreeMap<i64, HashMap<_, _>>| hours.values().map(HashMap::len).sum::<usize>();
        let before = count(&self.hours);
        self.hours.retain(|hour, _| hour * HOUR > now.saturating_sub(48 * HOUR));
        before - count(&self.hours)
    }

    /// Those of the last 24 hours.
    pub(super) fn most(&self, limit: u32, now: i64) -> Vec<Denials> {
        let mut keys: HashMap<&Key, (i64, i64)> = HashMap::new();
        for (_, hour) in self.hours.iter().filter(|(hour, _)| **hour * HOUR > now.saturating_sub(24 * HOUR)) {
            for (key, (denied, at)) in hour {
                let (sum, last) = keys.entry(key).or_insert((0, *at));
                *sum = sum.saturating_add(*denied);
                *last = (*at).max(*last);
            }
        }
        let denials = |(key, (denied, last)): (&Key, (i64, i64))| Denials {
            key: key.clone(),
            denied: denied.unsigned_abs(),
            last_denied_at: DateTime::from_timestamp_nanos(last),
        };
        Denials::most(keys.into_iter().map(denials).collect(), limit)
    }
}

/// In an hour.
const MOST_KEYS: usize = 10_000;
const HOUR: i64 = 3_600_000_000_000;
