use chrono::{DateTime, Utc};

use crate::admin::{Admin, Explanation, Origin, Prospect};
use crate::model::bucket::NEVER_NS;
use crate::model::decide::Row;
use crate::model::{AdminError, Error, Key, Mode, Quota, Rule, TakeError, Window, WindowLevel};

/// A bucket as people think of it, at the instant when the store was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BucketLevel {
    /// Whose bucket.
    pub key: Key,
    /// The terms that its last request found, or for a limiter's [`peek`](crate::Limiter::peek) its next one; an override's too.
    pub quota: Quota,
    /// The plan that it follows, if any.
    pub plan: Option<Key>,
    /// Whether it was provisioned, and not made by its first request.
    pub provisioned: bool,
    /// Whether the terms are an override's.
    pub overridden: bool,
    /// The whole tokens there; negative: promised to requests that wait for them.
    pub available: i64,
    /// All tokens that were ever granted.
    pub granted: u64,
    /// When it is full again; `None`: it is, or never, or a request has still to bring it to terms that a limiter's
    /// [`peek`](crate::Limiter::peek) knows of.
    pub full_at: Option<DateTime<Utc>>,
    /// When the next token comes; `None`: it is full, or never, or as there.
    pub next_refill_at: Option<DateTime<Utc>>,
}

impl BucketLevel {
    /// Reads a bucket, for the stores that decide in this process.
    pub(crate) fn new(key: Key, row: &Row, now: i64) -> Self {
        let (terms, bucket) = (row.terms(), row.bucket);
        let owed = (bucket.full_at - terms.clock(bucket.anchor, now)).max(0);
        let instant = |tick: i64| {
            let comes = owed > 0 && terms.step_ns < NEVER_NS;
            comes.then(|| DateTime::from_timestamp_nanos(terms.instant(bucket.anchor, tick)))
        };
        // Without a limit nothing is owed, and a token takes no time.
        let token_ticks = terms.token_ticks.max(1);
        Self {
            key,
            quota: row.over.as_deref().copied().unwrap_or(row.own),
            plan: row.plan.as_deref().cloned(),
            provisioned: row.provisioned,
            overridden: row.over.is_some(),
            available: row.available(now),
            granted: bucket.granted.unsigned_abs(),
            full_at: instant(bucket.full_at),
            next_refill_at: instant(bucket.full_at - (owed - 1) / token_ticks * token_ticks),
        }
    }

    /// One that nobody has used yet, and that its first request would make.
    pub(crate) fn unused(key: Key, quota: Quota, plan: Option<Key>) -> Self {
        Self {
            key,
            quota,
            plan,
            provisioned: false,
            overridden: false,
            available: i64::try_from(quota.capacity()).unwrap_or(i64::MAX),
            granted: 0,
            full_at: None,
            next_refill_at: None,
        }
    }
}

impl BucketLevel {
    /// As the next request under a rule brings it to the terms that rule it: tokens that are there stay, up to the capacity.
    /// As it is, if such a request would be an error or touch no bucket.
    fn settled(self, rule: &Rule, explained: &Explanation) -> Self {
        let overridden = explained.quota_from == Some(Origin::Override);
        let own = match rule {
            Rule::Provisioned => explained.quota,
            Rule::Plan(plan) if !self.provisioned || self.plan.as_ref() == Some(plan) => explained.quota,
            Rule::Quota(quota) if !self.provisioned || explained.quota == Some(*quota) => Some(*quota),
            _ => None,
        };
        let quota = if overridden { explained.quota } else { own };
        // The mode of a plan that a bucket followed says nothing of a request under a quota of its own.
        let of_request = !matches!(rule, Rule::Quota(_)) || explained.mode_from != Some(Origin::Plan);
        let is_off = explained.mode == Mode::Off && of_request;
        let is_unplanned = explained.prospect == Prospect::UnknownPlan && !matches!(rule, Rule::Quota(_));
        let Some(quota) = quota.filter(|_| !is_off && !is_unplanned && own.is_some()) else { return self };
        let plan = match rule {
            Rule::Quota(_) if !self.provisioned => None,
            Rule::Plan(plan) => Some(plan.clone()),
            _ => self.plan,
        };
        if quota == self.quota {
            return Self { plan, overridden, ..self };
        }
        let capacity = i64::try_from(quota.capacity()).unwrap_or(i64::MAX);
        let available = self.available.min(capacity);
        Self { quota, plan, overridden, available, full_at: None, next_refill_at: None, ..self }
    }
}

/// What no store has to be asked for: one of a window, and of what has no limit, knows no bucket.
pub(crate) fn level_of_itself(key: &Key, rule: &Rule) -> Option<Result<BucketLevel, Error>> {
    match rule {
        Rule::Window(_) => Some(Err(AdminError::Window(key.clone()).into())),
        Rule::Quota(quota) if *quota == Quota::unlimited() => Some(Ok(BucketLevel::unused(key.clone(), *quota, None))),
        _ => None,
    }
}

/// What a request under a rule would find, for the stores that can say it.
pub(crate) async fn level_under<S: Admin>(store: &S, key: &Key, rule: &Rule) -> Result<BucketLevel, Error> {
    if let Some(level) = level_of_itself(key, rule) {
        return level;
    }
    let (level, explained) = (store.peek(key).await?, store.explain(key, rule.plan()).await?);
    if let Some(level) = level {
        return Ok(level.settled(rule, &explained));
    }
    let overridden = explained.quota_from == Some(Origin::Override);
    let quota = match rule {
        Rule::Quota(own) if !overridden => Some(*own),
        Rule::Provisioned => None,
        _ => explained.quota,
    };
    match quota {
        _ if explained.prospect == Prospect::UnknownPlan => {
            Err(TakeError::UnknownPlan { key: key.clone(), plan: rule.plan().cloned() }.into())
        }
        None => Err(TakeError::UnknownBucket(key.clone()).into()),
        Some(quota) => Ok(BucketLevel { overridden, ..BucketLevel::unused(key.clone(), quota, rule.plan().cloned()) }),
    }
}

/// The same of a sliding window.
pub(crate) async fn window_level_under<S: Admin>(store: &S, key: &Key, window: &Window) -> Result<WindowLevel, Error> {
    Ok(store.peek_window(key).await?.unwrap_or_else(|| WindowLevel::unused(key.clone(), *window)))
}

impl Row {
    /// The whole tokens there; negative: promised to requests that wait for them.
    pub(crate) fn available(&self, now: i64) -> i64 {
        let terms = self.terms();
        let owed = self.bucket.full_at.saturating_sub(terms.clock(self.bucket.anchor, now)).max(0);
        match terms.token_ticks {
            0 => terms.capacity,
            token => terms.burst().saturating_sub(owed).div_euclid(token),
        }
    }
}
