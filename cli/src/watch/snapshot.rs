//! The result of one read of the database.

use std::time::Duration;

use tollgate::{Key, admin::BucketLevel};

use super::denials::DenialCounts;
use super::scan::ScanTotals;

/// The buckets at one time.
#[derive(Debug)]
pub(crate) struct Snapshot {
    /// Time since the reader began.
    pub(crate) at: Duration,
    pub(crate) levels: Vec<BucketLevel>,
    /// Denied keys that have no bucket.
    pub(crate) bucketless: Vec<Key>,
    /// Totals of all buckets, if there are more than `--limit`.
    pub(crate) scan: Option<ScanTotals>,
    /// How often the keys were denied that were denied most, as far as services count that.
    pub(crate) denied: DenialCounts,
    /// How many rows of the part that was new could not be read.
    pub(crate) unreadable: u64,
}
