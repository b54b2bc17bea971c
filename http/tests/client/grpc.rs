//! A client that tonic generated, over its own `Channel`.

use std::error::Error;
use std::net::SocketAddr;
use std::time::Duration;

use http::Uri;
use tokio::net::TcpListener;
use tokio::task::AbortHandle;
use tollgate::{Admin, Key, Limiter, MemoryStore, Quota, admin::Filter};
use tollgate_http::{ClientLimit, ClientLimitError, LimitedClient};
use tollgate_http::{GlobalKey, RateLimitLayer};
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Server};
use tonic::{Code, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tower::Layer;

type Limited = LimitedClient<MemoryStore, Channel>;

#[tokio::test]
async fn generated_client_is_limited_and_throttled_by_origin() -> anyhow::Result<()> {
    let serving = Serving::start(2).await?;
    let limiter = Limiter::new(MemoryStore::new(), "1000/h")?;
    let channel = serving.limited(ClientLimit::new(limiter)).await?;
    let mut client = HealthClient::with_origin(channel, serving.origin()?);
    for _ in 0..2 {
        check(&mut client).await?;
    }
    let refused = check(&mut client).await.expect_err("the other side has two tokens");
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused:?}");
    let throttle = check(&mut client).await.expect_err("it was told to wait");
    let Some(ClientLimitError::Limited { key, retry_after }) = of_limit(&throttle) else { panic!("{throttle:?}") };
    assert_eq!(
        (key.as_str(), throttle.message().contains("no tokens available")),
        (&*serving.address.to_string(), true)
    );
    assert!(retry_after.is_some_and(|time| time > Duration::from_mins(20)), "{retry_after:?}");
    Ok(())
}

#[tokio::test]
async fn generated_client_without_origin_needs_a_key() -> anyhow::Result<()> {
    let serving = Serving::start(1).await?;
    let limiter = Limiter::new(MemoryStore::new(), "1000/h")?;
    let limit = ClientLimit::new(limiter.clone());
    let refused = check(&mut HealthClient::new(serving.limited(limit.clone()).await?)).await.expect_err("no host");
    assert!(matches!(of_limit(&refused), Some(ClientLimitError::MissingKey)), "{refused:?}");
    for advice in ["key", "with_origin"] {
        assert!(refused.message().contains(advice), "{}", refused.message());
    }
    assert!(limiter.store().is_empty(), "it took nothing");

    let limit = limit.key(|_| Key::try_from("health").ok());
    check(&mut HealthClient::new(serving.limited(limit).await?)).await?; // of the one token that the other side has
    let buckets = limiter.store().list(&Filter::default(), None, 10).await?;
    assert_eq!(buckets.iter().map(|bucket| bucket.key().as_str()).collect::<Vec<_>>(), ["health"]);
    Ok(())
}

async fn check(client: &mut HealthClient<Limited>) -> Result<(), Status> {
    client.check(HealthCheckRequest::default()).await.map(drop)
}

/// Returns why the limit did not let the request pass.
fn of_limit(status: &Status) -> Option<&ClientLimitError> {
    status.source()?.downcast_ref()
}

/// Starts a server with a number of tokens for all clients.
struct Serving {
    address: SocketAddr,
    task: AbortHandle,
}

impl Serving {
    async fn start(tokens: u64) -> anyhow::Result<Self> {
        let layer = RateLimitLayer::new(Limiter::new(MemoryStore::new(), Quota::per_hour(tokens))?).key(GlobalKey);
        let (_, health) = tonic_health::server::health_reporter();
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let server = Server::builder().layer(layer).add_service(health);
        let task = tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener))).abort_handle();
        Ok(Self { address, task })
    }

    fn origin(&self) -> anyhow::Result<Uri> {
        Ok(format!("http://{}", self.address).parse()?)
    }

    async fn limited(&self, limit: ClientLimit<MemoryStore>) -> anyhow::Result<Limited> {
        Ok(limit.max_wait(Duration::ZERO).layer(Channel::builder(self.origin()?).connect().await?))
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.task.abort();
    }
}
