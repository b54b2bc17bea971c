use std::time::Duration;

mod builder;
mod error;
mod refill;
pub(crate) mod span;
mod text;

pub use builder::QuotaBuilder;
pub use error::QuotaError;
pub use refill::Refill;

/// How much may pass: a capacity, and how it comes back.
///
/// When the tokens are used up, a [`Continuous`](Refill::Continuous) quota grants again token by token, an
/// [`Interval`](Refill::Interval) one nothing until its period ends and then everything at once, and one that is good
/// [`Once`](Refill::Once) never again.
///
/// A `Quota` that exists is valid: its burst lasts at most a century, it refills at most 10⁹ tokens a
/// second, and rounding to whole nanoseconds slows it by at most 0.1 %.
///
/// ```
/// use std::time::Duration;
/// use tollgate::Quota;
///
/// let api = Quota::per_second(10).burst(20).build()?;
/// assert_eq!(api.to_string(), "10/s burst 20");
/// assert_eq!("10/s burst 20".parse::<Quota>()?, api);
///
/// let per_second = Quota::interval(2, Duration::from_secs(1))?;
/// assert_eq!(per_second.capacity(), 2);
/// assert_eq!(per_second.to_string(), "2 per 1s");
/// # Ok::<(), tollgate::model::QuotaError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Quota {
    capacity: i64,
    refill_ns: i64,
    refill: Refill,
    /// Nanoseconds for one token, rounded up: a quota is never exceeded.
    token_ns: i64,
}

impl Quota {
    /// At most `capacity` tokens in each period: whatever is left is thrown away when the next one begins.
    ///
    /// The periods begin when the bucket is provisioned; those of a bucket that its first request makes, with the
    /// calendar's.
    ///
    /// # Errors
    ///
    /// If the capacity is 0, or the period 0, above a century, or shorter than a nanosecond a token.
    pub fn interval(capacity: u64, period: Duration) -> Result<Self, QuotaError> {
        Self::new(capacity, period, Refill::Interval)
    }

    /// The same, in periods of the calendar: an hour or a day begins when UTC's does, and other periods are counted
    /// from 1970-01-01.
    ///
    /// # Errors
    ///
    /// As for [`interval`](Self::interval).
    pub fn calendar(capacity: u64, period: Duration) -> Result<Self, QuotaError> {
        Self::new(capacity, period, Refill::Calendar)
    }

    /// A burst of `capacity`, coming back evenly over `refill`, the time from empty to full.
    ///
    /// # Errors
    ///
    /// As for [`interval`](Self::interval); also if a token takes so few nanoseconds that rounding
    /// them up would slow the quota by more than 0.1 %: count in larger units then.
    pub fn continuous(capacity: u64, refill: Duration) -> Result<Self, QuotaError> {
        Self::new(capacity, refill, Refill::Continuous)
    }

    /// `capacity` tokens, and then nothing until the quota is changed or the bucket is reset.
    ///
    /// # Errors
    ///
    /// If the capacity is 0.
    pub fn once(capacity: u64) -> Result<Self, QuotaError> {
        Self::new(capacity, Duration::ZERO, Refill::Once)
    }

    /// No limit: every request is granted, and no store is asked.
    #[must_use]
    pub const fn unlimited() -> Self {
        Self { capacity: i64::MAX, refill_ns: 0, refill: Refill::Unlimited, token_ns: 0 }
    }

    pub(crate) fn new(capacity: u64, refill: Duration, kind: Refill) -> Result<Self, QuotaError> {
        let capacity = i64::try_from(capacity).map_err(|_| QuotaError::CapacityTooLarge(capacity))?;
        Self::of(capacity, whole(refill)?, kind).checked()
    }

    /// The quota of these figures, or what a row states in its columns, which the database has checked.
    pub(crate) fn of(capacity: i64, refill_ns: i64, refill: Refill) -> Self {
        let each = |capacity| refill_ns / capacity + i64::from(refill_ns % capacity > 0);
        Self { capacity, refill_ns, refill, token_ns: if capacity > 0 { each(capacity) } else { 0 } }
    }

    /// What a row states in its columns, unless it breaks their bounds.
    #[cfg(feature = "_sql")]
    pub(crate) fn stored(capacity: i64, refill_ns: i64, refill: Refill) -> Result<Self, QuotaError> {
        let quota = Self::of(capacity, refill_ns, refill);
        match quota.checked() {
            // By whole periods, no time for one token is rounded.
            Err(QuotaError::RefillTooLong) if refill != Refill::Continuous && refill_ns <= CENTURY_NS => Ok(quota),
            checked => checked,
        }
    }

    fn checked(self) -> Result<Self, QuotaError> {
        let (capacity, refill_ns) = (self.capacity, self.refill_ns);
        if capacity < 1 {
            return Err(QuotaError::NoCapacity);
        }
        if self.refill == Refill::Once {
            let too_large = || QuotaError::CapacityTooLarge(self.capacity());
            return (capacity <= CENTURY_NS).then_some(self).ok_or_else(too_large);
        }
        if refill_ns < 1 {
            return Err(QuotaError::NoRefill);
        }
        if refill_ns > CENTURY_NS {
            return Err(QuotaError::RefillTooLong);
        }
        if refill_ns < capacity {
            return Err(QuotaError::TooFast { capacity, refill_ns });
        }
        let burst = i128::from(self.token_ns()) * i128::from(capacity);
        if self.refill == Refill::Continuous && (burst - i128::from(refill_ns)) * 1000 > i128::from(refill_ns) {
            return Err(QuotaError::TooFine { capacity, refill_ns });
        }
        if burst > i128::from(CENTURY_NS) {
            return Err(QuotaError::RefillTooLong);
        }
        Ok(self)
    }

    /// The most tokens that a bucket of this quota holds: its burst.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.capacity.unsigned_abs()
    }

    /// The time in which an empty bucket becomes full: the period of an interval quota.
    #[must_use]
    pub fn refill_time(&self) -> Duration {
        Duration::from_nanos(self.refill_ns.unsigned_abs())
    }

    /// How the tokens come back.
    #[must_use]
    pub fn refill(&self) -> Refill {
        self.refill
    }

    /// Nanoseconds for one token, rounded up: a quota is never exceeded.
    pub(crate) fn token_ns(&self) -> i64 {
        self.token_ns
    }

    pub(crate) fn capacity_i64(&self) -> i64 {
        self.capacity
    }

    pub(crate) fn refill_ns(&self) -> i64 {
        self.refill_ns
    }

    /// The time from empty to full as the databases' decimal of seconds.
    #[cfg(any(feature = "postgres", feature = "mysql"))]
    pub(crate) fn refill_seconds(&self) -> String {
        format!("{}.{:09}", self.refill_ns / SECOND_NS, self.refill_ns % SECOND_NS)
    }
}

/// Nanoseconds, in whole seconds from 26 days on: that much every engine's `refill_seconds` holds exactly.
fn whole(refill: Duration) -> Result<i64, QuotaError> {
    let ns = i64::try_from(refill.as_nanos()).map_err(|_| QuotaError::RefillTooLong)?;
    if ns < EXACT_NS || ns % SECOND_NS == 0 {
        return Ok(ns);
    }
    Ok((ns / SECOND_NS + 1) * SECOND_NS)
}

pub(crate) const SECOND_NS: i64 = 1_000_000_000;
const EXACT_NS: i64 = 26 * 86_400 * SECOND_NS;
const CENTURY_NS: i64 = 36_525 * 86_400 * SECOND_NS;
