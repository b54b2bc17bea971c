//! The crate `limitador` over Redis, behind the service that its own server has.

use std::collections::HashMap;
use std::net::TcpListener;

use limitador::AsyncRateLimiter;
use limitador::limit::{Context, Expression, Limit, Namespace, Predicate};
use limitador::storage::redis::AsyncRedisStorage;
use tokio::sync::oneshot;
use tonic::{Request, Response, Status};

use crate::proto::envoy::service::ratelimit::v3::rate_limit_service_server::RateLimitService;
use crate::proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use crate::server;
use crate::stand_in::{response, status};
use crate::workload::{DAY, ENTRY, Workload};

pub(crate) struct LimitadorService {
    limiter: AsyncRateLimiter,
}

impl LimitadorService {
    pub(crate) async fn serve(
        redis: String,
        listener: TcpListener,
        ended: oneshot::Receiver<()>,
    ) -> anyhow::Result<()> {
        let limiter = AsyncRateLimiter::new_with_storage(Box::new(AsyncRedisStorage::new(&redis).await?));
        for workload in Workload::ALL {
            let variable = Expression::parse(format!("descriptors[0].{ENTRY}"))?;
            let max = u64::from(workload.requests_per_day());
            // With an id, its keys in Redis are short.
            let limit =
                Limit::with_id(workload.name(), workload.name(), max, DAY, Vec::<Predicate>::new(), vec![variable]);
            limiter.add_limit(limit);
        }
        server::serve(Self { limiter }, listener, ended).await
    }
}

#[tonic::async_trait]
impl RateLimitService for LimitadorService {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let request = request.into_inner();
        let hits = u64::from(request.hits_addend.max(1));
        let namespace = Namespace::from(request.domain);
        let mut descriptors: Vec<HashMap<String, String>> = Vec::with_capacity(request.descriptors.len());
        for descriptor in request.descriptors {
            descriptors.push(descriptor.entries.into_iter().map(|entry| (entry.key, entry.value)).collect());
        }
        let mut context = Context::default();
        context.list_binding("descriptors".to_owned(), descriptors);
        let checked = self.limiter.check_rate_limited_and_update(&namespace, &context, hits).await;
        let checked = checked.map_err(|error| Status::unavailable(error.to_string()))?;
        let counter = checked.counters.first().ok_or_else(|| Status::internal("no limit applies"))?;
        let limit = u32::try_from(counter.max_value()).unwrap_or(u32::MAX);
        let remaining = if checked.limited { None } else { Some(counter.remaining().unwrap_or_default()) };
        let reset = counter.expires_in().unwrap_or_default().as_secs();
        Ok(Response::new(response(vec![status(limit, remaining, reset)])))
    }
}
