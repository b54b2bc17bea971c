//! Arrivals from a file.

use std::io::{BufRead, BufReader, IsTerminal as _, Read as _};
use std::path::Path;

use anyhow::{Context, ensure};
use chrono::DateTime;
use indicatif::ProgressBar;

use super::clients::ClientNames;
use super::traffic::{Arrival, Traffic};
use crate::output::progress;
use crate::text::plain;

/// How to read a traffic file.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TrafficOptions {
    /// Each line must name its client.
    pub(crate) by_client: bool,
    /// Invalid lines are counted and skipped.
    pub(crate) skip_unreadable: bool,
}

/// The parsed lines of a file.
#[derive(Default)]
struct Lines {
    arrivals: Vec<Arrival>,
    clients: ClientNames,
    skipped: u64,
}

/// Reads a file, or standard input for `-`.
pub(crate) fn read(path: &Path, options: TrafficOptions) -> anyhow::Result<Traffic> {
    let name = path.display();
    let traffic = if path == Path::new("-") {
        // Shows no spinner on a terminal, because it would overwrite the typed lines.
        let bar = (!std::io::stdin().is_terminal()).then(|| progress("reading"));
        let traffic = parse(std::io::stdin().lock(), options).and_then(in_order);
        bar.inspect(ProgressBar::finish_and_clear);
        traffic
    } else {
        let file = std::fs::File::open(path).with_context(|| format!("cannot read the traffic file {name}"))?;
        let bar = progress(format!("reading {}", plain(&name.to_string())));
        let traffic = parse(BufReader::new(file), options).and_then(in_order);
        bar.finish_and_clear();
        traffic
    };
    traffic.with_context(|| format!("the traffic file {name}"))
}

/// Sorts the arrivals, because an access log is ordered by the end of each response.
fn in_order(Lines { mut arrivals, clients, skipped }: Lines) -> anyhow::Result<Traffic> {
    arrivals.shrink_to_fit();
    arrivals.sort_by_key(|arrival| arrival.at);
    let (begin, last) =
        arrivals.first().zip(arrivals.last()).map(|(first, last)| (first.at, last.at)).context("no arrival")?;
    // At least a millisecond, so that a picture has a time axis.
    let end = last.max(begin + 1_000_000);
    Ok(Traffic { arrivals, begin, end, clients: clients.into_keys(), skipped })
}

fn parse(mut lines: impl BufRead, options: TrafficOptions) -> anyhow::Result<Lines> {
    let (mut parsed, mut bytes) = (Lines::default(), Vec::new());
    for number in 1_u64.. {
        bytes.clear();
        // Limits a line, because a file of another format may have no line breaks.
        if lines.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', &mut bytes)? == 0 {
            break;
        }
        ensure!((bytes.len() as u64) < MAX_LINE_BYTES, "line {number} has {MAX_LINE_BYTES} bytes or more");
        // A log contains bytes from clients, which may not be UTF-8.
        let line = String::from_utf8_lossy(&bytes);
        // A file from Windows may begin with a byte order mark.
        let line = if number == 1 { line.trim_start_matches('\u{feff}') } else { &line };
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        ensure!(parsed.arrivals.len() < MAX_ARRIVALS, "more than {MAX_ARRIVALS} arrivals: give a part of the file");
        let arrival = arrival(line, Some(&mut parsed.clients).filter(|_| options.by_client));
        if arrival.is_err() && options.skip_unreadable {
            parsed.skipped += 1;
            continue;
        }
        parsed.arrivals.push(arrival.with_context(|| {
            let shown: String = line.chars().filter(|c| !c.is_control()).take(60).collect();
            format!("line {number}, '{shown}'")
        })?);
    }
    Ok(parsed)
}

/// Parses a time with an optional cost and client, or a line of an access log, which begins with the client.
fn arrival(line: &str, clients: Option<&mut ClientNames>) -> anyhow::Result<Arrival> {
    let words: Vec<&str> = line.split_whitespace().take(4).collect();
    let at = words.first().and_then(|word| instant(word));
    let (at, cost, client) = match (at, &words[1..]) {
        (Some(at), []) => (at, 1, None),
        (Some(at), [cost, client @ ..]) if client.len() < 2 => {
            let cost = cost.parse().ok().filter(|cost| (1..=MAX_COST).contains(cost));
            let cost = cost.context("the cost is not a whole number from 1 to 3155760000000000000")?;
            (at, cost, client.first())
        }
        _ => (logged(line).context("the line has no time")?, 1, words.first()),
    };
    let client = clients.map(|clients| clients.place(client.context("the line names no client")?)).transpose()?;
    Ok(Arrival { at, cost, client: client.unwrap_or(0) })
}

/// Parses seconds since 1970 or any other origin, or an RFC 3339 timestamp.
fn instant(word: &str) -> Option<i64> {
    if let Ok(time) = DateTime::parse_from_rfc3339(word) {
        return in_range(time.timestamp_nanos_opt()?);
    }
    let (whole, fraction) = word.split_once('.').unwrap_or((word, ""));
    if whole.is_empty() || !word.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') || fraction.contains('.') {
        return None;
    }
    // Parses the decimals as integers, because a float cannot hold the nanoseconds of this century.
    let nanoseconds = format!("{fraction:0<9}").get(..9)?.parse::<i64>().ok()?;
    in_range(whole.parse::<i64>().ok()?.checked_mul(1_000_000_000)?.checked_add(nanoseconds)?)
}

/// Parses the time of a line in the common or combined log format: `… [10/Oct/2026:13:55:36 +0200] …`.
fn logged(line: &str) -> Option<i64> {
    let time = line.split_once('[')?.1.split_once(']')?.0;
    let time = DateTime::parse_from_str(time, "%d/%b/%Y:%H:%M:%S %z").ok()?;
    in_range(time.timestamp_nanos_opt()?)
}

fn in_range(at: i64) -> Option<i64> {
    (0..YEAR_2150).contains(&at).then_some(at)
}

/// Bounds the memory of a run to about a gigabyte.
pub(crate) const MAX_ARRIVALS: usize = 10_000_000;

/// Longer than the request header that servers accept.
const MAX_LINE_BYTES: u64 = 1 << 20;

/// The largest capacity of a bucket.
const MAX_COST: u64 = 3_155_760_000_000_000_000;

/// A bound below 2160, the end of the bucket arithmetic.
const YEAR_2150: i64 = 5_680_281_600_000_000_000;

pub(crate) const FORMS: &str = "a line is a time in seconds or an RFC 3339 timestamp, with an optional cost and client ('0.25', \
                     '12.5 3', '2026-10-10T13:55:36Z 1 user:42'). Or a line is from an access log in the common format. \
                     Use --skip-unreadable to skip other lines";

#[cfg(test)]
mod tests {
    use super::*;

    fn traffic(text: &str) -> anyhow::Result<Traffic> {
        parse(text.as_bytes(), TrafficOptions::default()).and_then(in_order)
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
    fn byte_order_mark_is_skipped_at_the_start_of_the_file() {
        assert_eq!(times("\u{feff}0\r\n0.25 3\r\n"), times("0\n0.25 3"));
        assert_eq!(times("\u{feff}# a comment\n1"), [(1_000_000_000, 1)]);
        let line = "10.0.0.1 - - [10/Oct/2000:13:55:36 -0700] \"GET / HTTP/1.0\" 200 2326\n";
        let options = TrafficOptions { by_client: true, skip_unreadable: false };
        let traffic = parse(format!("\u{feff}{line}{line}").as_bytes(), options).and_then(in_order).expect(line);
        assert_eq!(traffic.clients.iter().map(tollgate::Key::as_str).collect::<Vec<_>>(), ["10.0.0.1"]);
        assert!(parse("1\n\u{feff}2".as_bytes(), TrafficOptions::default()).is_err(), "skipped at the start only");
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
    fn line_without_a_time_is_named() {
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

    #[test]
    fn client_is_third_word_or_first_word_of_access_log() {
        let text = "2 1 b\n1 3 a\n3 1 b\n10.0.0.1 - - [10/Oct/2000:13:55:36 -0700] \"GET / HTTP/1.0\" 200 2326\n";
        let options = TrafficOptions { by_client: true, skip_unreadable: false };
        let traffic = parse(text.as_bytes(), options).and_then(in_order).expect(text);
        assert_eq!(traffic.clients.iter().map(tollgate::Key::as_str).collect::<Vec<_>>(), ["b", "a", "10.0.0.1"]);
        assert_eq!(traffic.arrivals.iter().map(|arrival| arrival.client).collect::<Vec<_>>(), [1, 0, 0, 2]);
        // Without `by_client`, all arrivals have the same client.
        assert_eq!(times("1 3 a\n2 1 b"), times("1 3\n2"));
        for text in ["1", "1 2", &format!("1 2 {}", "x".repeat(256))] {
            let error = parse(text.as_bytes(), options).map(|_| ()).expect_err(text);
            assert!(format!("{error:#}").contains("line 1, "), "{error:#}");
        }
    }

    #[test]
    fn invalid_lines_are_counted_if_skipping_is_allowed() {
        let options = TrafficOptions { by_client: false, skip_unreadable: true };
        let traffic =
            parse(&b"1\nsoon\n# a comment\n1 0\n2 1 a b\n3\n"[..], options).and_then(in_order).expect("traffic");
        assert_eq!((traffic.arrivals.len(), traffic.skipped), (2, 3));
        assert!(parse(&b"soon\n"[..], options).and_then(in_order).is_err(), "no arrivals are left");
    }
}
