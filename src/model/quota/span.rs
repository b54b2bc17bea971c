//! Lengths of time as people write them, `250ms`, and as they are reckoned with.

use std::fmt;
use std::time::Duration;

use super::SECOND_NS;

/// A length of time in one unit: `250ms`.
pub(crate) struct Span(pub(crate) Duration);

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ns = self.0.as_nanos();
        let (unit, length) =
            UNITS.iter().rev().find(|(_, length)| ns.is_multiple_of(u128::from(*length))).expect("nanoseconds do");
        write!(f, "{}{unit}", ns / u128::from(*length))
    }
}

/// `250ms`, or `s` for `1s`.
pub(crate) fn span(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit())?);
    let number: u64 = if digits.is_empty() { 1 } else { digits.parse().ok()? };
    number.checked_mul(length(unit)?).map(Duration::from_nanos)
}

/// A unit's nanoseconds.
pub(super) fn length(unit: &str) -> Option<u64> {
    UNITS.iter().find(|(name, _)| *name == unit).map(|&(_, length)| length)
}

const UNITS: [(&str, u64); 7] = [
    ("ns", 1),
    ("us", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("min", 60_000_000_000),
    ("h", 3_600_000_000_000),
    ("d", 86_400_000_000_000),
];

/// All of it, or the end of time.
#[inline]
pub(crate) fn nanoseconds(span: Duration) -> i64 {
    let seconds = i64::try_from(span.as_secs()).unwrap_or(i64::MAX);
    seconds.saturating_mul(SECOND_NS).saturating_add(span.subsec_nanos().into())
}
