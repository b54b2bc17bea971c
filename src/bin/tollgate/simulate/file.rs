//! Arrivals that a file lists.

use std::io::{BufRead, BufReader, Read as _};
use std::path::Path;

use anyhow::{Context, ensure};
use chrono::DateTime;

use super::traffic::{Arrival, Traffic};

/// Reads a file, or with `-` what is piped in.
pub(crate) fn read(path: &Path) -> anyhow::Result<Traffic> {
    let name = path.display();
    let arrivals = if path == Path::new("-") {
        parse(std::io::stdin().lock())
    } else {
        let file = std::fs::File::open(path).with_context(|| format!("cannot read the traffic file {name}"))?;
        parse(BufReader::new(file))
    };
    arrivals.and_then(in_order).with_context(|| format!("the traffic file {name}"))
}

/// From the first arrival to the last.
///
/// An access log is written when answers end, so its lines are not quite in order.
fn in_order(mut arrivals: Vec<Arrival>) -> anyhow::Result<Traffic> {
    arrivals.sort_by_key(|arrival| arrival.at);
    let (begin, last) =
        arrivals.first().zip(arrivals.last()).map(|(first, last)| (first.at, last.at)).context("no arrival")?;
    // A span that anything can be drawn in.
    let end = last.max(begin + 1_000_000);
    Ok(Traffic { arrivals, begin, end })
}

fn parse(mut lines: impl BufRead) -> anyhow::Result<Vec<Arrival>> {
    let (mut arrivals, mut bytes) = (Vec::new(), Vec::new());
    for number in 1_u64.. {
        bytes.clear();
        // What is no log need not have lines at all.
        if lines.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut bytes)? == 0 {
            break;
        }
        ensure!((bytes.len() as u64) < LONGEST_LINE, "line {number} has {LONGEST_LINE} bytes or more");
        // A log holds what clients send, which need not be UTF-8.
        let line = String::from_utf8_lossy(&bytes);
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        ensure!(arrivals.len() < MOST_ARRIVALS, "more than {MOST_ARRIVALS} arrivals: give a part of it");
        arrivals.push(arrival(line).with_context(|| {
            let shown: String = line.chars().filter(|c| !c.is_control()).take(60).collect();
            format!("line {number}, '{shown}'")
        })?);
    }
    Ok(arrivals)
}

/// A time and perhaps a cost, or a line of an access log.
fn arrival(line: &str) -> anyhow::Result<Arrival> {
    let words: Vec<&str> = line.split_whitespace().take(3).collect();
    let at = words.first().and_then(|word| instant(word));
    match (at, &words[1..]) {
        (Some(at), []) => Ok(Arrival { at, cost: 1 }),
        (Some(at), [cost]) => {
            let cost = cost.parse().ok().filter(|cost| (1..=LARGEST_COST).contains(cost));
            Ok(Arrival { at, cost: cost.context("the cost is no whole number from 1 to 3155760000000000000")? })
        }
        _ => Ok(Arrival { at: logged(line).context("it says no time")?, cost: 1 }),
    }
}

/// Seconds since 1970 or since whenever, or an RFC 3339 timestamp.
fn instant(word: &str) -> Option<i64> {
    if let Ok(time) = DateTime::parse_from_rfc3339(word) {
        return in_range(time.timestamp_nanos_opt()?);
    }
    let (whole, fraction) = word.split_once('.').unwrap_or((word, ""));
    if whole.is_empty() || !word.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') || fraction.contains('.') {
        return None;
    }
    // Decimals are read as such: no float holds the nanoseconds of this century.
    let nanoseconds = format!("{fraction:0<9}").get(..9)?.parse::<i64>().ok()?;
    in_range(whole.parse::<i64>().ok()?.checked_mul(1_000_000_000)?.checked_add(nanoseconds)?)
}

/// The time of a line in the common or combined log format: `… [10/Oct/2026:13:55:36 +0200] …`.
fn logged(line: &str) -> Option<i64> {
    let time = line.split_once('[')?.1.split_once(']')?.0;
    let time = DateTime::parse_from_str(time, "%d/%b/%Y:%H:%M:%S %z").ok()?;
    in_range(time.timestamp_nanos_opt()?)
}

fn in_range(at: i64) -> Option<i64> {
    (0..YEAR_2150).contains(&at).then_some(at)
}

/// More than a picture or a person can use, and as many as fit in some hundred megabytes.
pub(crate) const MOST_ARRIVALS: usize = 10_000_000;

/// Longer than a server lets the head of a request be.
const LONGEST_LINE: u64 = 1 << 20;

/// What the largest bucket holds.
const LARGEST_COST: u64 = 3_155_760_000_000_000_000;

/// The arithmetic of buckets ends in 2160.
const YEAR_2150: i64 = 5_680_281_600_000_000_000;

pub(crate) const FORMS: &str = "a line is a time since 1970 or an RFC 3339 timestamp, and perhaps a cost ('0.25', '12.5 3', \
                     '2026-10-10T13:55:36Z'), or a line of an access log in the common format";

#[cfg(test)]
mod tests {
    use super::*;

    fn traffic(text: &str) -> anyhow::Result<Traffic> {
        parse(text.as_bytes()).and_then(in_order)
    }

    fn times(text: &str) -> Vec<(i64, u64)> {
        traffic(text).expect(text).arrivals.iter().map(|arrival| (arrival.at, arrival.cost)).collect()
    }

    #[test]
    fn seconds_are_read_to_the_nanosecond() {
        assert_eq!(
            times("0\n0.25 3\n1700000000.000000001"),
            [(0, 1), (250_000_000, 3), (1_700_000_000_000_000_001, 1)]
        );
    }

    #[test]
    fn timestamps_and_access_logs_are_instants() {
        let line = r#"127.0.0.1 - frank [10/Oct/2000:13:55:36 -0700] "GET /a.gif HTTP/1.0" 200 2326 "-" "curl""#;
        assert_eq!(times(line), times("2000-10-10T20:55:36Z"));
        assert_eq!(times(line), [(971_211_336_000_000_000, 1)]);
    }

    #[test]
    fn arrivals_are_put_in_order_and_comments_left_out() {
        let traffic = traffic("# a comment\n3\n\n1\n2\n").expect("traffic");
        assert_eq!((traffic.begin, traffic.end), (1_000_000_000, 3_000_000_000));
        assert!(traffic.arrivals.is_sorted_by_key(|arrival| arrival.at));
    }

    #[test]
    fn a_line_that_says_no_time_is_named() {
        for (text, expected) in [
            ("1\nsoon", "line 2, 'soon'"),
            ("1 0", "line 1, '1 0'"),
            ("1 3155760000000000001", "from 1 to 3155760000000000000"),
            ("1 18446744073709551615", "from 1 to 3155760000000000000"),
            ("-1", "line 1"),
            ("1.2.3", "line 1"),
            ("99999999999", "line 1"),
            ("\x1b[31m", "line 1, '[31m'"),
            ("# nothing", "no arrival"),
        ] {
            let error = format!("{:#}", traffic(text).expect_err(text));
            assert!(error.contains(expected), "{error}");
        }
    }
}
