use std::time::Duration;

use crate::model::quota::span::nanoseconds;

/// Why figures or words make no quota.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum QuotaError {
    /// More tokens than a century has nanoseconds.
    #[error("a capacity of {0} tokens is too large: at most 3 155 760 000 000 000 000")]
    CapacityTooLarge(u64),
    /// No tokens at all.
    #[error("a capacity of 0 grants nothing: give 1 or more")]
    NoCapacity,
    /// No time to refill in.
    #[error("a refill time of 0 limits nothing: give 1 nanosecond or more")]
    NoRefill,
    /// A sliding window that none can be counted in.
    #[error(
        "a window of {interval:?} in parts of {resolution:?} cannot be counted: give an interval of a year or less, and a \
         resolution of 1 µs or more that divides it into 1 to 1000 parts"
    )]
    NoWindow {
        /// The interval given.
        interval: Duration,
        /// The resolution given.
        resolution: Duration,
    },
    /// A number of tokens a second that is none.
    #[error("a rate of {0} tokens a second is no rate: give 0 or more")]
    NoRate(f64),
    /// More than a century from empty to full.
    #[error("the time from empty to full is at most 100 years (36525 days)")]
    RefillTooLong,
    /// A text that is no quota.
    #[error(
        "'{0}' is no quota: write '10/s', '10/s burst 20', '5/250ms', '2 per 1s', '1000 per calendar 1d', '100 once' or \
         'unlimited'; units are ns, us, ms, s, min, h and d; \
         '100 in 60s at 5s' is a sliding window"
    )]
    Text(String),
    /// More than a token a nanosecond.
    #[error("{capacity} tokens in {refill_ns} ns are more than one a nanosecond: count in larger units, 1 for 1000")]
    TooFast {
        /// The capacity given.
        capacity: i64,
        /// The refill time given, in nanoseconds.
        refill_ns: i64,
    },
    /// Whole nanoseconds a token would lose more than 0.1 % of the rate.
    #[error(
        "{capacity} tokens in {refill_ns} ns, in whole nanoseconds a token, would be over 0.1 % slower: count in larger \
         units, 1 for 1000"
    )]
    TooFine {
        /// The capacity given.
        capacity: i64,
        /// The refill time given, in nanoseconds.
        refill_ns: i64,
    },
    /// A text that is no sliding window.
    #[error(
        "'{0}' is no sliding window: write '100 in 60s at 5s' for at most 100 in any 60 seconds, counted in parts of 5 \
         seconds; units are ns, us, ms, s, min, h and d"
    )]
    WindowText(String),
}

impl QuotaError {
    /// Of a rate, whatever the burst.
    pub(super) fn too_fine(tokens: u64, period: Duration) -> Self {
        let (capacity, refill_ns) = (i64::try_from(tokens).unwrap_or(i64::MAX), nanoseconds(period));
        Self::TooFine { capacity, refill_ns }
    }
}
