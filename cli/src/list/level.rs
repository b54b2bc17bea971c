use std::cmp::Ordering;

use chrono::{DateTime, Utc};
use clap::ValueEnum;
use serde_json::Value;
use tollgate::{Key, admin::BucketLevel, model::WindowLevel};

use crate::output::Layout;
use crate::{levels, windows};

#[derive(Clone, Copy, PartialEq, ValueEnum)]
pub(super) enum ListOrder {
    /// In the byte order of the keys
    Key,
    /// The emptiest first
    Available,
    /// Those that granted most first
    Granted,
    /// Those that are full last, first; of windows, those in which one more passes last
    Full,
}

/// A bucket or a sliding window.
pub(super) trait Level: Sized {
    /// The noun, in the singular and in the plural.
    const NAMES: [&str; 2];

    fn key(&self) -> &Key;

    fn compare(&self, other: &Self, order: ListOrder) -> Ordering;

    /// Formats the next lines of a table.
    fn lines(levels: &[Self], layout: &mut Layout) -> String;

    fn json(&self) -> Value;
}

impl Level for BucketLevel {
    const NAMES: [&str; 2] = ["bucket", "buckets"];

    fn key(&self) -> &Key {
        &self.key
    }

    fn compare(&self, other: &Self, order: ListOrder) -> Ordering {
        match order {
            ListOrder::Key => Ordering::Equal,
            ListOrder::Available => self.available.cmp(&other.available),
            ListOrder::Granted => other.granted.cmp(&self.granted),
            ListOrder::Full => full(other).cmp(&full(self)),
        }
    }

    fn lines(levels: &[Self], layout: &mut Layout) -> String {
        levels::table(levels).lines(layout)
    }

    fn json(&self) -> Value {
        levels::json(self)
    }
}

impl Level for WindowLevel {
    const NAMES: [&str; 2] = ["sliding window", "sliding windows"];

    fn key(&self) -> &Key {
        &self.key
    }

    fn compare(&self, other: &Self, order: ListOrder) -> Ordering {
        match order {
            ListOrder::Key => Ordering::Equal,
            ListOrder::Available => self.available().cmp(&other.available()),
            ListOrder::Granted => other.granted.cmp(&self.granted),
            ListOrder::Full => other.retry_after.cmp(&self.retry_after),
        }
    }

    fn lines(levels: &[Self], layout: &mut Layout) -> String {
        windows::table(levels).lines(layout)
    }

    fn json(&self) -> Value {
        windows::json(self)
    }
}

/// Whether it never will be, and else when; one that is full comes before all others.
fn full(level: &BucketLevel) -> (bool, Option<DateTime<Utc>>) {
    let lacks = i64::try_from(level.quota.capacity()).is_ok_and(|capacity| level.available < capacity);
    (lacks && level.full_at.is_none(), level.full_at)
}
