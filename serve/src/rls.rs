//! Envoy's rate limit service over gRPC.

use std::sync::Arc;
use std::time::Duration;

use tollgate::Error;
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status};

use crate::gate::{Gate, Unanswered};
use crate::problem::explained;
use crate::proto::envoy::service::ratelimit::v3::rate_limit_service_server::RateLimitService;
use crate::proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};

/// The service `envoy.service.ratelimit.v3.RateLimitService`.
#[derive(Clone)]
pub(crate) struct Rls(pub(crate) Arc<Gate>);

#[tonic::async_trait]
impl RateLimitService for Rls {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let time_left = time_left(request.metadata());
        let verdict = self.0.decide(request.into_inner(), time_left).await?;
        Ok(Response::new(verdict.into()))
    }
}

impl From<Unanswered> for Status {
    fn from(unanswered: Unanswered) -> Self {
        match unanswered {
            Unanswered::Invalid(message) => Self::invalid_argument(message),
            Unanswered::Failed(error @ Error::DeadlineExceeded(_)) => Self::deadline_exceeded(explained(&error)),
            Unanswered::Failed(error) if error.is_failure() => Self::unavailable(explained(&error)),
            Unanswered::Failed(error) => Self::failed_precondition(explained(&error)),
        }
    }
}

/// The time until the caller cancels, less the time for the answer to reach it.
fn time_left(metadata: &MetadataMap) -> Option<Duration> {
    let text = metadata.get("grpc-timeout")?.to_str().ok()?;
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    // The protocol allows eight digits.
    let number: u64 = number.parse().ok().filter(|number| *number < 100_000_000)?;
    let timeout = match unit {
        "H" => Duration::from_secs(number * 3600),
        "M" => Duration::from_secs(number * 60),
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        _ => return None,
    };
    Some(timeout.saturating_sub(ANSWER_TIME).max(ANSWER_TIME))
}

const ANSWER_TIME: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_timeout_bounds_the_decision() {
        let left = |text: &str| {
            let mut metadata = MetadataMap::new();
            metadata.insert("grpc-timeout", text.parse().expect("a header"));
            time_left(&metadata)
        };
        assert_eq!(left("20m"), Some(Duration::from_millis(19)));
        assert_eq!(left("2S"), Some(Duration::from_millis(1999)));
        assert_eq!(left("500u"), Some(Duration::from_millis(1)));
        for wrong in ["", "m", "5", "5x", "123456789S", "-5S"] {
            assert_eq!(left(wrong), None, "{wrong}");
        }
    }
}
