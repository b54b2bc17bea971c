//! Buckets as tables and as JSON.

use schemars::JsonSchema;
use serde::Serialize;
use tollgate::admin::BucketLevel;

use crate::output::{Cell, Column, Table};
use crate::text::{RED, YELLOW};
use crate::times;

/// A table with one row per bucket.
pub(crate) fn table(levels: &[BucketLevel]) -> Table<7> {
    let mut table = Table::new([
        Column::Left("key"),
        Column::Right("available"),
        Column::Left("limit"),
        Column::Left("from"),
        Column::Right("granted"),
        Column::Right("next in"),
        Column::Right("full in"),
    ])
    .drops(&["granted", "full in", "from", "next in", "limit"])
    .shortens(&["from"]);
    for level in levels {
        let available = level.available().to_string();
        table.row([
            Cell::from(level.key().as_str()),
            match level.available() {
                ..0 => Cell::styled(available, RED),
                0 => Cell::styled(available, YELLOW),
                _ => Cell::from(available),
            },
            Cell::from(level.quota().to_string()),
            Cell::from(origin(level)),
            Cell::from(level.granted().to_string()),
            Cell::from(level.next_refill_at().map_or_else(String::new, times::until)),
            Cell::from(level.full_at().map_or_else(String::new, times::until)),
        ]);
    }
    table
}

/// Where the bucket has its limits from.
pub(crate) fn origin(level: &BucketLevel) -> String {
    match (level.plan(), level.is_overridden(), level.is_provisioned()) {
        (_, true, _) => "override".to_owned(),
        (Some(plan), ..) => format!("plan {plan}"),
        (None, _, true) => "create".to_owned(),
        (None, ..) => "first use".to_owned(),
    }
}

/// A bucket.
#[derive(Serialize, JsonSchema)]
pub(crate) struct BucketJson {
    /// The key that requests name.
    key: String,
    /// Whole tokens now. Negative: promised to requests that wait.
    available: i64,
    /// The tokens that a full bucket holds.
    capacity: u64,
    /// The quota as text.
    quota: String,
    /// The plan that the bucket follows.
    plan: Option<String>,
    /// Whether `create` made the bucket, not its first request.
    provisioned: bool,
    /// Whether the limits of an override are effective.
    overridden: bool,
    /// The tokens granted ever.
    granted: u64,
    /// The time of the next token. Null: the bucket is full, or no token comes.
    #[schemars(extend("format" = "date-time"))]
    next_refill_at: Option<String>,
    /// The time at which the bucket is full. Null: the bucket is full, or never will be.
    #[schemars(extend("format" = "date-time"))]
    full_at: Option<String>,
}

impl From<&BucketLevel> for BucketJson {
    fn from(level: &BucketLevel) -> Self {
        Self {
            key: level.key().to_string(),
            available: level.available(),
            capacity: level.quota().capacity(),
            quota: level.quota().to_string(),
            plan: level.plan().map(ToString::to_string),
            provisioned: level.is_provisioned(),
            overridden: level.is_overridden(),
            granted: level.granted(),
            next_refill_at: times::timestamp(level.next_refill_at()),
            full_at: times::timestamp(level.full_at()),
        }
    }
}
