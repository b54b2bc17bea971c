//! Plans, overrides, modes, filters, levels and usage: the arguments and results of [`Admin`](crate::Admin).

mod changes;
mod error;
mod explain;
mod reads;
mod usage;

pub(crate) use changes::{AdminSettings, limited, plan_limits};
pub use changes::{ModeSetting, Override, Plan};
pub use error::AdminError;
pub(crate) use explain::explain;
pub use explain::{ExpectedOutcome, Explanation, Origin};
pub(crate) use reads::fixed_level;
pub use reads::{BucketLevel, DenialCount, Filter, Page};
pub use usage::{RecordedUsage, Usage, UsageFilter, UsagePeriod, UsageRecording};

/// The result of one step of a sweep.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SweepResult {
    /// How many rows were deleted: buckets, windows, receipts, overrides and counts of denials.
    pub deleted: u64,
    /// Whether this step reached the end, so that the next step starts over. Also true if another session is sweeping: this
    /// step did nothing then.
    pub finished: bool,
}

impl Default for SweepResult {
    /// Nothing deleted, and nothing left to sweep.
    fn default() -> Self {
        Self { deleted: 0, finished: true }
    }
}
