//! Spans and instants as people write and read them.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use tollgate::admin::ModeSetting;

use crate::output::plain;

/// Reads `250ms`, `10s`, `1h` or `1h 30min`.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    read(text).ok_or_else(|| "write a number and its unit together, such as 250ms, 10s, 5min, 1h or 1d".to_owned())
}

/// Whether it is the second half of a span that was written in two words.
pub(crate) fn is_unit(word: &str) -> bool {
    read(&format!("1{word}")).is_some()
}

/// Part by part: humantime 2.4.0 panics on some sums of 2⁶⁴ seconds.
fn read(text: &str) -> Option<Duration> {
    let mut rest = text.trim();
    let mut sum = None;
    while !rest.is_empty() {
        let unit = rest.find(char::is_alphabetic)?;
        let end = rest[unit..].find(|c: char| !c.is_alphabetic()).map_or(rest.len(), |length| unit + length);
        let part = humantime::parse_duration(&rest[..end]).ok()?;
        sum = Some(sum.unwrap_or(Duration::ZERO).checked_add(part)?);
        rest = rest[end..].trim_start();
    }
    sum
}

/// So long from then.
pub(crate) fn after(span: Duration, then: DateTime<Utc>) -> anyhow::Result<DateTime<Utc>> {
    let end = Some(span)
        .filter(|span| *span <= CENTURY)
        .and_then(|span| TimeDelta::from_std(span).ok())
        .and_then(|span| then.checked_add_signed(span));
    Ok(end.ok_or_else(|| crate::exit::CliError::arguments("that is too long", "leave --for out: it has no end then"))?)
}

/// The times of the databases do not reach much further.
const CENTURY: Duration = Duration::from_secs(36_525 * 86_400);

/// In its two largest units, rounded up: `3 min 20 s`. Who comes back then does not come too early.
pub(crate) fn span(span: Duration) -> String {
    if span == Duration::MAX {
        return "never".to_owned();
    }
    if span <= Duration::from_secs(1) {
        return format!("{} ms", span.as_micros().div_ceil(1000));
    }
    if span < Duration::from_secs(10) {
        let tenths = span.as_micros().div_ceil(100_000);
        return format!("{}.{} s", tenths / 10, tenths % 10);
    }
    let seconds = u64::try_from(span.as_millis().div_ceil(1000)).unwrap_or(u64::MAX);
    let largest = |seconds| UNITS.iter().position(|(unit, _)| seconds >= *unit).unwrap_or(UNITS.len() - 1);
    let small = UNITS.get(largest(seconds) + 1).map_or(1, |(unit, _)| *unit);
    let seconds = seconds.div_ceil(small).saturating_mul(small);
    let first = largest(seconds);
    let (large, name) = UNITS[first];
    match UNITS.get(first + 1) {
        Some((small, smaller)) if seconds % large >= *small => {
            format!("{} {name} {} {smaller}", seconds / large, seconds % large / small)
        }
        _ => format!("{} {name}", seconds / large),
    }
}

const UNITS: [(u64, &str); 4] = [(86_400, "d"), (3600, "h"), (60, "min"), (1, "s")];

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

/// Whether it holds no more.
pub(crate) fn is_over(switch: &ModeSetting, now: DateTime<Utc>) -> bool {
    switch.until.is_some_and(|until| until <= now)
}

/// A mode, how long it holds, and why; once it is over, what holds otherwise.
pub(crate) fn switch(switch: &ModeSetting, otherwise: &str, now: DateTime<Utc>) -> String {
    if is_over(switch, now) {
        return format!("{otherwise} ({} is over)", switch.mode);
    }
    let reason = switch.reason.as_deref().filter(|reason| !reason.is_empty());
    let reason = reason.map_or_else(String::new, |reason| format!(": {}", plain(reason)));
    format!("{}{}{reason}", switch.mode, ending(switch.until, now))
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
            ("250ms", "250 ms"),
            ("1s", "1000 ms"),
            ("1s 210ms", "1.3 s"),
            ("90s", "1 min 30 s"),
            ("1h", "1 h"),
            ("1h 30min", "1 h 30 min"),
            ("1d", "1 d"),
            (" 2µs 1.5h ", "1 h 30 min"),
            ("25h 1s", "1 d 2 h"),
            ("23h 59min 1s", "1 d"),
            ("59min 59s", "59 min 59 s"),
        ] {
            assert_eq!(span(parse(text).unwrap()), shown);
        }
        assert_eq!(span(Duration::MAX), "never");
        assert_eq!(span(Duration::from_micros(9_999_999)), "10.0 s");
        for wrong in ["", " ", "1", "1 hour x", "h", "-1s", "1s 2", "18446744073709551615s 1000ms"] {
            assert!(parse(wrong).unwrap_err().contains("1h"), "{wrong}");
        }
    }

    #[test]
    fn relative_end_is_past_once_its_time_is_reached() {
        let now = DateTime::UNIX_EPOCH;
        let end = after(Duration::from_secs(300), now).unwrap();
        assert_eq!(end - now, TimeDelta::minutes(5));
        assert!(after(Duration::MAX, now).is_err());
        let mut set = ModeSetting::default();
        assert!(!is_over(&set, end), "it has no end");
        set.until = Some(end);
        for (then, over) in [(now, false), (end - TimeDelta::nanoseconds(1), false), (end, true)] {
            assert_eq!(is_over(&set, then), over, "at {then}");
        }
        assert!(ending(set.until, now).ends_with(" (in 5 min)"));
    }
}
