//! Handlers that call a limiter themselves, and refuse as the layer does.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::get;
use axum::{Extension, Router, middleware};
use bytes::Bytes;
use http::header::DATE;
use tokio::time::Duration;
use tollgate::{Admin, AnyStore, Decision, Key, Limit, Limiter, MemoryStore, Quota, Rule, Store, clock::ManualClock};
use tollgate_http::{GlobalKey, RateLimitHeaders, RateLimitLayer, Refusal, respond};
use tonic::{Code, Status};
use tonic_types::StatusExt;
use tower::ServiceExt;

use super::broken::Broken;
use super::client::Client;
use super::server::Server;

#[tokio::test]
async fn a_handler_refuses_as_the_layer_does() -> anyhow::Result<()> {
    let hourly = Quota::interval(3, Duration::from_secs(3600))?;
    for quota in ["40/min burst 3".parse()?, hourly, Quota::once(3)?] {
        let limiter = limiter(MemoryStore::with_clock(ManualClock::default()), quota)?;
        let layered = Router::new().route("/{cost}", get(|| async { "served" }));
        let layer = RateLimitLayer::new(limiter.clone())
            .key(GlobalKey)
            .headers(RateLimitHeaders::Always)
            .cost(|head| head.uri.path()[1..].parse().unwrap());
        let layered = Server::start(layered.layer(layer)).await?;
        let handled = Server::start(handled(limiter)).await?;
        let [layered, handled] = [&layered, &handled].map(|server| Client::new(server.address));
        let [ours, theirs] = [handled.get("/1/somebody").await?, layered.get("/1").await?];
        assert_eq!((ours.status, theirs.status), (StatusCode::OK, StatusCode::OK));
        for header in ["ratelimit", "ratelimit-policy"] {
            assert_eq!(ours.headers[header], theirs.headers[header], "{quota}");
        }
        assert_eq!(handled.get("/2").await?.body, "served");
        for path in ["/1", "/2", "/4"] {
            let (mut ours, mut theirs) = (handled.get(path).await?, layered.get(path).await?);
            let denied = if path == "/4" { StatusCode::BAD_REQUEST } else { StatusCode::TOO_MANY_REQUESTS };
            assert_eq!((ours.status, theirs.status), (denied, denied), "{quota}");
            assert!(ours.headers.remove(DATE).is_some() && theirs.headers.remove(DATE).is_some());
            assert_eq!(ours.headers, theirs.headers, "{quota}: {path}");
            assert_eq!(ours.body, theirs.body, "{quota}: {path}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn refusal_hides_internal_error_details() -> anyhow::Result<()> {
    let unknown = Rule::Plan(Key::try_from("none such")?);
    for (limiter, status) in [
        (limiter(Broken, "1/s")?, StatusCode::SERVICE_UNAVAILABLE),
        (limiter(MemoryStore::new(), unknown)?, StatusCode::INTERNAL_SERVER_ERROR),
    ] {
        let server = Server::start(handled(limiter)).await?;
        let answer = Client::new(server.address).get("/1").await?;
        assert_eq!(answer.status, status);
        assert_eq!(answer.headers["content-type"], "application/problem+json");
        let body = String::from_utf8(answer.body.to_vec())?;
        assert!(!body.contains("secret") && !body.contains("none such"), "{body}");
    }
    // Only the client can cause these errors.
    let server = Server::start(handled(limiter(MemoryStore::new(), "1/s")?)).await?;
    for path in ["/0".to_owned(), format!("/1/{}", "x".repeat(256))] {
        assert_eq!(Client::new(server.address).get(&path).await?.status, StatusCode::BAD_REQUEST, "{path}");
    }
    Ok(())
}

/// The layer can then add custom headers, or count requests itself.
#[tokio::test]
async fn a_layer_outside_finds_the_decision_and_the_refusal() -> anyhow::Result<()> {
    let router = handled(limiter(MemoryStore::new(), "2 once")?);
    let router = router.layer(middleware::map_response(async |answer: axum::response::Response| {
        let remaining = answer.extensions().get().and_then(Decision::remaining);
        let refused = answer.extensions().get::<Refusal>().map(|refusal| refusal.status().as_u16());
        (Extension(remaining), format!("{remaining:?} {refused:?}"))
    }));
    let ask = async |path: &str| {
        let answer = router.clone().oneshot(http::Request::get(path).body(axum::body::Body::empty())?).await?;
        let body: Bytes = axum::body::to_bytes(answer.into_body(), 1000).await?;
        anyhow::Ok(String::from_utf8(body.to_vec())?)
    };
    assert_eq!(ask("/1").await?, "None None");
    assert_eq!(ask("/2").await?, "Some(1) Some(429)");
    Ok(())
}

/// With several layers, the answer has the decision of the innermost. A layer in shadow mode adds none.
#[tokio::test]
async fn outer_layer_sees_the_innermost_decision_only() -> anyhow::Result<()> {
    let limit = |name: &str, tokens| {
        let layer = RateLimitLayer::new(Limiter::new(MemoryStore::new(), Quota::once(tokens)?)?);
        anyhow::Ok(layer.name(name).key(GlobalKey))
    };
    for (trial, expected) in [(false, ["0 200", "0 429"]), (true, ["8 200", "7 200"])] {
        let inner = if trial { limit("inner", 1)?.shadow() } else { limit("inner", 1)? };
        let router = Router::new().route("/", get(|| async { "served" })).layer(inner).layer(limit("outer", 9)?);
        let router = router.layer(middleware::map_response(async |answer: axum::response::Response| {
            let remaining = answer.extensions().get().and_then(Decision::remaining).expect("a limit decided");
            format!("{remaining} {}", answer.status().as_u16())
        }));
        for expected in expected {
            let answer = router.clone().oneshot(http::Request::get("/").body(axum::body::Body::empty())?).await?;
            assert_eq!(axum::body::to_bytes(answer.into_body(), 1000).await?, expected, "trial: {trial}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn grpc_refusal_is_a_status() -> anyhow::Result<()> {
    async fn method(limiter: &Limiter, cost: u64) -> Result<Option<u64>, Status> {
        let decision = limiter.allow_n("a", cost).await.map_err(Refusal::from)?;
        Refusal::unless_granted(&decision, "tokens")?;
        Ok(decision.remaining())
    }
    let slow = limiter(MemoryStore::with_clock(ManualClock::default()), Quota::per_minute(40).burst(2))?;
    assert_eq!(method(&slow, 2).await?, Some(0));
    let denied = method(&slow, 1).await.unwrap_err();
    assert_eq!(denied.code(), Code::ResourceExhausted);
    let retry = denied.get_details_retry_info().and_then(|info| info.retry_delay);
    assert_eq!(retry, Some(Duration::from_millis(1500)), "{denied:?}");
    let metadata = ["retry-after", "ratelimit", "ratelimit-policy"].map(|name| denied.metadata().get(name).is_some());
    assert_eq!(metadata, [true, true, true], "{denied:?}");
    let failed = method(&limiter(Broken, "1/s")?, 1).await.unwrap_err();
    assert_eq!(failed.code(), Code::Unavailable);
    assert!(!format!("{failed:?}").contains("secret"), "{failed:?}");
    Ok(())
}

/// A settings page shows the tokens left, by the layer's key and the client's plan.
#[tokio::test]
async fn handler_can_show_the_remaining_tokens() -> anyhow::Result<()> {
    let store = Arc::new(MemoryStore::new());
    store.create_plan(&Key::try_from("paid")?, "1000/h".parse()?).await?;
    let limiter = Limiter::new(AnyStore::new(Arc::clone(&store)), Quota::per_hour(10))?;
    let layer = RateLimitLayer::new(limiter.clone()).name("api").plan(|_| "paid");
    let server = Server::start(Router::new().route("/", get(|| async { "served" })).layer(layer)).await?;
    let paid = Limit::new(Key::try_from("3=api 127.0.0.1")?, Rule::Plan(Key::try_from("paid")?));
    for left in [1000, 999] {
        assert_eq!(limiter.peek_limit(&paid).await?.available(), left);
        assert_eq!(Client::new(server.address).get("/").await?.status, StatusCode::OK);
    }
    assert_eq!(limiter.peek("nobody").await?.available(), 10);
    Ok(())
}

/// Returns a router whose path has the cost, which only the handler reads.
fn handled(limiter: Limiter) -> Router {
    async fn handler(
        State(limiter): State<Limiter>,
        Path((cost, key)): Path<(u64, String)>,
    ) -> Result<(HeaderMap, &'static str), Refusal> {
        let decision = limiter.allow_n(key, cost).await?;
        Refusal::unless_granted(&decision, "default")?;
        let mut headers = HeaderMap::new();
        respond::add_headers(&mut headers, "default", &decision);
        Ok((headers, "served"))
    }
    let everybody = |limiter, Path(cost): Path<u64>| handler(limiter, Path((cost, "everybody".to_owned())));
    Router::new().route("/{cost}", get(everybody)).route("/{cost}/{key}", get(handler)).with_state(limiter)
}

fn limiter<S: Store, R>(store: S, rule: R) -> anyhow::Result<Limiter>
where
    R: TryInto<Rule>,
    tollgate::Error: From<R::Error>,
{
    Ok(Limiter::new(AnyStore::new(store), rule)?)
}
