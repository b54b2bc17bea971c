//! A service that counts as envoyproxy/ratelimit does, which has no binaries to measure: windows in Redis, and a cache of
//! exhausted keys in the process.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::net::TcpListener;
use std::time::{Duration, SystemTime};

use quick_cache::sync::Cache;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client};
use tokio::sync::oneshot;
use tonic::{Request, Response, Status};

use crate::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use crate::proto::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use crate::proto::envoy::service::ratelimit::v3::rate_limit_response::{Code, DescriptorStatus, RateLimit};
use crate::proto::envoy::service::ratelimit::v3::rate_limit_service_server::RateLimitService;
use crate::proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use crate::server;
use crate::workload::{DAY, Workload};

pub(crate) struct StandIn {
    connection: MultiplexedConnection,
    /// The requests per day of each domain.
    limits: HashMap<&'static str, u32>,
    /// The keys, with their windows, that are over their limits.
    exhausted: Cache<String, ()>,
}

impl StandIn {
    pub(crate) async fn serve(
        redis: String,
        listener: TcpListener,
        ended: oneshot::Receiver<()>,
    ) -> anyhow::Result<()> {
        let config = AsyncConnectionConfig::new().set_response_timeout(Some(TIMEOUT));
        let connection = Client::open(redis)?.get_multiplexed_async_connection_with_config(&config).await?;
        let limits = Workload::ALL.iter().map(|workload| (workload.name(), workload.requests_per_day())).collect();
        let service = Self { connection, limits, exhausted: Cache::new(MAX_EXHAUSTED) };
        server::serve(service, listener, ended).await
    }

    /// Counts the hits of one descriptor in the window of now, also beyond the limit.
    async fn decide(
        &self,
        domain: &str,
        descriptor: &RateLimitDescriptor,
        hits: u32,
    ) -> Result<DescriptorStatus, Status> {
        let Some(&limit) = self.limits.get(domain) else {
            return Ok(DescriptorStatus { code: Code::Ok.into(), ..DescriptorStatus::default() });
        };
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let now = since.map_err(|error| Status::internal(error.to_string()))?.as_secs();
        let window = now - now % DAY;
        let mut key = domain.to_owned();
        for entry in &descriptor.entries {
            let _ = write!(key, "_{}_{}", entry.key, entry.value);
        }
        let _ = write!(key, "_{window}");
        if self.exhausted.get(&key).is_some() {
            return Ok(status(limit, None, window + DAY - now));
        }
        let mut pipeline = redis::pipe();
        pipeline.cmd("INCRBY").arg(&key).arg(hits).cmd("EXPIRE").arg(&key).arg(DAY).ignore();
        let mut connection = self.connection.clone();
        let counts: Result<Vec<u64>, redis::RedisError> = pipeline.query_async(&mut connection).await;
        let counts = counts.map_err(|error| Status::unavailable(error.to_string()))?;
        let count = counts.first().copied().ok_or_else(|| Status::internal("no answer from Redis"))?;
        let remaining = u64::from(limit).checked_sub(count);
        if remaining.is_none() {
            self.exhausted.insert(key, ());
        }
        Ok(status(limit, remaining, window + DAY - now))
    }
}

#[tonic::async_trait]
impl RateLimitService for StandIn {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let request = request.into_inner();
        let mut statuses = Vec::with_capacity(request.descriptors.len());
        for descriptor in &request.descriptors {
            statuses.push(self.decide(&request.domain, descriptor, request.hits_addend.max(1)).await?);
        }
        Ok(Response::new(response(statuses)))
    }
}

/// Makes a response that is over its limit if one of the statuses is.
pub(crate) fn response(statuses: Vec<DescriptorStatus>) -> RateLimitResponse {
    let is_over = statuses.iter().any(|status| status.code() == Code::OverLimit);
    let code = if is_over { Code::OverLimit } else { Code::Ok };
    RateLimitResponse { overall_code: code.into(), statuses, ..RateLimitResponse::default() }
}

/// Makes the status of a limit per day. `remaining` is `None` if the request is over the limit.
pub(crate) fn status(limit: u32, remaining: Option<u64>, reset_seconds: u64) -> DescriptorStatus {
    let code = if remaining.is_some() { Code::Ok } else { Code::OverLimit };
    DescriptorStatus {
        code: code.into(),
        current_limit: Some(RateLimit { requests_per_unit: limit, unit: Unit::Day.into(), name: String::new() }),
        limit_remaining: u32::try_from(remaining.unwrap_or_default()).unwrap_or(u32::MAX),
        duration_until_reset: Some(prost_types::Duration {
            seconds: i64::try_from(reset_seconds).unwrap_or(i64::MAX),
            nanos: 0,
        }),
    }
}

const TIMEOUT: Duration = Duration::from_secs(5);
const MAX_EXHAUSTED: usize = 100_000;
