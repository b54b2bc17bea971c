//! Usage: the tokens that each bucket used, by hour or day.

use chrono::{DateTime, TimeDelta, Utc};

use super::AdminError;
use crate::model::Key;

/// How usage is recorded: see [`Admin::set_usage_recording`](crate::Admin::set_usage_recording).
///
/// ```
/// use tollgate::admin::{UsagePeriod, UsageRecording};
///
/// let recording = UsageRecording::new(UsagePeriod::Day).keep_days(1100);
/// assert_eq!((recording.period, recording.keep_days), (UsagePeriod::Day, 1100));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UsageRecording {
    /// The length of the periods, in UTC.
    pub period: UsagePeriod,
    /// For how many days periods are kept: 1 to 36,525.
    pub keep_days: u32,
}

impl UsageRecording {
    /// Creates settings that keep each period for 400 days.
    #[must_use]
    pub const fn new(period: UsagePeriod) -> Self {
        Self { period, keep_days: 400 }
    }

    /// Sets for how many days periods are kept. Default: 400.
    #[must_use]
    pub const fn keep_days(self, days: u32) -> Self {
        Self { keep_days: days, ..self }
    }

    /// The settings, if they are valid.
    pub(crate) fn checked(self) -> Result<Self, AdminError> {
        if (1..=36_525).contains(&self.keep_days) { Ok(self) } else { Err(AdminError::InvalidKeepDays(self.keep_days)) }
    }
}

/// The length of a period of usage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UsagePeriod {
    /// An hour of UTC: a row for each hour in which a bucket is used.
    Hour,
    /// A day of UTC: a row for each day in which a bucket is used.
    Day,
}

impl UsagePeriod {
    /// The length in seconds.
    #[cfg(feature = "_sql")]
    pub(crate) const fn seconds(self) -> i64 {
        match self {
            Self::Hour => 3600,
            Self::Day => 86_400,
        }
    }

    /// The period of a length in seconds.
    #[cfg(feature = "_sql")]
    pub(crate) fn of_seconds(seconds: i64) -> Option<Self> {
        [Self::Hour, Self::Day].into_iter().find(|period| period.seconds() == seconds)
    }
}

/// Selects usage for [`Admin::usage`](crate::Admin::usage): the periods that start within a time, and of these one key or plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageFilter {
    pub(crate) from: DateTime<Utc>,
    pub(crate) until: DateTime<Utc>,
    pub(crate) key: Option<Key>,
    pub(crate) plan: Option<Key>,
}

impl UsageFilter {
    /// Selects the periods that start at `from` or later, and before `until`.
    #[must_use]
    pub fn between(from: DateTime<Utc>, until: DateTime<Utc>) -> Self {
        let storable =
            |instant: DateTime<Utc>| instant.clamp(DateTime::UNIX_EPOCH, DateTime::UNIX_EPOCH + LAST_INSTANT);
        Self { from: storable(from), until: storable(until), key: None, plan: None }
    }

    /// Selects one key: its own bucket, and those of the further limits of its plan. Default: every key.
    #[must_use]
    pub fn key(self, key: Key) -> Self {
        Self { key: Some(key), ..self }
    }

    /// Selects usage under one plan. Default: under every plan, and under none.
    #[must_use]
    pub fn plan(self, plan: Key) -> Self {
        Self { plan: Some(plan), ..self }
    }
}

/// The tokens that a bucket used under a plan, or under none.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// The bucket. A further limit of a plan has the id [`Key::limit`] of the key.
    pub key: Key,
    /// The plan that the bucket followed.
    pub plan: Option<Key>,
    /// The tokens that requests took.
    pub granted: u64,
    /// The tokens that were charged, or settled in addition.
    pub charged: u64,
    /// The tokens that were given back: by a cancelled reservation, a refund or a settlement, and by a lease that ended.
    pub refunded: u64,
    /// The denied requests, as far as services [count](crate::LimiterBuilder::count_denials) them: the true number can be higher.
    pub denied: u64,
}

impl Usage {
    /// Returns the tokens that were used: granted and charged, without those that were given back.
    ///
    /// Negative if tokens were given back that were granted in an earlier period.
    #[must_use]
    pub fn used(&self) -> i64 {
        let taken = i128::from(self.granted) + i128::from(self.charged) - i128::from(self.refunded);
        i64::try_from(taken).unwrap_or(i64::MAX)
    }
}

/// The last instant that every database can store, since 1970: in the year 9999.
const LAST_INSTANT: TimeDelta = TimeDelta::days(2_932_000);

/// The result of one step that records usage.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecordedUsage {
    /// How many buckets were recorded.
    pub buckets: u64,
    /// Whether this step reached the end. Also true if usage is not recorded, no period has ended, or another session is recording.
    pub finished: bool,
}

impl Default for RecordedUsage {
    /// Nothing recorded, and nothing left to record.
    fn default() -> Self {
        Self { buckets: 0, finished: true }
    }
}
