//! Buckets as tables and as JSON.

use serde_json::{Value, json};
use tollgate::admin::BucketLevel;

use crate::output::{Cell, Column, RED, Table, YELLOW};
use crate::times;

/// A table with one row per bucket.
pub(crate) fn table(levels: &[BucketLevel]) -> Table<7> {
    let mut table = Table::new([
        Column::Left("key"),
        Column::Right("available"),
        Column::Left("limit"),
        Column::Left("from"),
        Column::Right("granted"),
        Column::Right("next token in"),
        Column::Right("full in"),
    ]);
    for level in levels {
        let available = level.available.to_string();
        table.row([
            Cell::from(level.key.as_str()),
            match level.available {
                ..0 => Cell::styled(available, RED),
                0 => Cell::styled(available, YELLOW),
                _ => Cell::from(available),
            },
            Cell::from(level.quota.to_string()),
            Cell::from(origin(level)),
            Cell::from(level.granted.to_string()),
            Cell::from(level.next_refill_at.map_or_else(String::new, times::until)),
            Cell::from(level.full_at.map_or_else(String::new, times::until)),
        ]);
    }
    table
}

/// Where the bucket has its limits from.
pub(crate) fn origin(level: &BucketLevel) -> String {
    match (&level.plan, level.overridden, level.provisioned) {
        (_, true, _) => "override".to_owned(),
        (Some(plan), ..) => format!("plan {plan}"),
        (None, _, true) => "create".to_owned(),
        (None, ..) => "first use".to_owned(),
    }
}

/// A bucket as JSON. Fields are only added, never changed.
pub(crate) fn json(level: &BucketLevel) -> Value {
    json!({
        "key": level.key.as_str(),
        "available": level.available,
        "capacity": level.quota.capacity(),
        "quota": level.quota.to_string(),
        "plan": level.plan.as_ref().map(tollgate::Key::as_str),
        "provisioned": level.provisioned,
        "overridden": level.overridden,
        "granted": level.granted,
        "next_refill_at": times::timestamp(level.next_refill_at),
        "full_at": times::timestamp(level.full_at),
    })
}
