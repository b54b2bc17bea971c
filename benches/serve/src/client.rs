use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use tokio::time::sleep;
use tollgate::{Key, Limit, Limiter, Rule, Take};
use tonic::transport::{Channel, Endpoint};

use crate::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use crate::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use crate::proto::envoy::service::ratelimit::v3::RateLimitRequest;
use crate::proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use crate::proto::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use crate::workload::ENTRY;

/// A way to send requests to a system.
#[derive(Clone)]
pub(crate) enum Client {
    Grpc(RateLimitServiceClient<Channel>),
    /// Calls the limiter itself.
    InProcess {
        limiter: Limiter,
        rule: Rule,
    },
}

/// The answer to a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answer {
    pub(crate) granted: bool,
    pub(crate) remaining: u64,
}

impl Client {
    /// Connects to a server as soon as it listens.
    pub(crate) async fn connect(uri: &str) -> anyhow::Result<Self> {
        let endpoint = Endpoint::from_shared(uri.to_owned())?.tcp_nodelay(true);
        let start = Instant::now();
        loop {
            match endpoint.connect().await {
                Ok(channel) => return Ok(Self::Grpc(RateLimitServiceClient::new(channel))),
                Err(error) if start.elapsed() > PATIENCE => {
                    return Err(error).with_context(|| format!("no server listens on {uri}"));
                }
                Err(_) => sleep(PAUSE).await,
            }
        }
    }

    pub(crate) async fn ask(&mut self, domain: &str, value: &str) -> anyhow::Result<Answer> {
        match self {
            Self::Grpc(client) => {
                let response = client.should_rate_limit(request(domain, value)).await?.into_inner();
                let remaining = response.statuses.first().map_or(0, |status| u64::from(status.limit_remaining));
                match response.overall_code() {
                    Code::Ok => Ok(Answer { granted: true, remaining }),
                    Code::OverLimit => Ok(Answer { granted: false, remaining }),
                    Code::Unknown => bail!("the answer has no code"),
                }
            }
            Self::InProcess { limiter, rule } => {
                let key = Key::try_from(format!("{domain}:{value}"))?;
                let take = Take::from(Limit::new(key, rule.clone()));
                let decision = limiter.decide(&take).await?;
                Ok(Answer { granted: decision.is_granted(), remaining: decision.remaining().unwrap_or_default() })
            }
        }
    }
}

fn request(domain: &str, value: &str) -> RateLimitRequest {
    let entry = Entry { key: ENTRY.to_owned(), value: value.to_owned() };
    let descriptor = RateLimitDescriptor { entries: vec![entry], ..RateLimitDescriptor::default() };
    RateLimitRequest { domain: domain.to_owned(), descriptors: vec![descriptor], hits_addend: 0 }
}

const PATIENCE: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(50);
