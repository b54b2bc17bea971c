//! Refunds by the head of the service's answer.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Query;
use axum::http::response::Parts;
use axum::http::{Request, Response, StatusCode};
use axum::routing::get;
use tokio::task::yield_now;
use tollgate::{Admin, Fallback, Key, Limiter, MemoryStore, Quota, layers::LeaseOptions};
use tollgate_http::{ClientAddr, GlobalKey, RateLimitLayer, is_success};
use tower::{Layer, ServiceExt, service_fn};

use super::broken::Broken;
use super::client::Client;
use super::gated::Gated;
use super::server::Server;

#[tokio::test]
async fn only_failed_logins_are_counted() -> anyhow::Result<()> {
    let limiter = Limiter::new(MemoryStore::new(), Quota::per_hour(5))?;
    let login = |Query(form): Query<Login>| async move {
        if form.password == "right" { StatusCode::SEE_OTHER } else { StatusCode::UNAUTHORIZED }
    };
    let failed = RateLimitLayer::new(limiter)
        .key(ClientAddr::peer())
        .refund(|answer, cost| if is_success(answer) { cost } else { 0 });
    let server = Server::start(Router::new().route("/login", get(login)).layer(failed)).await?;
    let client = Client::new(server.address);
    // Each token is back before the client has the answer.
    for _ in 0..50 {
        assert_eq!(client.get("/login?password=right").await?.status, StatusCode::SEE_OTHER);
    }
    for _ in 0..5 {
        assert_eq!(client.get("/login?password=wrong").await?.status, StatusCode::UNAUTHORIZED);
    }
    assert_eq!(client.get("/login?password=right").await?.status, StatusCode::TOO_MANY_REQUESTS);
    Ok(())
}

#[tokio::test]
async fn only_failures_are_counted_under_a_lease_too() -> anyhow::Result<()> {
    let store = Gated::open();
    let limiter = Limiter::builder(Arc::clone(&store)).lease(LeaseOptions::default()).build(Quota::once(100_000)?)?;
    let inner = service_fn(async |_: Request<()>| anyhow::Ok(Response::new(Body::empty())));
    let refund = |answer: &Parts, cost| if is_success(answer) { cost } else { 0 };
    let service = RateLimitLayer::new(limiter.clone()).key(GlobalKey).refund(refund).layer(inner);
    for _ in 0..2_000 {
        assert_eq!(service.clone().oneshot(Request::new(())).await?.status(), StatusCode::OK);
    }
    limiter.close().await?;
    let level = store.store.peek(&Key::try_from("everybody")?).await?;
    assert_eq!(level.map(|level| level.available()), Some(100_000));
    Ok(())
}

#[derive(serde::Deserialize)]
struct Login {
    password: String,
}

#[tokio::test]
async fn only_client_and_server_errors_count_as_failures() -> anyhow::Result<()> {
    for (status, left) in [(101, 5), (200, 5), (204, 5), (302, 5), (303, 5), (304, 5), (401, 4), (404, 4), (500, 4)] {
        let limiter = Limiter::new(MemoryStore::new(), Quota::once(5)?)?;
        let inner =
            service_fn(move |_: Request<()>| async move { Response::builder().status(status).body(Body::empty()) });
        let refund = |answer: &Parts, cost| if is_success(answer) { cost } else { 0 };
        let service = RateLimitLayer::new(limiter.clone()).key(GlobalKey).refund(refund).layer(inner);
        assert_eq!(service.oneshot(Request::new(())).await?.status(), status);
        let level = limiter.store().peek(&Key::try_from("everybody")?).await?;
        assert_eq!(level.map(|level| level.available()), Some(left), "{status}");
    }
    Ok(())
}

#[tokio::test]
async fn refund_returns_at_most_the_tokens_taken() -> anyhow::Result<()> {
    let limiter = Limiter::new(MemoryStore::new(), Quota::per_hour(100))?;
    let cached = |answer: &Parts, cost| {
        let unused = answer.headers.get("x-unused").and_then(|unused| unused.to_str().ok()?.parse().ok());
        unused.unwrap_or(cost + 1_000_000)
    };
    let work = |Query(printed): Query<Printed>| async move { [("x-unused", printed.unused.unwrap_or_default())] };
    let layer = RateLimitLayer::new(limiter.clone()).cost(|_| 10).refund(cached);
    let server = Server::start(Router::new().route("/", get(work)).layer(layer)).await?;
    let client = Client::new(server.address);
    let left = async || {
        let level = limiter.store().peek(&Key::try_from("127.0.0.1")?).await?;
        anyhow::Ok(level.map(|level| level.available()))
    };
    for (path, left_then) in [("/?unused=0", 90), ("/?unused=7", 87), ("/?unused=10", 87), ("/", 87)] {
        client.get(path).await?;
        assert_eq!(left().await?, Some(left_then), "{path}");
    }
    Ok(())
}

#[derive(serde::Deserialize)]
struct Printed {
    unused: Option<String>,
}

#[tokio::test]
async fn answer_is_sent_after_the_refund() -> anyhow::Result<()> {
    let store = Gated::before_it_gives_back();
    let limiter = Limiter::new(Arc::clone(&store), Quota::once(1)?)?;
    let inner = service_fn(async |_: Request<()>| anyhow::Ok(Response::new(Body::empty())));
    let service = RateLimitLayer::new(limiter).key(GlobalKey).refund(|_, cost| cost).layer(inner);
    for _ in 0..3 {
        let requested = tokio::spawn(service.clone().oneshot(Request::new(())));
        for _ in 0..100 {
            yield_now().await; // as far as it comes without leave
        }
        assert!(!requested.is_finished());
        store.adjusts.add_permits(1);
        assert_eq!(requested.await??.status(), StatusCode::OK);
    }
    // If a client disconnects during the refund, the tokens still return.
    let requested = tokio::spawn(service.clone().oneshot(Request::new(())));
    for _ in 0..100 {
        yield_now().await;
    }
    requested.abort();
    assert!(requested.await.is_err(), "it waited");
    store.adjusts.add_permits(2);
    for _ in 0..100 {
        yield_now().await;
    }
    assert_eq!(service.oneshot(Request::new(())).await?.status(), StatusCode::OK);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn answer_waits_for_refund_until_the_deadline() -> anyhow::Result<()> {
    let store = Gated::before_it_gives_back();
    let limiter = Limiter::builder(Arc::clone(&store)).without_deny_cache();
    let limiter = limiter
        .deadline(Duration::from_millis(50))
        .fallback(Fallback::Closed(Duration::from_secs(1)))
        .build(Quota::once(1)?)?;
    let inner = service_fn(async |_: Request<()>| anyhow::Ok(Response::new(Body::empty())));
    let service = RateLimitLayer::new(limiter).key(GlobalKey).refund(|_, cost| cost).layer(inner);
    let start = tokio::time::Instant::now();
    assert_eq!(service.clone().oneshot(Request::new(())).await?.status(), StatusCode::OK);
    assert_eq!(start.elapsed(), Duration::from_millis(50));
    assert_eq!(service.clone().oneshot(Request::new(())).await?.status(), StatusCode::TOO_MANY_REQUESTS);
    store.adjusts.add_permits(1);
    for _ in 0..100 {
        yield_now().await;
    }
    assert_eq!(service.oneshot(Request::new(())).await?.status(), StatusCode::OK);
    Ok(())
}

#[tokio::test]
async fn fallback_grant_is_not_given_back() -> anyhow::Result<()> {
    let limiter = Limiter::builder(Broken).deadline(Duration::from_secs(5)).fallback(Fallback::Local(Quota::once(2)?));
    let limiter = limiter.build(Quota::once(9)?)?;
    let inner = service_fn(async |_: Request<()>| anyhow::Ok(Response::new(Body::empty())));
    let service = RateLimitLayer::new(limiter).key(GlobalKey).refund(|_, cost| cost).layer(inner);
    for status in [200, 200, 429] {
        assert_eq!(service.clone().oneshot(Request::new(())).await?.status(), status);
    }
    Ok(())
}
