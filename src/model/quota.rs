//! Quotas: a capacity and a refill, their checks, and their form as text.

#[cfg(feature = "_sql")]
use std::borrow::Cow;
use std::fmt;
use std::num::IntErrorKind;
use std::str::FromStr;
use std::time::Duration;

use crate::model::QuotaError;
use crate::model::period::CalendarPeriod;

/// A capacity in tokens, and how the tokens come back.
///
/// When the tokens are used up, a [`Continuous`](Refill::Continuous) quota grants again token by token. An
/// [`Interval`](Refill::Interval) quota grants nothing until its period ends, and then everything at once. A
/// [`Once`](Refill::Once) quota never grants again.
///
/// Every `Quota` is valid. An empty bucket is full after at most a century, and refills at most 10⁹ tokens a second.
/// Rounding to whole nanoseconds slows the refill by at most 0.1 %.
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
    /// Grants at most `capacity` tokens in each period. Tokens that are left expire when the next period begins.
    ///
    /// The periods of a provisioned bucket begin when it is provisioned. The periods of a bucket that its first request
    /// creates begin with the calendar's.
    ///
    /// # Errors
    ///
    /// Returns an error if the capacity is 0, or the period 0, above a century, or shorter than a nanosecond a token.
    pub fn interval(capacity: u64, period: Duration) -> Result<Self, QuotaError> {
        Self::new(capacity, period, Refill::Interval)
    }

    /// Grants at most `capacity` tokens in each period of the calendar: an hour or a day begins when UTC's does, and other
    /// periods are counted from 1970-01-01.
    ///
    /// # Errors
    ///
    /// As for [`interval`](Self::interval).
    pub fn calendar(capacity: u64, period: Duration) -> Result<Self, QuotaError> {
        Self::new(capacity, period, Refill::Calendar)
    }

    /// Grants at most `capacity` tokens in each day, week, month or year of a time zone. Tokens that are left expire when the next
    /// period begins.
    ///
    /// A request can wait for tokens of the next period at most. Debt reaches no further either.
    ///
    /// # Errors
    ///
    /// Returns an error if the capacity is 0, or more than a token a nanosecond.
    pub fn per_calendar(capacity: u64, period: CalendarPeriod) -> Result<Self, QuotaError> {
        Self::new(capacity, Duration::from_nanos(period.usual_ns().unsigned_abs()), Refill::Period(period))
    }

    /// Grants a burst of `capacity`, which comes back evenly over `refill`, the time from empty to full.
    ///
    /// # Errors
    ///
    /// As for [`interval`](Self::interval). Also if rounding the nanoseconds of one token up would slow the quota by more than
    /// 0.1 %: count in larger units then.
    pub fn continuous(capacity: u64, refill: Duration) -> Result<Self, QuotaError> {
        Self::new(capacity, refill, Refill::Continuous)
    }

    /// Grants `capacity` tokens, and then nothing until the quota is changed or the bucket is reset.
    ///
    /// # Errors
    ///
    /// Returns an error if the capacity is 0.
    pub fn once(capacity: u64) -> Result<Self, QuotaError> {
        Self::new(capacity, Duration::ZERO, Refill::Once)
    }

    /// Grants every request, without a call of the store.
    #[must_use]
    pub const fn unlimited() -> Self {
        Self { capacity: i64::MAX, refill_ns: 0, refill: Refill::Unlimited, token_ns: 0 }
    }

    fn new(capacity: u64, refill: Duration, kind: Refill) -> Result<Self, QuotaError> {
        let capacity = i64::try_from(capacity).map_err(|_| QuotaError::CapacityTooLarge(capacity))?;
        Self::of(capacity, whole(refill)?, kind).checked()
    }

    /// The quota of these values, unchecked.
    fn of(capacity: i64, refill_ns: i64, refill: Refill) -> Self {
        let each = |capacity| refill_ns / capacity + i64::from(refill_ns % capacity > 0);
        Self { capacity, refill_ns, refill, token_ns: if capacity > 0 { each(capacity) } else { 0 } }
    }

    /// The quota that a row states in its columns, unless a value is out of bounds.
    #[cfg(feature = "_sql")]
    pub(crate) fn stored(capacity: i64, refill_ns: i64, refill: Refill) -> Result<Self, QuotaError> {
        let quota = Self::of(capacity, refill_ns, refill);
        match quota.checked() {
            // These quotas refill by whole periods, so the rounded time of one token does not matter.
            Err(QuotaError::RefillTooLong) if refill != Refill::Continuous && refill_ns <= CENTURY_NS => Ok(quota),
            checked => checked,
        }
    }

    fn checked(self) -> Result<Self, QuotaError> {
        let (capacity, refill_ns) = (self.capacity, self.refill_ns);
        if capacity < 1 {
            return Err(QuotaError::ZeroCapacity);
        }
        if self.refill == Refill::Once {
            let too_large = || QuotaError::CapacityTooLarge(self.capacity());
            return (capacity <= CENTURY_NS).then_some(self).ok_or_else(too_large);
        }
        if refill_ns < 1 {
            return Err(QuotaError::ZeroRefillTime);
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

    /// Returns the number of tokens that a full bucket holds: the burst.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.capacity.unsigned_abs()
    }

    /// Returns the time from empty to full. For an interval quota, returns its period. For a calendar period, returns 24 hours,
    /// 7 days, or the average month or year.
    #[must_use]
    pub fn refill_time(&self) -> Duration {
        Duration::from_nanos(self.refill_ns.unsigned_abs())
    }

    /// Returns how the tokens come back.
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
        if matches!(self.refill, Refill::Period(_)) {
            // Has no effect. As users write it in SQL, so that their plans and buckets have equal columns.
            return "0".to_owned();
        }
        format!("{}.{:09}", self.refill_ns / SECOND_NS, self.refill_ns % SECOND_NS)
    }
}

/// Nanoseconds, rounded up to whole seconds from 26 days on: every engine's `refill_seconds` holds these values exactly.
fn whole(refill: Duration) -> Result<i64, QuotaError> {
    let ns = i64::try_from(refill.as_nanos()).map_err(|_| QuotaError::RefillTooLong)?;
    if ns < MAX_EXACT_NS || ns % SECOND_NS == 0 {
        return Ok(ns);
    }
    Ok((ns / SECOND_NS + 1) * SECOND_NS)
}

pub(crate) const SECOND_NS: i64 = 1_000_000_000;
const MAX_EXACT_NS: i64 = 26 * 86_400 * SECOND_NS;
const CENTURY_NS: i64 = 36_525 * 86_400 * SECOND_NS;

/// How the tokens of a bucket come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Refill {
    /// One by one, at an even rate, up to the capacity.
    Continuous,
    /// All at once, at the end of each period.
    Interval,
    /// All at once, at the end of each span of a fixed length, which are counted from 1970 in UTC.
    Calendar,
    /// All at once, at the end of each day, week, month or year of a time zone.
    Period(CalendarPeriod),
    /// Never. The capacity can be used once.
    Once,
    /// Not at all: the quota is unlimited.
    Unlimited,
}

impl Refill {
    /// The text in the database's `refill` column, which has none for `Unlimited`.
    #[cfg(feature = "_sql")]
    pub(crate) fn column(self) -> Cow<'static, str> {
        Cow::Borrowed(match self {
            Self::Continuous => "continuous",
            Self::Interval => "interval",
            Self::Calendar => "calendar",
            Self::Period(period) => return Cow::Owned(format!("calendar {period}")),
            Self::Once => "once",
            Self::Unlimited => "unlimited",
        })
    }

    #[cfg(feature = "_sql")]
    pub(crate) fn parse(text: &str) -> Option<Self> {
        if let Some(period) = text.strip_prefix("calendar ") {
            return period.parse().ok().map(Self::Period);
        }
        [Self::Continuous, Self::Interval, Self::Calendar, Self::Once]
            .into_iter()
            .find(|refill| refill.column() == text)
    }
}

/// Builder for a [`Quota`] with a steady rate and an optional burst: see [`Quota::per_second`].
///
/// Methods that take a rule or a quota accept the builder, too.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QuotaBuilder {
    rate: Rate,
    burst: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Rate {
    Tokens(u64, Duration),
    /// Tokens a second.
    Fraction(f64),
}

impl Quota {
    /// Grants `tokens` each second, evenly. Default burst: `tokens`.
    #[must_use]
    pub const fn per_second(tokens: u64) -> QuotaBuilder {
        Self::per(tokens, Duration::from_secs(1))
    }

    /// Grants `tokens` each minute, evenly. Default burst: `tokens`.
    #[must_use]
    pub const fn per_minute(tokens: u64) -> QuotaBuilder {
        Self::per(tokens, Duration::from_mins(1))
    }

    /// Grants `tokens` each hour, evenly. Default burst: `tokens`.
    #[must_use]
    pub const fn per_hour(tokens: u64) -> QuotaBuilder {
        Self::per(tokens, Duration::from_hours(1))
    }

    /// Grants `tokens` each 24 hours, evenly. Default burst: `tokens`.
    #[must_use]
    pub const fn per_day(tokens: u64) -> QuotaBuilder {
        Self::per(tokens, Duration::from_hours(24))
    }

    /// Grants `tokens` each `period`, evenly. Default burst: `tokens`.
    ///
    /// A rate of 0 grants the burst, and then nothing.
    #[must_use]
    pub const fn per(tokens: u64, period: Duration) -> QuotaBuilder {
        QuotaBuilder { rate: Rate::Tokens(tokens, period), burst: None }
    }

    /// Grants any number of tokens a second, evenly. Default burst: the tokens of a second, rounded up.
    ///
    /// A rate of 0 grants the burst, and then nothing. An infinite rate is an [unlimited](Self::unlimited) quota.
    #[must_use]
    pub const fn rate(tokens_a_second: f64) -> QuotaBuilder {
        QuotaBuilder { rate: Rate::Fraction(tokens_a_second), burst: None }
    }
}

impl QuotaBuilder {
    /// Sets how many tokens a full bucket holds, and so how many can be taken at once.
    #[must_use]
    pub const fn burst(self, tokens: u64) -> Self {
        Self { burst: Some(tokens), ..self }
    }

    /// Builds the quota.
    ///
    /// # Errors
    ///
    /// Returns an error if the values are not a valid quota: see [`Quota::continuous`]. Also if the rate is negative or not a
    /// number.
    pub fn build(self) -> Result<Quota, QuotaError> {
        match self.rate {
            Rate::Tokens(0, _) => Quota::once(self.burst.unwrap_or(0)),
            Rate::Tokens(tokens, period) => {
                let capacity = self.burst.unwrap_or(tokens);
                let refill = (u128::from(capacity)).saturating_mul(period.as_nanos()).div_ceil(u128::from(tokens));
                let refill = u64::try_from(refill).map_err(|_| QuotaError::RefillTooLong)?;
                let quota = Quota::new(capacity, Duration::from_nanos(refill), Refill::Continuous)?;
                // `Quota::new` checks the burst alone, and a small burst refills before the rounding shows in it.
                let takes = u128::from(quota.token_ns().unsigned_abs()).saturating_mul(u128::from(tokens));
                let too_fine = takes.saturating_mul(1000) > period.as_nanos().saturating_mul(1001);
                if too_fine { Err(too_fine_rate(tokens, period)) } else { Ok(quota) }
            }
            Rate::Fraction(rate) if rate.is_nan() || rate < 0.0 => Err(QuotaError::InvalidRate(rate)),
            Rate::Fraction(f64::INFINITY) => Ok(Quota::unlimited()),
            Rate::Fraction(0.0) => Quota::once(self.burst.unwrap_or(0)),
            Rate::Fraction(rate) => self.fraction(rate),
        }
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        reason = "a rate is no more precise, and what saturates is refused"
    )]
    fn fraction(self, rate: f64) -> Result<Quota, QuotaError> {
        let capacity = self.burst.unwrap_or_else(|| rate.ceil() as u64);
        let ns = capacity as f64 / rate * 1e9;
        // Rounds up, except within a float's error: the quota never exceeds the rate.
        let refill = if (ns - ns.round()).abs() <= ns * 1e-12 { ns.round() } else { ns.ceil() };
        let quota = Quota::new(capacity, Duration::from_nanos(refill as u64), Refill::Continuous)?;
        let too_fine = quota.token_ns() as f64 * rate > 1.001e9;
        if too_fine { Err(too_fine_rate(rate.ceil() as u64, Duration::from_secs(1))) } else { Ok(quota) }
    }
}

impl TryFrom<QuotaBuilder> for Quota {
    type Error = QuotaError;

    fn try_from(builder: QuotaBuilder) -> Result<Self, QuotaError> {
        builder.build()
    }
}

impl fmt::Display for Quota {
    /// Writes the shortest text that [`parse`](str::parse) converts to the same quota.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (capacity, refill) = (self.capacity(), InUnits(self.refill_time()));
        match self.refill {
            Refill::Interval => write!(f, "{capacity} per {refill}"),
            Refill::Calendar => write!(f, "{capacity} per calendar {refill}"),
            Refill::Period(period) => write!(f, "{capacity} per calendar {period}"),
            Refill::Once => write!(f, "{capacity} once"),
            Refill::Unlimited => f.write_str("unlimited"),
            Refill::Continuous => match self.per_unit() {
                Some((tokens, unit)) if tokens == capacity => write!(f, "{tokens}/{unit}"),
                Some((tokens, unit)) => write!(f, "{tokens}/{unit} burst {capacity}"),
                None => write!(f, "{capacity}/{refill}"),
            },
        }
    }
}

impl Quota {
    /// The rate in whole tokens a unit, for the shortest of `RATE_UNITS` that has such a rate.
    fn per_unit(&self) -> Option<(u64, &'static str)> {
        RATE_UNITS.iter().find_map(|&unit| {
            let (ns, refill) = (u128::from(unit_ns(unit)?), self.refill_time().as_nanos());
            let tokens = u64::try_from((u128::from(self.capacity()) * ns + refill / 2) / refill).ok()?;
            let rate = Self::per(tokens, Duration::from_nanos(unit_ns(unit)?)).burst(self.capacity());
            (tokens > 0 && rate.build().as_ref() == Ok(self)).then_some((tokens, unit))
        })
    }
}

impl FromStr for Quota {
    type Err = QuotaError;

    fn from_str(text: &str) -> Result<Self, QuotaError> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let excerpt = || text.chars().take(60).collect();
        let not_one = || QuotaError::InvalidText(excerpt());
        let number = |word: &str| {
            word.parse::<u64>().map_err(|error| match error.kind() {
                IntErrorKind::PosOverflow => QuotaError::OutOfRange(excerpt()),
                _ => not_one(),
            })
        };
        let span = |words: &[&str]| match parse_span(words) {
            Some(Duration::MAX) => Err(QuotaError::OutOfRange(excerpt())),
            span => span.ok_or_else(not_one),
        };
        let rate = |words: &[&str]| {
            let rate = words.join(" ");
            let (tokens, period) = rate.split_once('/').ok_or_else(not_one)?;
            Ok(Self::per(number(tokens.trim())?, span(&period.split_whitespace().collect::<Vec<_>>())?))
        };
        // A month has no fixed length, so `1000/month` can only be a calendar period.
        if let Some((tokens, period)) = text.split_once('/')
            && let period = period.split_whitespace().collect::<Vec<_>>()
            && CalendarPeriod::is_named_by(&period)
        {
            return Self::per_calendar(number(tokens.trim())?, CalendarPeriod::parse(&period)?);
        }
        match &words[..] {
            ["unlimited"] => Ok(Self::unlimited()),
            [capacity, "once"] => Self::once(number(capacity)?),
            [capacity, "per", "calendar", period @ ..] if CalendarPeriod::is_named_by(period) => {
                Self::per_calendar(number(capacity)?, CalendarPeriod::parse(period)?)
            }
            [capacity, "per", "calendar", period @ ..] => Self::calendar(number(capacity)?, span(period)?),
            [capacity, "per", period @ ..] => Self::interval(number(capacity)?, span(period)?),
            [per @ .., "burst", capacity] => rate(per)?.burst(number(capacity)?).build(),
            per => rate(per)?.build(),
        }
    }
}

const RATE_UNITS: [&str; 4] = ["s", "m", "h", "d"];

/// Displays a length of time in one unit: `250ms`.
pub(super) struct InUnits(pub(super) Duration);

impl fmt::Display for InUnits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ns = self.0.as_nanos();
        let (unit, length) =
            UNITS.iter().rev().find(|(_, length)| ns.is_multiple_of(u128::from(*length))).expect("nanoseconds do");
        write!(f, "{}{unit}", ns / u128::from(*length))
    }
}

/// Parses `250ms`, `1m30s`, `1m 30s`, or `s` or `second` for `1s`. Returns `Duration::MAX` for more than 2⁶⁴ ns.
pub(super) fn parse_span(words: &[&str]) -> Option<Duration> {
    if let [unit] = words {
        let unit = UNIT_WORDS.iter().find(|(word, _)| word == unit).map_or(*unit, |(_, unit)| *unit);
        if let Some(ns) = unit_ns(unit) {
            return Some(Duration::from_nanos(ns));
        }
    }
    let mut sum = (!words.is_empty()).then_some(Some(0_u64))?;
    for word in words {
        let mut rest = *word;
        while !rest.is_empty() {
            let (number, after) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit())?);
            let (unit, after) = after.split_at(after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len()));
            let length = unit_ns(unit).filter(|_| !number.is_empty())?;
            sum = sum.and_then(|sum| number.parse::<u64>().ok()?.checked_mul(length)?.checked_add(sum));
            rest = after;
        }
    }
    Some(sum.map_or(Duration::MAX, Duration::from_nanos))
}

/// The units that a text can spell out if no number precedes them.
const UNIT_WORDS: [(&str, &str); 4] = [("second", "s"), ("minute", "m"), ("hour", "h"), ("day", "d")];

/// The nanoseconds of a unit. `min` is another name of `m`.
fn unit_ns(unit: &str) -> Option<u64> {
    let unit = if unit == "min" { "m" } else { unit };
    UNITS.iter().find(|(name, _)| *name == unit).map(|&(_, length)| length)
}

const UNITS: [(&str, u64); 7] = [
    ("ns", 1),
    ("us", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
    ("d", 86_400_000_000_000),
];

/// A length of time in nanoseconds, saturating at `i64::MAX`.
#[inline]
pub(crate) fn nanoseconds(span: Duration) -> i64 {
    let seconds = i64::try_from(span.as_secs()).unwrap_or(i64::MAX);
    seconds.saturating_mul(SECOND_NS).saturating_add(span.subsec_nanos().into())
}

/// The error of a rate, regardless of the burst.
fn too_fine_rate(tokens: u64, period: Duration) -> QuotaError {
    let (capacity, refill_ns) = (i64::try_from(tokens).unwrap_or(i64::MAX), nanoseconds(period));
    QuotaError::TooFine { capacity, refill_ns }
}
