//! Reads of operators: levels of buckets and windows, filters and pages, and counts of denials.

use std::ops::{Deref, DerefMut};
use std::{slice, vec};

use chrono::{DateTime, Utc};

use super::{ExpectedOutcome, Explanation, Origin};
use crate::admin::AdminError;
use crate::model::bucket::NEVER_NS;
use crate::model::decide::BucketRow;
use crate::model::{Key, Mode, Quota, Rule};

/// The tokens and the quota of a bucket, at the instant when the store read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketLevel {
    pub(crate) key: Key,
    pub(crate) quota: Quota,
    pub(crate) plan: Option<Key>,
    pub(crate) provisioned: bool,
    pub(crate) overridden: bool,
    pub(crate) available: i64,
    pub(crate) granted: u64,
    pub(crate) full_at: Option<DateTime<Utc>>,
    pub(crate) next_refill_at: Option<DateTime<Utc>>,
}

impl BucketLevel {
    /// Returns the key of the bucket.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// Returns the effective quota of its last request; for a limiter's [`peek`](crate::Limiter::peek), of its next request.
    #[must_use]
    pub fn quota(&self) -> Quota {
        self.quota
    }

    /// Returns the plan of the bucket, if it has one.
    #[must_use]
    pub fn plan(&self) -> Option<&Key> {
        self.plan.as_ref()
    }

    /// Returns whether the bucket was provisioned, and not created by its first request.
    #[must_use]
    pub fn is_provisioned(&self) -> bool {
        self.provisioned
    }

    /// Returns whether the quota is an override's.
    #[must_use]
    pub fn is_overridden(&self) -> bool {
        self.overridden
    }

    /// Returns the whole tokens available. A negative number is promised to requests that wait.
    #[must_use]
    pub fn available(&self) -> i64 {
        self.available
    }

    /// Returns all tokens that were ever granted.
    #[must_use]
    pub fn granted(&self) -> u64 {
        self.granted
    }

    /// Returns when the bucket is full again. `None`: it is full, it never refills, or a limiter's
    /// [`peek`](crate::Limiter::peek) reports a quota that the next request will give it.
    #[must_use]
    pub fn full_at(&self) -> Option<DateTime<Utc>> {
        self.full_at
    }

    /// Returns when the next token comes. `None`: as for [`full_at`](Self::full_at).
    #[must_use]
    pub fn next_refill_at(&self) -> Option<DateTime<Utc>> {
        self.next_refill_at
    }

    /// The level of a row of a store that decides in this process.
    pub(crate) fn new(key: Key, row: &BucketRow, now: i64) -> Self {
        let mut row = row.clone();
        let limits = row.settle(now);
        let bucket = row.bucket;
        let owed = (bucket.full_at - limits.clock(bucket.anchor, now)).max(0);
        let instant = |tick: i64| {
            let comes = owed > 0 && limits.step_ns < NEVER_NS;
            comes.then(|| DateTime::from_timestamp_nanos(limits.instant(bucket.anchor, tick)))
        };
        // In an unlimited bucket a token takes no time, and none is owed.
        let token_ticks = limits.token_ticks.max(1);
        Self {
            key,
            quota: row.over.as_deref().copied().unwrap_or(row.own_quota),
            available: row.available(now),
            plan: row.plan.map(|plan| *plan),
            provisioned: row.provisioned,
            overridden: row.over.is_some(),
            granted: bucket.granted.unsigned_abs(),
            full_at: instant(bucket.full_at),
            next_refill_at: instant(bucket.full_at - (owed - 1) / token_ticks * token_ticks),
        }
    }

    /// The level of an unused bucket, which its first request would create.
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

    /// The level after the next request under a rule has changed the bucket to its effective quota: the tokens stay, up to the
    /// capacity. Unchanged if such a request would fail or touch no bucket.
    pub(crate) fn after_next_request(self, rule: &Rule, explained: &Explanation) -> Self {
        let overridden = explained.quota_from == Some(Origin::Override);
        let own = match rule {
            Rule::Provisioned => explained.quota,
            Rule::Plan(plan) if !self.provisioned || self.plan.as_ref() == Some(plan) => explained.quota,
            Rule::Quota(quota) if !self.provisioned || explained.quota == Some(*quota) => Some(*quota),
            _ => None,
        };
        let quota = if overridden { explained.quota } else { own };
        // The mode of the bucket's plan does not apply to a request under a quota.
        let of_request = !matches!(rule, Rule::Quota(_)) || explained.mode_from != Some(Origin::Plan);
        let is_off = explained.mode == Mode::Off && of_request;
        let is_unplanned =
            explained.expected_outcome == ExpectedOutcome::UnknownPlan && !matches!(rule, Rule::Quota(_));
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

/// The answer without a call of the store: neither a window nor an unlimited quota has a bucket.
pub(crate) fn fixed_level(key: &Key, rule: &Rule) -> Option<Result<BucketLevel, AdminError>> {
    match rule {
        Rule::Window(_) => Some(Err(AdminError::Window(key.clone()))),
        Rule::Quota(quota) if *quota == Quota::unlimited() => Some(Ok(BucketLevel::unused(key.clone(), *quota, None))),
        _ => None,
    }
}

impl BucketRow {
    /// The whole tokens available. A negative number is promised to requests that wait.
    pub(super) fn available(&self, now: i64) -> i64 {
        let mut row = self.clone();
        let limits = row.settle(now);
        let owed = row.bucket.full_at.saturating_sub(limits.clock(row.bucket.anchor, now)).max(0);
        match limits.token_ticks {
            0 => limits.capacity,
            token => limits.burst().saturating_sub(owed).div_euclid(token),
        }
    }
}

/// Which buckets to list. Default: all.
///
/// ```
/// use tollgate::{admin::Filter, Key};
///
/// let filter = Filter::default().prefix(Key::try_from("user:")?).provisioned(false);
/// # Ok::<(), tollgate::model::KeyError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    pub(crate) prefix: Option<Key>,
    pub(crate) plan: Option<Key>,
    pub(crate) provisioned: Option<bool>,
}

impl Filter {
    /// Lists only the buckets whose key begins with this prefix, byte for byte.
    #[must_use]
    pub fn prefix(self, prefix: Key) -> Self {
        Self { prefix: Some(prefix), ..self }
    }

    /// Lists only the buckets of a plan.
    #[must_use]
    pub fn plan(self, plan: Key) -> Self {
        Self { plan: Some(plan), ..self }
    }

    /// Lists only the buckets that were provisioned, or only the others.
    #[must_use]
    pub fn provisioned(self, provisioned: bool) -> Self {
        Self { provisioned: Some(provisioned), ..self }
    }

    /// Whether a bucket matches the filter.
    pub(crate) fn admits(&self, key: &Key, plan: Option<&Key>, provisioned: bool) -> bool {
        self.prefix.as_ref().is_none_or(|prefix| key.as_str().starts_with(prefix.as_str()))
            && self.plan.as_ref().is_none_or(|wanted| plan == Some(wanted))
            && self.provisioned.is_none_or(|wanted| provisioned == wanted)
    }

    /// The first and the last text of at most 255 bytes that begin with the prefix, in byte order. An index finds the keys
    /// between the two, and all of them begin with the prefix.
    #[cfg(feature = "_sql")]
    pub(crate) fn range(&self) -> (String, String) {
        let first = self.prefix.as_ref().map_or_else(String::new, Key::to_string);
        let last = first.clone() + &"\u{10ffff}".repeat(64);
        (first, last)
    }
}

/// A page of rows, and how many were skipped because they cannot be read.
///
/// Dereferences to the `Vec` of the rows. A page shorter than its limit is the last one, even if rows were skipped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page<T> {
    rows: Vec<T>,
    unreadable: u64,
}

impl<T> Page<T> {
    /// Returns the number of rows that were skipped: their key is not valid, or their limits or counts are out of bounds.
    ///
    /// Only writes past the database's own checks leave such rows. `tollgate doctor` names their tables.
    #[must_use]
    pub fn unreadable(&self) -> u64 {
        self.unreadable
    }

    /// Returns the rows.
    #[must_use]
    pub fn into_vec(self) -> Vec<T> {
        self.rows
    }

    #[cfg(feature = "_sql")]
    pub(crate) fn skip_unreadable(&mut self) {
        self.unreadable += 1;
    }
}

impl<T> Default for Page<T> {
    fn default() -> Self {
        Vec::new().into()
    }
}

impl<T> From<Vec<T>> for Page<T> {
    fn from(rows: Vec<T>) -> Self {
        Self { rows, unreadable: 0 }
    }
}

impl<T> Deref for Page<T> {
    type Target = Vec<T>;

    fn deref(&self) -> &Vec<T> {
        &self.rows
    }
}

impl<T> DerefMut for Page<T> {
    fn deref_mut(&mut self) -> &mut Vec<T> {
        &mut self.rows
    }
}

impl<T> IntoIterator for Page<T> {
    type Item = T;
    type IntoIter = vec::IntoIter<T>;

    fn into_iter(self) -> vec::IntoIter<T> {
        self.rows.into_iter()
    }
}

impl<'a, T> IntoIterator for &'a Page<T> {
    type Item = &'a T;
    type IntoIter = slice::Iter<'a, T>;

    fn into_iter(self) -> slice::Iter<'a, T> {
        self.rows.iter()
    }
}

/// Equal to the rows alone if none was skipped.
impl<T: PartialEq> PartialEq<[T]> for Page<T> {
    fn eq(&self, other: &[T]) -> bool {
        self.unreadable == 0 && self.rows == other
    }
}

/// Equal to the rows alone if none was skipped.
impl<T: PartialEq, const N: usize> PartialEq<[T; N]> for Page<T> {
    fn eq(&self, other: &[T; N]) -> bool {
        *self == other[..]
    }
}

/// Equal to the rows alone if none was skipped.
impl<T: PartialEq> PartialEq<Vec<T>> for Page<T> {
    fn eq(&self, other: &Vec<T>) -> bool {
        *self == other[..]
    }
}

/// How often a key was denied, in the services that [count](crate::LimiterBuilder::count_denials) denials.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DenialCount {
    /// The key.
    pub key: Key,
    /// The requests that were denied in the last 24 hours or a little less, as a lower bound. Includes the requests that passed
    /// only because of [shadow](crate::Mode::Shadow) mode.
    pub denied: u64,
    /// When a service last reported a denial.
    pub last_denied_at: DateTime<Utc>,
}

impl DenialCount {
    /// Bounds the counts so that no sum overflows, and sorts them by key so that processes cannot deadlock.
    pub(crate) fn bounded(counted: &[(Key, u64)]) -> Vec<(Key, i64)> {
        let bound =
            |(key, denied): &(Key, u64)| (key.clone(), i64::try_from(*denied).unwrap_or(MAX_DENIALS).min(MAX_DENIALS));
        let mut counted: Vec<_> = counted.iter().map(bound).filter(|(_, denied)| *denied > 0).collect();
        counted.sort_unstable();
        counted
    }

    /// Sorts by the number of denials, the most first, and keeps `limit` keys.
    pub(crate) fn most(mut all: Vec<Self>, limit: u32) -> Vec<Self> {
        all.sort_unstable_by(|one, other| other.denied.cmp(&one.denied).then_with(|| one.key.cmp(&other.key)));
        all.truncate(limit as usize);
        all
    }
}

const MAX_DENIALS: i64 = 1_000_000_000_000_000;
