//! Answers that say that too many requests were sent.

use http::{HeaderMap, StatusCode};

use super::{HeaderPreset, retry_after, sent_at, text};
use crate::client::answer::is_overload;
use tollgate::Throttle;

/// Nothing is left, for as long as a refusal says, and what was said beside.
pub(in crate::client) fn refusal(headers: &HeaderMap, said: Option<Throttle>, presets: &[HeaderPreset]) -> Throttle {
    let sent = sent_at(headers);
    let until = match retry_after(headers, sent) {
        Some(span) => Some(Throttle::retry_after(span)),
        // What is said of another policy holds none back whose own one is read.
        None if presets.iter().any(|preset| matches!(preset, HeaderPreset::Policy(_))) => None,
        None => HeaderPreset::RateLimit.read(headers, sent),
    };
    [said, until].into_iter().flatten().fold(Throttle::remaining(0), Throttle::and)
}

/// Whether an answer says that too many requests were sent.
pub(in crate::client) fn is_refusal(status: StatusCode, headers: &HeaderMap, presets: &[HeaderPreset]) -> bool {
    match status {
        StatusCode::TOO_MANY_REQUESTS => true,
        status if is_overload(status) => retry_after(headers, sent_at(headers)).is_some(),
        // A gRPC answer that has nothing but a head, and refuses in it. Also messages that are too large are answered so, but
        // those are not worth repeating later.
        StatusCode::OK if is_exhausted(headers) => retry_after(headers, sent_at(headers)).is_some(),
        // GitHub's. Of others, and without these headers, it is that somebody may not do that.
        StatusCode::FORBIDDEN => {
            presets.contains(&HeaderPreset::XRateLimit) && {
                let sent = sent_at(headers);
                let said = HeaderPreset::XRateLimit.read(headers, sent);
                retry_after(headers, sent).is_some() || said.and_then(|said| said.remaining_tokens()) == Some(0)
            }
        }
        _ => false,
    }
}

/// `RESOURCE_EXHAUSTED`.
fn is_exhausted(headers: &HeaderMap) -> bool {
    text(headers, "grpc-status") == Some("8")
}
