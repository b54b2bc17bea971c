//! Headers `Retry-After`, `RateLimit` and `RateLimit-Policy` (draft-ietf-httpapi-ratelimit-headers-11), and the older
//! `X-RateLimit-…`.

use std::fmt::Write;
use std::time::{Duration, SystemTime};

use http::header::{CACHE_CONTROL, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use tollgate::{
    Decision, Mode, Quota, Rule,
    model::{Refill, Source},
};

/// Which answers have the headers `RateLimit` and `RateLimit-Policy`, and [`X-RateLimit-…`](super::RateLimitLayer::x_headers).
///
/// Denials have `Retry-After` with each of these values. Default: [`OnDenials`](Self::OnDenials).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum RateLimitHeaders {
    /// Denials and granted requests.
    Always,
    /// Denials only.
    #[default]
    OnDenials,
    /// No answers.
    Never,
}

/// Adds `Retry-After` and `Cache-Control: no-store`, unless the answer has its own.
pub(super) fn set_refused(headers: &mut HeaderMap, seconds: Option<u64>) {
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    if let Some(seconds) = seconds {
        headers.entry(RETRY_AFTER).or_insert_with(|| seconds.into());
    }
}

/// Adds `RateLimit`: the tokens left beyond the minimum remaining, and until when. A limit that granted has no `t` if
/// another limit denied the request.
pub(super) fn add_rate_limit(
    headers: &mut HeaderMap,
    limit: &str,
    required_remaining: u64,
    decision: &Decision,
    denied: bool,
) {
    let mut item = string(limit);
    let (left, until) = left(decision, required_remaining);
    // Writing to a `String` cannot fail.
    let _ = write!(item, ";r={}", left.min(MAX_SF_INTEGER));
    // By the draft, `Retry-After` should not precede the end of a reported window. Here it is the time of the limits that
    // denied, so a limit that granted states no `t` in a denial.
    let shows_reset = !decision.is_granted() || !(denied || headers.contains_key(RETRY_AFTER));
    if let Some(seconds) = until.map(whole_seconds).filter(|_| shows_reset) {
        let _ = write!(item, ";t={seconds}");
    }
    add(headers, RATE_LIMIT, &item);
}

/// The tokens left beyond the minimum remaining, and the time that they must last. If too few are left, it is the time until enough
/// are available.
fn left(decision: &Decision, required_remaining: u64) -> (u64, Option<Duration>) {
    let remaining = decision.remaining().unwrap_or(u64::MAX);
    let left = if is_blocked(decision) { 0 } else { remaining.saturating_sub(required_remaining) };
    if !decision.is_granted() || left == 0 {
        return (left, decision.retry_after());
    }
    // After a refund, the bucket can be full. It gets no more tokens then.
    (left, decision.reset_after().filter(|until| !until.is_zero()))
}

/// Adds the headers `X-RateLimit-…` of the limit that decided, unless an inner layer has added them.
pub(super) fn add_x_rate_limit(headers: &mut HeaderMap, rule: &Rule, required_remaining: u64, decision: &Decision) {
    let (left, until) = left(decision, required_remaining);
    if headers.contains_key(X_RATE_LIMIT_REMAINING) {
        return;
    }
    headers.insert(X_RATE_LIMIT_REMAINING, left.into());
    if let Some((quota, _)) = effective_limit(rule, decision) {
        headers.insert(X_RATE_LIMIT_LIMIT, quota.saturating_sub(required_remaining).into());
    }
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).ok();
    if let (Some(seconds), Some(now)) = (until.map(whole_seconds), now) {
        headers.insert(X_RATE_LIMIT_RESET, (now.as_secs() + seconds).into());
    }
}

/// Whether a limit granted the request, as opposed to a mode, a fallback or an unlimited quota.
pub(super) fn is_limited(granted: &Decision) -> bool {
    granted.mode() == Mode::Enforce && granted.source() != Source::Fallback && granted.remaining().is_some()
}

/// Whether the mode denied the request, so that the tokens left are of no use.
pub(super) fn is_blocked(decision: &Decision) -> bool {
    !decision.is_granted() && decision.mode() == Mode::Block
}

/// Adds `RateLimit-Policy`: the effective limit, after plans and overrides. If the store was not asked, the limit is
/// the request's own, if it has one.
///
/// The policy omits the minimum remaining but keeps the window. With a continuous quota, the client's tokens return
/// sooner.
pub(super) fn add_policy(
    headers: &mut HeaderMap,
    limit: &str,
    unit: Option<&str>,
    rule: &Rule,
    required_remaining: u64,
    decision: &Decision,
) {
    let Some((quota, window)) = effective_limit(rule, decision) else { return };
    let mut item = string(limit);
    let _ = write!(item, ";q={}", quota.saturating_sub(required_remaining).min(MAX_SF_INTEGER));
    if let Some(unit) = unit {
        let _ = write!(item, ";qu={}", string(unit));
    }
    // The draft has no windows under a second, and rounding up to a second would state a lower rate.
    if let Some(window) = window.filter(|window| *window >= Duration::from_secs(1)) {
        // The refill time can exceed the requested window by a nanosecond per token, but by a thousandth at most. Such an
        // excess must not add a second.
        let min_fraction = u128::from(quota.max(1)).min(window.as_nanos() / 1000);
        let seconds = window.as_secs() + u64::from(u128::from(window.subsec_nanos()) >= min_fraction);
        let _ = write!(item, ";w={}", seconds.min(MAX_RETRY_AFTER_SECONDS));
    }
    add(headers, RATE_LIMIT_POLICY, &item);
}

/// The quota and its window, if it has one: those of the decision, or the request's own.
fn effective_limit(rule: &Rule, decision: &Decision) -> Option<(u64, Option<Duration>)> {
    match (decision.capacity(), rule) {
        (Some(capacity), _) => Some((capacity, decision.refill_time())),
        (None, Rule::Quota(quota)) if *quota != Quota::unlimited() => {
            Some((quota.capacity(), Some(quota.refill_time()).filter(|_| quota.refill() != Refill::Once)))
        }
        (None, Rule::Window(window)) => Some((window.max_requests(), Some(window.interval()))),
        _ => None,
    }
}

/// Rounds up to whole seconds, at least 1, because an earlier retry is denied again.
pub(super) fn whole_seconds(span: Duration) -> u64 {
    let seconds = span.as_secs().saturating_add(u64::from(span.subsec_nanos() > 0));
    seconds.clamp(1, MAX_RETRY_AFTER_SECONDS)
}

/// Quotes a string for a structured field, which allows only printable ASCII. Percent-encodes other bytes.
fn string(text: &str) -> String {
    let mut string = String::from('"');
    for byte in text.bytes() {
        match byte {
            b'"' | b'\\' => string.extend(['\\', char::from(byte)]),
            b' '..=b'~' => string.push(char::from(byte)),
            other => {
                let _ = write!(string, "%{other:02X}");
            }
        }
    }
    string.push('"');
    string
}

fn add(headers: &mut HeaderMap, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        // Appends, because an inner layer can have added the same header, which is a list.
        headers.append(name, value);
    }
}

pub(super) const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
pub(super) const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const X_RATE_LIMIT_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const X_RATE_LIMIT_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const X_RATE_LIMIT_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");
/// Integers in structured fields have at most 15 digits.
const MAX_SF_INTEGER: u64 = 999_999_999_999_999;
/// 31 years, which no client's arithmetic overflows.
const MAX_RETRY_AFTER_SECONDS: u64 = 999_999_999;
