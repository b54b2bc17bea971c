//! Why values or a text are not a quota or a sliding window.

use std::time::Duration;

/// The reason why values or a text are not a valid quota or sliding window.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum QuotaError {
    /// The capacity is more than the nanoseconds of a century.
    #[error("a capacity of {0} tokens is too large: {hint}", hint = self.hint())]
    CapacityTooLarge(u64),
    /// The capacity is 0.
    #[error("a capacity of 0 grants nothing: {hint}", hint = self.hint())]
    ZeroCapacity,
    /// The refill time is 0.
    #[error("a refill time of 0 limits nothing: {hint}", hint = self.hint())]
    ZeroRefillTime,
    /// The interval and the resolution are not a valid sliding window.
    #[error(
        "a window of {interval:?} in parts of {resolution:?} is not valid: {hint}",
        hint = self.hint()
    )]
    InvalidWindow {
        /// The interval given.
        interval: Duration,
        /// The resolution given.
        resolution: Duration,
    },
    /// The rate is negative or not a number.
    #[error("a rate of {0} tokens a second is not valid: {hint}", hint = self.hint())]
    InvalidRate(f64),
    /// The time from empty to full is more than a century.
    #[error(
        "the time from empty to full is more than 100 years (36525 days): {hint}",
        hint = self.hint()
    )]
    RefillTooLong,
    /// The text is not a valid quota.
    #[error("'{0}' is not a quota: {hint}", hint = self.hint())]
    InvalidText(String),
    /// The text is not a valid calendar period.
    #[error("'{0}' is not a calendar period: {hint}", hint = self.hint())]
    InvalidPeriod(String),
    /// There is no time zone of this name.
    #[error("'{0}' is not a time zone: {hint}", hint = self.hint())]
    UnknownZone(String),
    /// A number or a length of time in the text is too large.
    #[error("'{0}' is out of range: {hint}", hint = self.hint())]
    OutOfRange(String),
    /// The quota refills more than one token a nanosecond.
    #[error(
        "{capacity} tokens in {refill_ns} ns are more than one a nanosecond: {hint}",
        hint = self.hint()
    )]
    TooFast {
        /// The capacity given.
        capacity: i64,
        /// The refill time given, in nanoseconds.
        refill_ns: i64,
    },
    /// Rounding the time of one token to whole nanoseconds would slow the refill by more than 0.1 %.
    #[error(
        "{capacity} tokens in {refill_ns} ns, in whole nanoseconds a token, would be over 0.1 % slower: {hint}",
        hint = self.hint()
    )]
    TooFine {
        /// The capacity given.
        capacity: i64,
        /// The refill time given, in nanoseconds.
        refill_ns: i64,
    },
    /// The text is not a valid sliding window.
    #[error("'{0}' is not a sliding window: {hint}", hint = self.hint())]
    InvalidWindowText(String),
    /// The text is not a valid name of a limit or of a cost.
    #[error("'{0}' is not a name of a limit: {hint}", hint = self.hint())]
    InvalidName(String),
    /// Two limits of one key have this name.
    #[error("two limits are named '{0}': {hint}", hint = self.hint())]
    RepeatedName(String),
    /// A key has no limits, or too many.
    #[error("a key has 1 to 16 limits, and this one has {0}: {hint}", hint = self.hint())]
    LimitCount(usize),
}

impl QuotaError {
    /// Returns what to do about the error. The message ends with it, after a colon.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::CapacityTooLarge(_) => "give at most 3155760000000000000",
            Self::ZeroCapacity => "give 1 or more",
            Self::ZeroRefillTime => "give 1 nanosecond or more",
            Self::InvalidWindow { .. } => {
                "the interval is at most a year, the resolution at least 1 µs, with 1 to 1000 parts"
            }
            Self::InvalidRate(_) => "give 0 or more",
            Self::RefillTooLong => "give a smaller capacity or a higher rate",
            Self::InvalidText(_) => {
                "write '10/s', '10/s burst 20', '5/250ms', '2 per 1s', '1000 per calendar 1d', '100000/month' or '100 once'; units are ns, \
                 us, ms, s, m, h and d; '100 in 60s at 5s' is a sliding window"
            }
            Self::InvalidPeriod(_) => {
                "write 'month', 'month from day 15', 'week from sunday', 'day from 06:00' or 'year from 04-06', a date or an \
                 instant from 1970 to 2200 as the start, and 'in Europe/Berlin' for a time zone"
            }
            Self::UnknownZone(_) => "give a name such as 'Europe/Berlin', or an offset such as '+01:00'",
            Self::OutOfRange(_) => "give at most 3155760000000000000 tokens, and at most 36525 days",
            Self::TooFast { .. } | Self::TooFine { .. } => "count in larger units, 1 for 1000",
            Self::InvalidName(_) => "write a letter, then up to 31 letters, digits, '-' and '_'",
            Self::RepeatedName(_) => "give each limit a name of its own",
            Self::LimitCount(_) => "combine limits, or give some of them another key",
            Self::InvalidWindowText(_) => {
                "write '100 in 60s at 5s' for 100 in any 60 seconds, in parts of 5 seconds; units are ns, us, ms, s, m, h and d"
            }
        }
    }
}
