//! Parses the rate limit headers of upstream answers. Headers that are malformed or unreasonably long count as absent.

use std::time::{Duration, SystemTime};

use http::header::{AGE, DATE, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, StatusCode};

use tollgate::Throttle;

mod parsers;
mod preset;
mod ratelimit;
mod refusal;

pub use preset::HeaderPreset;
pub(super) use refusal::{is_refusal, refusal};

/// Returns the throttle that an upstream's answer states, if it states one.
///
/// For a refusal, reads `Retry-After`, or `RateLimit` if `Retry-After` is absent. These answers are refusals:
///
/// - 429,
/// - 503, 529 and gRPC's `RESOURCE_EXHAUSTED` in the head, with `Retry-After`,
/// - answers that a preset defines as refusals.
///
/// For every answer, reads the headers of `presets`. Malformed headers count as absent.
/// [`ClientLimit`](crate::ClientLimit) calls this for you.
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use http::{HeaderMap, HeaderValue, StatusCode};
/// use tollgate_http::read_throttle;
///
/// let mut headers = HeaderMap::new();
/// headers.insert("retry-after", HeaderValue::from_static("30"));
/// let throttle = read_throttle(StatusCode::TOO_MANY_REQUESTS, &headers, &[]);
/// assert_eq!(throttle.map(|throttle| throttle.wait()), Some(Duration::from_secs(30)));
/// assert_eq!(read_throttle(StatusCode::OK, &headers, &[]), None);
/// ```
#[must_use = "give it to a limiter, if there is one"]
pub fn read_throttle(status: StatusCode, headers: &HeaderMap, presets: &[HeaderPreset]) -> Option<Throttle> {
    let reported = reported(headers, presets);
    if is_refusal(status, headers, presets) { Some(refusal(headers, reported, presets)) } else { reported }
}

/// Returns the tokens left, according to the headers of these presets.
pub(super) fn reported(headers: &HeaderMap, presets: &[HeaderPreset]) -> Option<Throttle> {
    let sent = sent_at(headers);
    presets.iter().filter_map(|preset| preset.read(headers, sent)).reduce(Throttle::and)
}

/// Returns when the answer was sent. Uses the upstream's clock if the answer has a `Date`, so that this host's clock
/// does not matter.
fn sent_at(headers: &HeaderMap) -> SystemTime {
    let date = text(headers, DATE.as_str()).and_then(|date| httpdate::parse_http_date(date).ok());
    date.unwrap_or_else(SystemTime::now)
}

/// Parses `Retry-After` in seconds or as a date. Milliseconds in `retry-after-ms` take precedence, because they are
/// more exact.
fn retry_after(headers: &HeaderMap, sent: SystemTime) -> Option<Duration> {
    let millis = lines(headers, "retry-after-ms").filter_map(parsers::decimal).max();
    let span = |text| {
        parsers::decimal(text).or_else(|| {
            let date = httpdate::parse_http_date(text).ok()?;
            Some(date.duration_since(sent).unwrap_or_default())
        })
    };
    let longest = || lines(headers, RETRY_AFTER.as_str()).filter_map(span).max();
    millis.map(|millis| millis / 1000).or_else(longest)
}

/// Whether the answer comes from a cache. Its headers then describe an earlier request.
fn is_cached(headers: &HeaderMap) -> bool {
    text(headers, AGE.as_str()).and_then(parsers::whole).is_some_and(|seconds| seconds > 0)
}

/// Returns a throttle for the tokens left. If none are left, adds the time until the next one.
fn throttle_of(remaining: u64, next: impl FnOnce() -> Option<Duration>) -> Throttle {
    let throttle = Throttle::remaining(remaining);
    match (remaining, next) {
        (0, next) => next().map_or(throttle, |next| throttle.and(Throttle::retry_after(next))),
        _ => throttle,
    }
}

/// Returns the first line of a header.
fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    lines(headers, name).next()
}

/// Iterates over all lines of a header. Several limits can write the same header, and the strictest line counts.
fn lines<'a>(headers: &'a HeaderMap, name: &str) -> impl Iterator<Item = &'a str> + use<'a> {
    let lines = headers.get_all(name);
    let is_read = lines.iter().map(HeaderValue::len).sum::<usize>() <= MAX_FIELD_BYTES;
    lines.into_iter().filter(move |_| is_read).filter_map(|line| line.to_str().ok()).map(str::trim)
}

/// Limits the memory of the parser, which takes a hundred times the bytes of a field. No upstream writes longer fields.
const MAX_FIELD_BYTES: usize = 8 * 1024;

#[cfg(test)]
mod tests;
