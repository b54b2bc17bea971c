//! Spans and instants as people write and read them.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};

use crate::exit::CliError;
use crate::text::quoted;

/// Reads `250ms`, `10s`, `1h` or `1m 30s`.
pub(crate) fn parse(text: &str) -> Result<Duration, SpanError> {
    // Part by part, because humantime 2.4.0 panics on some sums of 2⁶⁴ seconds.
    let mut rest = text.trim();
    let mut sum = None;
    while !rest.is_empty() {
        let unit = rest.find(char::is_alphabetic).ok_or(SpanError::Invalid)?;
        let length = rest[unit..].find(|c: char| !c.is_alphabetic());
        let end = length.map_or(rest.len(), |length| unit + length);
        if let Some(wrong) = calendar_unit(&rest[unit..end]) {
            return Err(wrong);
        }
        let part = humantime::parse_duration(&rest[..end]).map_err(|_| SpanError::Invalid)?;
        sum = Some(sum.unwrap_or(Duration::ZERO).checked_add(part).ok_or(SpanError::Invalid)?);
        rest = rest[end..].trim_start();
    }
    sum.ok_or(SpanError::Invalid)
}

/// Why a unit is refused that humantime reads as an average month or year. `M` is easily mistaken for minutes.
pub(crate) fn calendar_unit(unit: &str) -> Option<SpanError> {
    match unit.to_lowercase() {
        _ if unit == "M" => Some(SpanError::Months),
        lower if lower.starts_with("mo") => Some(SpanError::Months),
        lower if lower.starts_with('y') => Some(SpanError::Years),
        _ => None,
    }
}

/// Reports whether the word is the second half of a span written in two words.
pub(crate) fn is_unit(word: &str) -> bool {
    parse(&format!("1{word}")).is_ok()
}

/// Why a text is not a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SpanError {
    #[error("months vary in length")]
    Months,
    #[error("years vary in length")]
    Years,
    #[error("not a length of time")]
    Invalid,
}

impl SpanError {
    pub(crate) fn hint(self) -> &'static str {
        match self {
            Self::Months => "write minutes as 1m, and months in days: 30d",
            Self::Years => "write years in days: 365d",
            Self::Invalid => "write each number with its unit, such as 250ms, 10s, 5m, 1h, 1d or 1h 30m",
        }
    }

    /// The hint about a quota that contains the span.
    pub(crate) fn hint_for_rates(self) -> &'static str {
        match self {
            Self::Months => "write minutes as 10/m, and months of the calendar as 10/month",
            Self::Years => "write years of the calendar as 10/year",
            Self::Invalid => self.hint(),
        }
    }
}

/// So long from then.
pub(crate) fn after(span: Duration, then: DateTime<Utc>) -> anyhow::Result<DateTime<Utc>> {
    if span.is_zero() {
        return Err(CliError::arguments("out of range: --for 0s", "give a longer one, such as 2h").into());
    }
    let end = Some(span)
        .filter(|span| *span <= CENTURY)
        .and_then(|span| TimeDelta::from_std(span).ok())
        .and_then(|span| then.checked_add_signed(span));
    let too_long = || format!("longer than a century: --for {}", quoted(&self::span(span)));
    Ok(end.ok_or_else(|| CliError::arguments(too_long(), "leave --for out: it has no end then"))?)
}

/// The times of the databases do not reach much further.
const CENTURY: Duration = Duration::from_secs(36_525 * 86_400);

/// Displays a span in its two largest units, such as `3m 20s`. Rounds up, so that a retry after that time is not too early.
pub(crate) fn span(span: Duration) -> String {
    if span == Duration::MAX {
        return "never".to_owned();
    }
    let (nanoseconds, rounded_to) = match span.as_secs() {
        0 => (span.as_nanos(), MILLISECOND),
        // One digit after the point.
        1..10 => (span.as_nanos(), 100 * MILLISECOND),
        _ => (span.as_millis() * MILLISECOND, 1000 * MILLISECOND),
    };
    let rounded = nanoseconds.div_ceil(rounded_to) * rounded_to;
    let tenths = rounded / (100 * MILLISECOND);
    if (11..100).contains(&tenths) && !tenths.is_multiple_of(10) {
        return format!("{}.{}s", tenths / 10, tenths % 10);
    }
    // The second unit is rounded up again, and may carry into the first one.
    let smaller = UNITS.iter().skip_while(|(unit, _)| rounded < *unit).nth(1).map_or(1, |(unit, _)| *unit);
    in_units(rounded.div_ceil(smaller) * smaller)
}

/// Displays a span exactly, as it can be typed: `1h 30m`.
pub(crate) fn exact(span: Duration) -> String {
    in_units(span.as_nanos())
}

fn in_units(mut nanoseconds: u128) -> String {
    if nanoseconds == 0 {
        return "0ms".to_owned();
    }
    let mut parts = Vec::new();
    for (unit, name) in UNITS {
        if nanoseconds >= unit {
            parts.push(format!("{}{name}", nanoseconds / unit));
            nanoseconds %= unit;
        }
    }
    parts.join(" ")
}

const MILLISECOND: u128 = 1_000_000;

/// Nanoseconds of the units, largest first.
const UNITS: [(u128, &str); 7] = [
    (86_400_000 * MILLISECOND, "d"),
    (3_600_000 * MILLISECOND, "h"),
    (60_000 * MILLISECOND, "m"),
    (1000 * MILLISECOND, "s"),
    (MILLISECOND, "ms"),
    (1000, "us"),
    (1, "ns"),
];

/// How long until then, by this host's clock.
pub(crate) fn until(instant: DateTime<Utc>) -> String {
    between(Utc::now(), instant)
}

fn between(from: DateTime<Utc>, to: DateTime<Utc>) -> String {
    span((to - from).to_std().unwrap_or_default())
}

/// `2026-01-31 12:00:00 UTC`.
pub(crate) fn instant(instant: DateTime<Utc>) -> String {
    instant.format("%Y-%m-%d %H:%M:%S UTC").to_string()
}

/// The rest of a sentence: how long it holds.
pub(crate) fn ending(until: Option<DateTime<Utc>>, now: DateTime<Utc>) -> String {
    until.map_or_else(String::new, |until| format!(", until {} (in {})", instant(until), between(now, until)))
}

/// For programs: whole milliseconds, rounded up; `null`: never.
pub(crate) fn milliseconds(span: Duration) -> Option<u64> {
    (span != Duration::MAX).then(|| u64::try_from(span.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX))
}

/// For programs: RFC 3339, in UTC.
pub(crate) fn timestamp(instant: Option<DateTime<Utc>>) -> Option<String> {
    instant.map(|instant| instant.to_rfc3339_opts(chrono::SecondsFormat::Millis, true))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_read_and_shown_as_people_write_them() {
        for (text, shown) in [
            ("250ms", "250ms"),
            ("0s", "0ms"),
            ("999ms 1ns", "1s"),
            ("1s", "1s"),
            ("1s 210ms", "1.3s"),
            ("2s", "2s"),
            ("9s 999ms", "10s"),
            ("90s", "1m 30s"),
            ("1h", "1h"),
            ("1h 30min", "1h 30m"),
            ("1d", "1d"),
            (" 2µs 1.5h ", "1h 30m"),
            ("25h 1s", "1d 2h"),
            ("23h 59m 1s", "1d"),
            ("59m 59s", "59m 59s"),
        ] {
            let read = parse(text).unwrap();
            assert_eq!(span(read), shown);
            assert_eq!(parse(&exact(read)), Ok(read));
        }
        assert_eq!(span(Duration::MAX), "never");
        assert_eq!(exact(Duration::from_millis(93_784_005)), "1d 2h 3m 4s 5ms");
        for wrong in ["", " ", "1", "1 hour x", "h", "-1s", "1s 2", "18446744073709551615s 1000ms"] {
            assert_eq!(parse(wrong), Err(SpanError::Invalid), "{wrong}");
        }
    }

    #[test]
    fn span_in_months_or_years_is_refused() {
        for (wrong, error) in [
            ("1M", SpanError::Months),
            ("1month", SpanError::Months),
            ("2 months", SpanError::Months),
            ("1y", SpanError::Years),
            ("1Y", SpanError::Years),
            ("1h 3years", SpanError::Years),
        ] {
            assert_eq!(parse(wrong), Err(error), "{wrong}");
        }
        assert!(!SpanError::Years.hint().contains("minutes"));
    }

    #[test]
    fn relative_end_is_within_a_century() {
        let now = DateTime::UNIX_EPOCH;
        let end = after(Duration::from_secs(300), now).unwrap();
        assert_eq!(end - now, TimeDelta::minutes(5));
        assert!(after(Duration::MAX, now).is_err() && after(Duration::ZERO, now).is_err());
        assert!(ending(Some(end), now).ends_with(" (in 5m)"));
    }
}
