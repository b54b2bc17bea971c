use std::cmp::Ordering;

use chrono::{DateTime, Utc};
use clap::ValueEnum;
use serde::Serialize;
use tollgate::{Key, admin::BucketLevel, model::WindowLevel};

use crate::levels::BucketJson;
use crate::output::Layout;
use crate::windows::WindowJson;
use crate::{levels, windows};

#[derive(Clone, Copy, PartialEq, ValueEnum)]
pub(super) enum ListOrder {
    /// In the byte order of the keys
    Key,
    /// The emptiest first
    Available,
    /// Those that granted most first
    Granted,
    /// Latest refill first
    Full,
}

impl ListOrder {
    /// The heading of the column that shows the order, if it is not the key.
    pub(super) fn heading(self) -> Option<&'static str> {
        match self {
            Self::Key => None,
            Self::Available => Some("available"),
            Self::Granted => Some("granted"),
            Self::Full => Some("full in"),
        }
    }
}

/// A bucket or a sliding window.
pub(super) trait Level: Sized {
    /// The noun, in the singular and in the plural.
    const NAMES: [&str; 2];

    /// The output for an empty database.
    const NONE: &str;

    fn key(&self) -> &Key;

    fn compare(&self, other: &Self, order: ListOrder) -> Ordering;

    /// Formats the next lines of a table.
    fn lines(levels: &[Self], layout: &mut Layout) -> String;

    fn json(&self) -> impl Serialize;
}

impl Level for BucketLevel {
    const NAMES: [&str; 2] = ["bucket", "buckets"];
    const NONE: &str = "no buckets: create one with `tollgate create KEY --capacity 2 --per 1h`";

    fn key(&self) -> &Key {
        self.key()
    }

    fn compare(&self, other: &Self, order: ListOrder) -> Ordering {
        match order {
            ListOrder::Key => Ordering::Equal,
            ListOrder::Available => self.available().cmp(&other.available()),
            ListOrder::Granted => other.granted().cmp(&self.granted()),
            ListOrder::Full => full(other).cmp(&full(self)),
        }
    }

    fn lines(levels: &[Self], layout: &mut Layout) -> String {
        levels::table(levels).lines(layout)
    }

    fn json(&self) -> impl Serialize {
        BucketJson::from(self)
    }
}

impl Level for WindowLevel {
    const NAMES: [&str; 2] = ["sliding window", "sliding windows"];
    const NONE: &str = "no sliding windows: `tollgate take KEY --quota '100 in 60s at 5s'` creates one";

    fn key(&self) -> &Key {
        self.key()
    }

    fn compare(&self, other: &Self, order: ListOrder) -> Ordering {
        match order {
            ListOrder::Key => Ordering::Equal,
            ListOrder::Available => self.available().cmp(&other.available()),
            ListOrder::Granted => other.granted().cmp(&self.granted()),
            ListOrder::Full => other.retry_after().cmp(&self.retry_after()),
        }
    }

    fn lines(levels: &[Self], layout: &mut Layout) -> String {
        windows::table(levels).lines(layout)
    }

    fn json(&self) -> impl Serialize {
        WindowJson::from(self)
    }
}

/// Whether it never will be, and else when; one that is full comes before all others.
fn full(level: &BucketLevel) -> (bool, Option<DateTime<Utc>>) {
    let lacks = i64::try_from(level.quota().capacity()).is_ok_and(|capacity| level.available() < capacity);
    (lacks && level.full_at().is_none(), level.full_at())
}
