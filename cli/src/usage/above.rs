//! The keys that have used most of a calendar quota.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;
use tollgate::{
    Admin, Key,
    admin::{BucketLevel, Filter},
    model::Refill,
};

use super::Row;
use crate::exit::CliError;
use crate::output::{Cell, Column, Table};
use crate::paging::{PAGE, read_all};
use crate::times;

/// A part of a quota, in percent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Share(u64);

impl Share {
    /// Reads `80%` or `80`.
    pub(crate) fn parse(text: &str) -> Result<Self, CliError> {
        let percent = text.strip_suffix('%').unwrap_or(text).parse().ok().filter(|percent| (1..=100).contains(percent));
        let wrong = || CliError::arguments("not a part of a quota", "give 1% to 100%, such as 80%");
        percent.map(Self).ok_or_else(wrong)
    }

    /// Whether so many tokens of a capacity are at least this part.
    fn is_reached(self, used: u64, capacity: u64) -> bool {
        u128::from(used) * 100 >= u128::from(capacity) * u128::from(self.0)
    }
}

/// A key that has used a part of its calendar quota.
#[derive(Serialize, JsonSchema)]
pub(crate) struct QuotaUseJson {
    /// The key.
    key: String,
    /// The further limit of its plan. Null: the bucket with the key's own id.
    limit: Option<String>,
    /// The plan. Null: none.
    plan: Option<String>,
    /// The limit.
    quota: String,
    /// The tokens that are not available. After a change to a larger quota, more than the period's requests used.
    used: u64,
    /// The used part of the quota, in percent, rounded down. Above 100 while debt or waits use tokens of the next period.
    percent: u64,
    /// When the period ends.
    #[schemars(extend("format" = "date-time"))]
    resets_at: Option<String>,
}

/// Reads the buckets under a calendar quota that have used at least a part of it, those that used most first.
pub(super) async fn rows(
    store: &impl Admin,
    key: Option<&Key>,
    plan: Option<&Key>,
    share: Share,
) -> anyhow::Result<Vec<QuotaUseJson>> {
    let filter = key.into_iter().cloned().fold(Filter::default(), Filter::prefix);
    let levels =
        read_all(async |after: Option<&BucketLevel>| store.list(&filter, after.map(BucketLevel::key), PAGE).await);
    let mut rows: Vec<QuotaUseJson> = levels
        .await?
        .iter()
        .filter(|level| key.is_none_or(|key| level.key().without_limit() == *key))
        .filter(|level| plan.is_none_or(|plan| level.plan().is_some_and(|its| its.without_limit() == *plan)))
        .filter_map(|level| QuotaUseJson::of(level, share))
        .collect();
    rows.sort_by(|one, other| other.percent.cmp(&one.percent).then_with(|| one.key.cmp(&other.key)));
    Ok(rows)
}

impl QuotaUseJson {
    /// The row of a bucket, if it is under a calendar quota and has used so much of it.
    fn of(level: &BucketLevel, share: Share) -> Option<Self> {
        let (quota, key) = (level.quota(), level.key());
        let used = u64::try_from(i128::from(quota.capacity()) - i128::from(level.available())).ok()?;
        let is_quota_of_a_day = match quota.refill() {
            Refill::Period(_) => true,
            Refill::Calendar => quota.refill_time() >= Duration::from_hours(24),
            _ => false,
        };
        if !is_quota_of_a_day || !share.is_reached(used, quota.capacity()) {
            return None;
        }
        let percent = u128::from(used) * 100 / u128::from(quota.capacity().max(1));
        Some(Self {
            key: key.without_limit().to_string(),
            limit: key.limit_name().map(str::to_owned),
            plan: level.plan().map(|plan| plan.without_limit().to_string()),
            quota: quota.to_string(),
            used,
            percent: u64::try_from(percent).unwrap_or(u64::MAX),
            resets_at: times::timestamp(level.next_refill_at()),
        })
    }
}

impl Row for QuotaUseJson {
    const CSV: &'static [&'static str] = &["key", "limit", "plan", "quota", "used", "percent", "resets_at"];
    const NONE: &'static str = "no key has used so much of a calendar quota";

    fn table(rows: &[Self]) -> String {
        let columns = [
            Column::Left("key"),
            Column::Left("limit"),
            Column::Left("plan"),
            Column::Left("quota"),
            Column::Right("used"),
            Column::Right("part"),
            Column::Left("resets"),
        ];
        let mut table = Table::new(columns).drops(&["resets", "limit", "plan"]);
        for row in rows {
            table.row([
                Cell::from(row.key.as_str()),
                Cell::from(row.limit.as_deref().unwrap_or("-")),
                Cell::from(row.plan.as_deref().unwrap_or("-")),
                Cell::from(row.quota.as_str()),
                Cell::from(row.used.to_string()),
                Cell::from(format!("{}%", row.percent)),
                Cell::from(row.resets_at.as_deref().unwrap_or("-")),
            ]);
        }
        table.fitted()
    }
}
