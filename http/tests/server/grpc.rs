//! gRPC with tonic's own server and client.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context;
use http::header::{CONTENT_TYPE, HeaderName};
use http::request::Parts;
use http::{Request, Response};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tollgate::{Admin, Limiter, MemoryStore, Mode, Quota, admin::Filter, clock::ManualClock};
use tollgate_http::{GlobalKey, Header, RateLimitLayer, is_success};
use tonic::service::LayerExt;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Server};
use tonic::{Code, Status};
use tonic_health::ServingStatus;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_types::StatusExt;
use tower::{Layer, ServiceExt, service_fn};

use super::broken::Broken;

#[tokio::test]
async fn grpc_denial_is_resource_exhausted_with_retry_info() -> anyhow::Result<()> {
    let limiter = Limiter::new(MemoryStore::with_clock(ManualClock::default()), Quota::per_minute(40).burst(2))?;
    let server = serve(RateLimitLayer::new(limiter.clone())).await?;
    let mut client = server.client().await?;
    for _ in 0..2 {
        assert_eq!(check(&mut client).await?, ServingStatus::Serving as i32);
    }
    let denied = check(&mut client).await.unwrap_err();
    assert_eq!(denied.code(), Code::ResourceExhausted);
    assert_eq!(denied.message(), "Too many requests. Try again in 2 s.");
    let retry = denied.get_details_retry_info().and_then(|info| info.retry_delay);
    assert_eq!(retry, Some(Duration::from_millis(1500)), "{denied:?}");
    let limits = denied.get_details_quota_failure().map(|failure| failure.violations).unwrap_or_default();
    assert_eq!(limits.iter().map(|limit| limit.subject.as_str()).collect::<Vec<_>>(), ["default"]);
    // tonic's server provides the peer's address.
    let buckets = limiter.store().list(&Filter::default(), None, 10).await?;
    assert_eq!(buckets.iter().map(|bucket| bucket.key().as_str()).collect::<Vec<_>>(), ["127.0.0.1"]);
    Ok(())
}

#[tokio::test]
async fn other_refusals_have_codes_of_their_own() -> anyhow::Result<()> {
    let never = || Limiter::new(MemoryStore::new(), Quota::once(1).unwrap());
    for (layer, code) in [
        (RateLimitLayer::new(Limiter::new(Broken, Quota::per_second(1))?), Code::Unavailable),
        (RateLimitLayer::new(never()?).key(Header::new(HeaderName::from_static("x-user"))), Code::InvalidArgument),
        (RateLimitLayer::new(never()?).cost(|_| 2), Code::InvalidArgument),
        (RateLimitLayer::new(never()?).plan(|_: &Parts| "none such"), Code::Internal),
    ] {
        let server = serve(layer).await?;
        let refused = check(&mut server.client().await?).await.unwrap_err();
        assert_eq!(refused.code(), code, "{refused:?}");
        assert!(!format!("{refused:?}").contains("secret"), "{refused:?}");
    }
    // A retry can never succeed.
    let server = serve(RateLimitLayer::new(never()?)).await?;
    let mut client = server.client().await?;
    check(&mut client).await?;
    let denied = check(&mut client).await.unwrap_err();
    assert_eq!(denied.code(), Code::ResourceExhausted);
    assert!(denied.get_details_retry_info().is_none(), "{denied:?}");
    Ok(())
}

#[tokio::test]
async fn blocked_call_reports_no_remaining_tokens() -> anyhow::Result<()> {
    let store = MemoryStore::with_clock(ManualClock::default());
    store.set_mode(Mode::Block, None, None).await?;
    let layer = RateLimitLayer::new(Limiter::new(store, Quota::per_minute(40).burst(2))?).key(GlobalKey);
    let server = serve(layer.clone()).await?;
    let denied = check(&mut server.client().await?).await.unwrap_err();
    let limits = denied.get_details_quota_failure().map(|failure| failure.violations).unwrap_or_default();
    assert_eq!(limits.iter().map(|limit| limit.description.as_str()).collect::<Vec<_>>(), ["this limit is blocked"]);
    let inner = service_fn(async |_: Request<String>| Ok::<_, Infallible>(Response::new(String::new())));
    let denied = layer.layer(inner).oneshot(Request::new(String::new())).await?;
    let printed = denied.headers().get("ratelimit").context("it is said")?;
    assert!(printed.to_str()?.starts_with("\"default\";r=0"), "{printed:?}");
    Ok(())
}

#[tokio::test]
async fn failed_grpc_call_with_200_is_not_a_success() -> anyhow::Result<()> {
    let limiter = Limiter::new(MemoryStore::new(), Quota::once(2)?)?;
    let refund = |answer: &http::response::Parts, cost| if is_success(answer) { cost } else { 0 };
    let server = serve(RateLimitLayer::new(limiter).refund(refund)).await?;
    let mut client = server.client().await?;
    for _ in 0..5 {
        assert_eq!(check(&mut client).await?, ServingStatus::Serving as i32);
    }
    let mut failing = async || {
        let unknown = HealthCheckRequest { service: "none such".to_owned() };
        client.check(unknown).await.map_err(|status| status.code()).err()
    };
    for code in [Code::NotFound, Code::NotFound, Code::ResourceExhausted] {
        assert_eq!(failing().await, Some(code));
    }
    Ok(())
}

#[tokio::test]
async fn grpc_stream_counts_as_one_request() -> anyhow::Result<()> {
    let limit = RateLimitLayer::new(Limiter::new(MemoryStore::new(), Quota::once(2)?)?);
    let (mut reporter, health) = tonic_health::server::health_reporter();
    let server =
        start(|incoming| Server::builder().layer(limit).add_service(health).serve_with_incoming(incoming)).await?;
    let mut client = server.client().await?;
    let mut answers = client.watch(HealthCheckRequest::default()).await?.into_inner();
    for status in [ServingStatus::Serving, ServingStatus::NotServing, ServingStatus::Serving] {
        reporter.set_service_status("", status).await;
        let answer = answers.message().await?.context("it goes on")?;
        assert_eq!(answer.status, status as i32);
    }
    reporter.clear_service_status("").await;
    assert_eq!(answers.message().await?, None, "its trailers came through, too");
    assert_eq!(check(&mut client).await.unwrap_err().code(), Code::NotFound, "with the second token");
    let denied = client.watch(HealthCheckRequest::default()).await.unwrap_err();
    assert_eq!(denied.code(), Code::ResourceExhausted);
    Ok(())
}

#[tokio::test]
async fn one_service_of_a_server_can_have_a_limit_of_its_own() -> anyhow::Result<()> {
    let limit = RateLimitLayer::new(Limiter::new(MemoryStore::new(), Quota::once(1)?)?);
    let (_, health) = tonic_health::server::health_reporter();
    let health = limit.named_layer(health);
    let server = start(|incoming| Server::builder().add_service(health).serve_with_incoming(incoming)).await?;
    let mut client = server.client().await?;
    assert_eq!(check(&mut client).await?, ServingStatus::Serving as i32);
    assert_eq!(check(&mut client).await.unwrap_err().code(), Code::ResourceExhausted);
    Ok(())
}

/// Related content types, such as gRPC-Web, get HTTP answers for their proxies to translate.
#[tokio::test]
async fn only_grpc_requests_get_grpc_answers() -> anyhow::Result<()> {
    for (content_type, is_grpc) in [
        ("application/grpc", true),
        ("application/grpc+proto", true),
        ("application/grpc; charset=utf-8", true),
        ("application/grpc-web+proto", false),
        ("application/grpcurl", false),
        ("text/plain", false),
    ] {
        let layer = RateLimitLayer::new(Limiter::new(MemoryStore::new(), Quota::once(1)?)?).key(GlobalKey).cost(|_| 2);
        let inner = service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(String::new())));
        let request = Request::post("/").header(CONTENT_TYPE, content_type).body(())?;
        let refused = layer.layer(inner).oneshot(request).await?;
        let expected = if is_grpc { (200, true) } else { (400, false) };
        assert_eq!(
            (refused.status().as_u16(), refused.headers().contains_key("grpc-status")),
            expected,
            "{content_type}"
        );
    }
    Ok(())
}

/// Caches would store a refusal with 200, even if its content type claims to be gRPC.
#[tokio::test]
async fn invalid_grpc_request_is_refused_as_http() -> anyhow::Result<()> {
    let layer = RateLimitLayer::new(Limiter::new(MemoryStore::new(), Quota::once(1)?)?).key(GlobalKey);
    let service = layer.layer(service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(String::new()))));
    for (method, status) in [("GET", 200), ("GET", 429), ("PUT", 429), ("POST", 200)] {
        let request = Request::builder().method(method).header(CONTENT_TYPE, "application/grpc").body(())?;
        assert_eq!(service.clone().oneshot(request).await?.status(), status, "{method}");
    }
    Ok(())
}

async fn check(client: &mut HealthClient<Channel>) -> Result<i32, Status> {
    Ok(client.check(HealthCheckRequest::default()).await?.into_inner().status)
}

struct Serving {
    address: SocketAddr,
    task: JoinHandle<()>,
}

impl Serving {
    async fn client(&self) -> anyhow::Result<HealthClient<Channel>> {
        let channel = Channel::from_shared(format!("http://{}", self.address))?;
        Ok(HealthClient::new(channel.connect().await?))
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(layer: RateLimitLayer) -> anyhow::Result<Serving> {
    let (_, health) = tonic_health::server::health_reporter();
    start(|incoming| Server::builder().layer(layer).add_service(health).serve_with_incoming(incoming)).await
}

async fn start<F>(serve: impl FnOnce(TcpIncoming) -> F) -> anyhow::Result<Serving>
where
    F: Future<Output = Result<(), tonic::transport::Error>> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let serving = serve(TcpIncoming::from(listener));
    Ok(Serving { address, task: tokio::spawn(async move { serving.await.expect("it serves") }) })
}
