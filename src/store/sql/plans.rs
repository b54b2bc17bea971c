//! The limits of plans, as this process knows them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::dialect::LimitNames;
use crate::model::{Error, Key, LimitName, Limits, NamedLimit, Quota};

/// The limits of a plan, whose quotas the database knows, from its rows in their order.
pub(super) fn limits(plan: &Key, rows: Vec<LimitNames>) -> Result<Limits, Error> {
    let named = |(name, cost)| Ok(NamedLimit { name: limit_name(name)?, cost: limit_name(cost)?, ..UNKNOWN.into() });
    let limits = rows.into_iter().map(named).collect::<Result<Vec<_>, sqlx::Error>>();
    let limits = limits.map_err(|why| Error::Unreadable { key: plan.clone(), source: Arc::new(why) })?;
    // A plan without rows has one limit.
    Ok(Limits::new(limits).unwrap_or_else(|_| UNKNOWN.into()))
}

/// The name of a limit, from its column.
pub(super) fn limit_name(name: Option<String>) -> Result<Option<LimitName>, sqlx::Error> {
    let name = name.map(|name| LimitName::try_from(name.as_str())).transpose();
    name.map_err(|error| sqlx::Error::Decode(error.into()))
}

/// The limits of the plans that requests named lately.
#[derive(Clone, Debug, Default)]
pub(super) struct KnownPlans(Arc<Mutex<HashMap<Key, KnownPlan>>>);

#[derive(Debug)]
struct KnownPlan {
    limits: Limits,
    read_at: Instant,
    /// When a caller last began to read the limits again.
    requested_at: Instant,
}

impl KnownPlans {
    /// The limits of a plan, and whether the caller is to read them again.
    pub(super) fn find(&self, plan: &Key) -> Option<(Limits, bool)> {
        let now = Instant::now();
        let mut plans = self.0.lock();
        let known = plans.get_mut(plan).filter(|known| now.saturating_duration_since(known.read_at) < MAX_KNOWN)?;
        let is_old = now.saturating_duration_since(known.requested_at) > MAX_AGE;
        if is_old {
            // One caller reads, and the others go on meanwhile.
            known.requested_at = now;
        }
        Some((known.limits.clone(), is_old))
    }

    /// Forgets a plan that this process has changed, or one of whose limits is not there any more.
    pub(super) fn forget(&self, plan: &Key) {
        self.0.lock().remove(plan);
    }

    /// Keeps the limits of a plan. Forgets the others if there are too many.
    pub(super) fn keep(&self, plan: &Key, limits: Limits) {
        let mut plans = self.0.lock();
        if plans.len() >= MAX_PLANS && !plans.contains_key(plan) {
            plans.clear();
        }
        let read_at = Instant::now();
        plans.insert(plan.clone(), KnownPlan { limits, read_at, requested_at: read_at });
    }
}

const UNKNOWN: Quota = Quota::unlimited();
/// Older limits are unknown, so that the first request after a long time reads them.
const MAX_KNOWN: Duration = Duration::from_secs(5);
/// Under load, a change shows within a second, with the time of the read itself.
const MAX_AGE: Duration = Duration::from_millis(900);
const MAX_PLANS: usize = 10_000;
