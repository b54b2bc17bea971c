//! `Retry-After`, and `RateLimit` with `RateLimit-Policy` by draft-ietf-httpapi-ratelimit-headers-11.

use std::fmt::Write;
use std::time::Duration;

use http::header::{CACHE_CONTROL, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use tollgate::{Decision, Mode, Quota, Rule, model::Source};

/// Which answers have the headers `RateLimit` and `RateLimit-Policy`. Denials have `Retry-After` in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum RateLimitHeaders {
    /// Denials and what is served.
    Always,
    /// Denials.
    #[default]
    OnDenials,
    /// None.
    Never,
}

/// Tells when to come again, and that no cache keeps the answer, unless that is said already.
pub(super) fn set_refused(headers: &mut HeaderMap, seconds: Option<u64>) {
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    if let Some(seconds) = seconds {
        headers.entry(RETRY_AFTER).or_insert_with(|| seconds.into());
    }
}

/// Adds what is left under a limit beside what it keeps for others, and until when, unless another one denied the request.
pub(super) fn add_rate_limit(
    headers: &mut HeaderMap,
    limit: &str,
    required_remaining: u64,
    decision: &Decision,
    denied: bool,
) {
    let mut item = string(limit);
    let left = if is_blocked(decision) { 0 } else { decision.remaining().saturating_sub(required_remaining) };
    // Infallible, as any writing to a String.
    let _ = write!(item, ";r={}", left.min(MAX_SF_INTEGER));
    // How long what is left must last; when there is none, or too little, when there is enough again.
    let until = if decision.is_granted() && left > 0 { decision.reset_after() } else { decision.retry_after() };
    // `Retry-After` should be no earlier than the end of any window beside it, and is when the limits that deny do no more: where
    // there is none, never.
    let is_said = !decision.is_granted() || !(denied || headers.contains_key(RETRY_AFTER));
    if let Some(seconds) = whole_seconds(until).filter(|_| is_said) {
        let _ = write!(item, ";t={seconds}");
    }
    add(headers, RATE_LIMIT, &item);
}

/// Whether a limit granted, of which there is something to say then: not a mode or a fallback, and not where there is none.
pub(super) fn is_limited(granted: &Decision) -> bool {
    granted.mode() == Mode::Enforce && granted.source() != Source::Fallback && granted.remaining() != u64::MAX
}

/// Whether it is denied whatever the tokens, so that those that are left are of no use.
pub(super) fn is_blocked(decision: &Decision) -> bool {
    !decision.is_granted() && decision.mode() == Mode::Block
}

/// Adds the terms of a limit: those that ruled it, which may be a plan's or an override's. Where nobody asked for it they are
/// those that the request states, if it does.
///
/// What is kept for others is no part of them. The window stays: a quota that refills by and by has these tokens sooner, and
/// one that refills at once has not.
pub(super) fn add_policy(
    headers: &mut HeaderMap,
    limit: &str,
    unit: Option<&str>,
    rule: &Rule,
    required_remaining: u64,
    decision: &Decision,
) {
    let (quota, window) = match (decision.capacity().zip(decision.refill_time()), rule) {
        (Some(ruled), _) => ruled,
        (None, Rule::Quota(quota)) if *quota != Quota::unlimited() => (quota.capacity(), quota.refill_time()),
        (None, Rule::Window(window)) => (window.max_requests(), window.interval()),
        _ => return,
    };
    let mut item = string(limit);
    let _ = write!(item, ";q={}", quota.saturating_sub(required_remaining).min(MAX_SF_INTEGER));
    if let Some(unit) = unit {
        let _ = write!(item, ";qu={}", string(unit));
    }
    // There are no shorter ones in the draft, and a longer one would state a lower rate.
    if window >= Duration::from_secs(1) && window != Duration::MAX {
        // Each token may take up to a nanosecond longer than was asked for, and all of them a thousandth.
        let longer = u128::from(quota.max(1)).min(window.as_nanos() / 1000);
        let seconds = window.as_secs() + u64::from(u128::from(window.subsec_nanos()) >= longer);
        let _ = write!(item, ";w={}", seconds.min(MAX_RETRY_AFTER_SECONDS));
    }
    add(headers, RATE_LIMIT_POLICY, &item);
}

/// Rounded up, and 1 at least: who comes again earlier is denied again. `None`: never.
pub(super) fn whole_seconds(span: Duration) -> Option<u64> {
    let seconds = span.as_secs().saturating_add(u64::from(span.subsec_nanos() > 0));
    (span != Duration::MAX).then_some(seconds.clamp(1, MAX_RETRY_AFTER_SECONDS))
}

/// A structured field's string. It has only printable ASCII: the bytes of anything else are written as in a URL.
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
        // A layer further inside may have added its own: these are lists.
        headers.append(name, value);
    }
}

pub(super) const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
pub(super) const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
/// A structured field's integers have 15 digits.
const MAX_SF_INTEGER: u64 = 999_999_999_999_999;
/// 31 years: more than any client keeps, and less than any overflows.
const MAX_RETRY_AFTER_SECONDS: u64 = 999_999_999;
