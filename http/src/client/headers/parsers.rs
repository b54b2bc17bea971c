//! Parses numbers and durations in headers.

use std::time::{Duration, SystemTime};

use tollgate::chrono::DateTime;

/// Parses a number and rounds it down. A number that is too large becomes `u64::MAX`.
pub(super) fn whole(text: &str) -> Option<u64> {
    let (digits, fraction) = text.split_once('.').unwrap_or((text, "0"));
    (is_number(digits) && is_number(fraction)).then(|| digits.parse().unwrap_or(u64::MAX))
}

/// Parses seconds, with or without a fraction.
pub(super) fn decimal(text: &str) -> Option<Duration> {
    let (_, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let seconds = whole(text)?;
    let nanos = fraction.bytes().chain(std::iter::repeat(b'0')).take(9);
    let nanos = nanos.fold(0, |nanos, digit| nanos * 10 + u32::from(digit - b'0'));
    Some(if seconds == u64::MAX { Duration::MAX } else { Duration::new(seconds, nanos) })
}

/// Parses `1m30s`, `20ms`, `1h2m3.5s`.
pub(super) fn span(text: &str) -> Option<Duration> {
    let (mut rest, mut span) = (text, Duration::ZERO);
    // Requires at least one part.
    while !rest.is_empty() || text.is_empty() {
        let number_length = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let unit_length =
            rest[number_length..].find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len() - number_length);
        let (number, unit) = rest[..number_length + unit_length].split_at(number_length);
        let number = decimal(number)?;
        span = span.saturating_add(match unit {
            "ms" => number / 1000,
            "s" => number,
            "m" => number.saturating_mul(60),
            "h" => number.saturating_mul(3600),
            "d" => number.saturating_mul(86_400),
            _ => return None,
        });
        rest = &rest[number_length + unit_length..];
    }
    Some(span)
}

/// Parses seconds from the time that the answer was sent. Larger numbers are seconds since 1970, and still larger ones
/// are milliseconds since 1970.
pub(super) fn seconds_or_epoch(text: &str, sent: SystemTime) -> Option<Duration> {
    const YEAR_2001: Duration = Duration::from_secs(1_000_000_000);

    let number = decimal(text)?;
    let since_epoch = match number {
        number if number < YEAR_2001 => return Some(number),
        number if number < YEAR_2001 * 1000 => number,
        number => number / 1000,
    };
    until(SystemTime::UNIX_EPOCH.checked_add(since_epoch)?, sent)
}

/// Parses an RFC 3339 timestamp.
pub(super) fn instant(text: &str, sent: SystemTime) -> Option<Duration> {
    until(DateTime::parse_from_rfc3339(text).ok()?.into(), sent)
}

#[expect(clippy::unnecessary_wraps, reason = "as the others")]
fn until(then: SystemTime, sent: SystemTime) -> Option<Duration> {
    Some(then.duration_since(sent).unwrap_or_default())
}

fn is_number(digits: &str) -> bool {
    !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_is_the_sum_of_its_parts() {
        for (text, millis) in [
            ("20ms", Some(20)),
            ("1s", Some(1000)),
            ("1.5s", Some(1500)),
            ("1m30s", Some(90_000)),
            ("6m0s", Some(360_000)),
            ("0s", Some(0)),
            ("1h2m3.5s", Some(3_723_500)),
            ("1d", Some(86_400_000)),
            ("", None),
            ("5", None),
            ("s", None),
            ("1m30", None),
            ("1 s", None),
            ("1x", None),
            ("-1s", None),
            ("1..5s", None),
            ("1ś", None),
        ] {
            assert_eq!(span(text), millis.map(Duration::from_millis), "{text:?}");
        }
        assert_eq!(span("99999999999999999999999h"), Some(Duration::MAX));
    }

    #[test]
    fn a_decimal_keeps_nine_places() {
        for (text, expected) in [
            ("0", Some(Duration::ZERO)),
            ("12.345", Some(Duration::from_millis(12_345))),
            ("0.0000000019", Some(Duration::from_nanos(1))),
            (".5", None),
            ("1.", None),
            ("+1", None),
            ("1e3", None),
        ] {
            assert_eq!(decimal(text), expected, "{text:?}");
        }
    }
}
