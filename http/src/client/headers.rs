//! What third parties say of their limits, in the headers of their answers. Whatever is malformed, or longer than anybody
//! writes it, is as if it were absent.

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

/// Reads what an answer of an upstream says of its limit, if it says anything.
///
/// Of a refusal it reads `Retry-After`, or else `RateLimit`. Refusals are 429, what a preset states to be one, and with
/// `Retry-After` also 503, 529 and gRPC's `RESOURCE_EXHAUSTED` in the head. Of every answer it reads the headers of `presets`.
/// Malformed headers count as absent. [`ClientLimit`](crate::ClientLimit) does this by itself.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use http::{HeaderMap, HeaderValue, StatusCode};
/// use tollgate_http::read_throttle;
///
/// let mut headers = HeaderMap::new();
/// headers.insert("retry-after", HeaderValue::from_static("30"));
/// let hold = read_throttle(StatusCode::TOO_MANY_REQUESTS, &headers, &[]);
/// assert_eq!(hold.map(|hold| hold.wait()), Some(Duration::from_secs(30)));
/// assert_eq!(read_throttle(StatusCode::OK, &headers, &[]), None);
/// ```
#[must_use = "give it to a limiter, if there is one"]
pub fn read_throttle(status: StatusCode, headers: &HeaderMap, presets: &[HeaderPreset]) -> Option<Throttle> {
    let said = said(headers, presets);
    if is_refusal(status, headers, presets) { Some(refusal(headers, said, presets)) } else { said }
}

/// What is left, by the headers of these presets.
pub(super) fn said(headers: &HeaderMap, presets: &[HeaderPreset]) -> Option<Throttle> {
    let sent = sent_at(headers);
    presets.iter().filter_map(|preset| preset.read(headers, sent)).reduce(Throttle::and)
}

/// When it was sent, by the third party's clock if it says so: then this host's makes no difference.
fn sent_at(headers: &HeaderMap) -> SystemTime {
    let date = text(headers, DATE.as_str()).and_then(|date| httpdate::parse_http_date(date).ok());
    date.unwrap_or_else(SystemTime::now)
}

/// Seconds or a date; milliseconds, of those who send them, are more exact.
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

/// Whether it comes from a cache: what it says of limits is of another request, and of before.
fn is_cached(headers: &HeaderMap) -> bool {
    text(headers, AGE.as_str()).and_then(parsers::whole).is_some_and(|seconds| seconds > 0)
}

/// So many are left, or none, and one comes only then.
fn left(remaining: u64, next: impl FnOnce() -> Option<Duration>) -> Throttle {
    let hold = Throttle::remaining(remaining);
    match (remaining, next) {
        (0, next) => next().map_or(hold, |next| hold.and(Throttle::retry_after(next))),
        _ => hold,
    }
}

/// The first line of a header.
fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    lines(headers, name).next()
}

/// All of its lines: several limits may have said it, of which the strictest counts.
fn lines<'a>(headers: &'a HeaderMap, name: &str) -> impl Iterator<Item = &'a str> + use<'a> {
    let lines = headers.get_all(name);
    let is_read = lines.iter().map(HeaderValue::len).sum::<usize>() <= MAX_FIELD_BYTES;
    lines.into_iter().filter(move |_| is_read).filter_map(|line| line.to_str().ok()).map(str::trim)
}

/// Nobody writes a field of so many bytes, and a parser would take a hundred times their memory.
const MAX_FIELD_BYTES: usize = 8 * 1024;

#[cfg(test)]
mod tests;
