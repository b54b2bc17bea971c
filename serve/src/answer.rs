//! The protocol's answer to a decided request.

use std::time::Duration;

use bytes::Bytes;
use http::Response;

use crate::config::Unit;
use crate::gate::{Status, Verdict};
use crate::proto::envoy::config::core::v3::HeaderValue;
use crate::proto::envoy::service::ratelimit::v3::RateLimitResponse;
use crate::proto::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit as AnsweredUnit;
use crate::proto::envoy::service::ratelimit::v3::rate_limit_response::{Code, DescriptorStatus, RateLimit};

impl From<Verdict> for RateLimitResponse {
    fn from(verdict: Verdict) -> Self {
        let overall_code = code(verdict.is_denied);
        let (headers, raw_body) = verdict.refusal.as_ref().map_or_else(Default::default, refused);
        let metadata = (!verdict.metadata.is_empty()).then(|| {
            let nested = [("metadata".to_owned(), serde_json::Value::Object(verdict.metadata))];
            structure(nested.into_iter().collect())
        });
        Self {
            overall_code,
            statuses: verdict.statuses.into_iter().map(DescriptorStatus::from).collect(),
            response_headers_to_add: headers,
            request_headers_to_add: Vec::new(),
            raw_body,
            dynamic_metadata: metadata,
        }
    }
}

impl From<Status> for DescriptorStatus {
    fn from(status: Status) -> Self {
        let limit = status.limit.map(|(requests_per_unit, unit, name)| RateLimit {
            requests_per_unit,
            unit: unit.map_or(AnsweredUnit::Unknown, AnsweredUnit::from).into(),
            name: name.unwrap_or_default(),
        });
        // The proxy makes `Retry-After` of it.
        let reset = if status.is_over { status.reset.map(whole_seconds) } else { status.reset };
        Self {
            code: code(status.is_over),
            current_limit: limit,
            limit_remaining: status.remaining.map_or(0, |left| u32::try_from(left).unwrap_or(u32::MAX)),
            duration_until_reset: reset.map(duration),
        }
    }
}

impl From<Unit> for AnsweredUnit {
    fn from(unit: Unit) -> Self {
        match unit {
            Unit::Second => Self::Second,
            Unit::Minute => Self::Minute,
            Unit::Hour => Self::Hour,
            Unit::Day => Self::Day,
            Unit::Week => Self::Week,
            Unit::Month => Self::Month,
            Unit::Year => Self::Year,
        }
    }
}

fn code(is_over: bool) -> i32 {
    if is_over { Code::OverLimit.into() } else { Code::Ok.into() }
}

/// The headers and the body of a refusal.
fn refused(refusal: &Response<Bytes>) -> (Vec<HeaderValue>, Vec<u8>) {
    let header = |(name, value): (&http::HeaderName, &http::HeaderValue)| HeaderValue {
        key: name.as_str().to_owned(),
        value: String::from_utf8_lossy(value.as_bytes()).into_owned(),
        raw_value: Vec::new(),
    };
    (refusal.headers().iter().map(header).collect(), refusal.body().to_vec())
}

/// Rounds up, to at least one second: an earlier request is denied again.
fn whole_seconds(span: Duration) -> Duration {
    Duration::from_secs(span.as_secs().saturating_add(u64::from(span.subsec_nanos() > 0)).max(1))
}

/// The protocol's seconds end in the year 11,970.
fn duration(span: Duration) -> pbjson_types::Duration {
    let seconds = i64::try_from(span.as_secs()).unwrap_or(i64::MAX).min(MAX_SECONDS);
    pbjson_types::Duration { seconds, nanos: i32::try_from(span.subsec_nanos()).unwrap_or_default() }
}

const MAX_SECONDS: i64 = 315_576_000_000;

fn structure(map: serde_json::Map<String, serde_json::Value>) -> pbjson_types::Struct {
    pbjson_types::Struct { fields: map.into_iter().map(|(key, value)| (key, metadata_value(value))).collect() }
}

fn metadata_value(value: serde_json::Value) -> pbjson_types::Value {
    use pbjson_types::value::Kind;
    use serde_json::Value;

    let kind = match value {
        Value::Null => Kind::NullValue(0),
        Value::Bool(value) => Kind::BoolValue(value),
        Value::Number(value) => Kind::NumberValue(value.as_f64().unwrap_or_default()),
        Value::String(value) => Kind::StringValue(value),
        Value::Array(values) => {
            Kind::ListValue(pbjson_types::ListValue { values: values.into_iter().map(metadata_value).collect() })
        }
        Value::Object(map) => Kind::StructValue(structure(map)),
    };
    pbjson_types::Value { kind: Some(kind) }
}
