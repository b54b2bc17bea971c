//! Recognizes answers that refuse because of too many requests.

use http::{HeaderMap, StatusCode};

use super::{HeaderPreset, retry_after, sent_at, text};
use crate::client::upstream_response::is_overload;
use tollgate::Throttle;

/// Returns the throttle of a refusal: no tokens left until the stated time, combined with what the presets read.
pub(in crate::client) fn refusal(
    headers: &HeaderMap,
    reported: Option<Throttle>,
    presets: &[HeaderPreset],
) -> Throttle {
    let sent = sent_at(headers);
    let until = match retry_after(headers, sent) {
        Some(span) => Some(Throttle::retry_after(span)),
        // A limit that reads its own policy must not wait for another policy of the field.
        None if presets.iter().any(|preset| matches!(preset, HeaderPreset::Policy(_))) => None,
        None => HeaderPreset::RateLimit.read(headers, sent),
    };
    [reported, until].into_iter().flatten().fold(Throttle::remaining(0), Throttle::and)
}

/// Whether an answer refuses because of too many requests.
pub(in crate::client) fn is_refusal(status: StatusCode, headers: &HeaderMap, presets: &[HeaderPreset]) -> bool {
    match status {
        StatusCode::TOO_MANY_REQUESTS => true,
        status if is_overload(status) => retry_after(headers, sent_at(headers)).is_some(),
        // A gRPC answer with only a head, which has the refusal's status. Messages that are too large get the same
        // status, but without `Retry-After`.
        StatusCode::OK if is_exhausted(headers) => retry_after(headers, sent_at(headers)).is_some(),
        // GitHub refuses with 403. From other upstreams, or without these headers, 403 means that the request is
        // forbidden.
        StatusCode::FORBIDDEN => {
            presets.contains(&HeaderPreset::XRateLimit) && {
                let sent = sent_at(headers);
                let reported = HeaderPreset::XRateLimit.read(headers, sent);
                retry_after(headers, sent).is_some()
                    || reported.and_then(|reported| reported.get_remaining()) == Some(0)
            }
        }
        _ => false,
    }
}

/// Whether the gRPC status is `RESOURCE_EXHAUSTED`.
fn is_exhausted(headers: &HeaderMap) -> bool {
    text(headers, "grpc-status") == Some("8")
}
