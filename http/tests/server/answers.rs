//! Answers of a layer to clients, and the decisions that services see.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{self, Poll};
use std::time::Duration;

use anyhow::Context;
use axum::body::Body;
use axum::extract::Extension;
use axum::http::request::Parts;
use axum::http::{Request, Response, StatusCode};
use axum::routing::{get, post};
use axum::{Router, middleware};
use bytes::Bytes;
use hyper::body::Frame;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tollgate::{
    Decision, Error, Fallback, Key, Limiter, MemoryStore, Quota, Rule, TakeError, Window, clock::ManualClock,
};
use tollgate_http::{GlobalKey, RateLimitLayer, Refusal, respond};
use tower::{Layer, ServiceExt, service_fn};

use super::broken::Broken;
use super::client::Client;
use super::server::Server;

#[tokio::test]
async fn a_denied_request_never_reaches_the_handler() -> anyhow::Result<()> {
    let calls = Arc::new(AtomicU64::new(0));
    let called = Arc::clone(&calls);
    let handler = move || async move { called.fetch_add(1, Ordering::SeqCst).to_string() };
    let router = Router::new().route("/", get(handler)).layer(RateLimitLayer::new(three()?));
    let server = Server::start(router).await?;
    let client = Client::new(server.address);
    for n in 0..10 {
        let answer = client.get("/").await?;
        let expected = if n < 3 { StatusCode::OK } else { StatusCode::TOO_MANY_REQUESTS };
        assert_eq!(answer.status, expected, "request {n}");
    }
    assert_eq!(calls.load(Ordering::SeqCst), 3);
    Ok(())
}

#[tokio::test]
async fn a_denied_request_is_answered_before_its_body_is_sent() -> anyhow::Result<()> {
    let handler = |body: Bytes| async move { body.len().to_string() };
    let router = Router::new().route("/", post(handler)).layer(RateLimitLayer::new(three()?));
    let server = Server::start(router).await?;
    for _ in 0..3 {
        assert!(upload(&server, "4", "body").await?.starts_with("HTTP/1.1 200 "));
    }
    // The client waits for permission to send a terabyte, and is refused before the server reads.
    let answer = upload(&server, "1000000000000\r\nexpect: 100-continue", "").await?;
    assert!(answer.starts_with("HTTP/1.1 429 "), "{answer}");
    Ok(())
}

/// Returns the server's output for an upload, until it closes the connection.
async fn upload(server: &Server, length: &str, body: &str) -> anyhow::Result<String> {
    let mut stream = TcpStream::connect(server.address).await?;
    let head = format!("POST / HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n");
    stream.write_all((head + body).as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

#[tokio::test]
async fn the_body_of_a_denied_request_is_never_polled() -> anyhow::Result<()> {
    let limiter = Limiter::new(MemoryStore::new(), Quota::once(1)?)?;
    let inner = service_fn(async |_: Request<Untouchable>| anyhow::Ok(Response::new(Body::empty())));
    let service = RateLimitLayer::new(limiter).key(GlobalKey).layer(inner);
    let status = async || {
        let answer = service.clone().oneshot(Request::new(Untouchable)).await?;
        anyhow::Ok(answer.status())
    };
    assert_eq!(status().await?, StatusCode::OK);
    assert_eq!(status().await?, StatusCode::TOO_MANY_REQUESTS);
    Ok(())
}

/// A body that must not be polled.
struct Untouchable;

impl hyper::body::Body for Untouchable {
    type Data = Bytes;
    type Error = anyhow::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut task::Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, anyhow::Error>>> {
        panic!("the body was read")
    }
}

#[tokio::test]
async fn denial_is_a_problem_document_that_names_the_limit() -> anyhow::Result<()> {
    let limiter = Limiter::new(MemoryStore::new(), Quota::per_hour(1))?;
    let server = Server::start(hello().layer(RateLimitLayer::new(limiter).name("login"))).await?;
    let client = Client::new(server.address);
    client.get("/").await?;
    let answer = client.get("/").await?;
    assert_eq!(answer.header("content-type")?, Some("application/problem+json"));
    assert_eq!(answer.header("cache-control")?, Some("no-store"));
    let problem = answer.json()?;
    assert_eq!(problem["type"], "https://iana.org/assignments/http-problem-types#quota-exceeded");
    assert_eq!(problem["status"], 429);
    assert_eq!(problem["violated-policies"], json!(["login"]));
    assert_eq!(problem["detail"], "Too many requests. Try again in 3600 s.");
    Ok(())
}

#[tokio::test]
async fn default_denial_is_the_documented_one() -> anyhow::Result<()> {
    let page = include_str!("../../../docs/http-server.md");
    let shown = page.split("```text\n").find_map(|block| block.strip_prefix("HTTP/1.1 429 Too Many Requests\n"));
    let shown = shown.and_then(|block| block.split_once("```")).context("the page shows a denial")?.0;
    let (headers, body) = shown.split_once("\n\n").context("headers and a body")?;
    let limiter = Limiter::new(MemoryStore::with_clock(ManualClock::default()), "10/s burst 20")?;
    let server = Server::start(hello().layer(RateLimitLayer::new(limiter))).await?;
    let client = Client::new(server.address);
    for _ in 0..20 {
        assert_eq!(client.get("/").await?.status, StatusCode::OK);
    }
    let denied = client.get("/").await?;
    assert_eq!(denied.status, StatusCode::TOO_MANY_REQUESTS);
    for line in headers.lines() {
        let (name, value) = line.split_once(": ").context("a header")?;
        assert_eq!(denied.header(name)?, Some(value), "{name}");
    }
    assert_eq!(denied.json()?, serde_json::from_str::<serde_json::Value>(body)?);
    Ok(())
}

#[tokio::test]
async fn denial_can_be_plain_json_or_a_custom_response() -> anyhow::Result<()> {
    let own = |refusal: &Refusal, request: &Parts| {
        let words = format!("{} {} in {:?}", refusal.status(), request.uri.path(), refusal.retry_after());
        let own = Response::builder()
            .status(420)
            .header("retry-after", "7")
            .header("x-own", "1")
            .header("cache-control", "private");
        own.body(words).expect("it is an answer")
    };
    let layer = || anyhow::Ok(RateLimitLayer::new(Limiter::new(MemoryStore::new(), Quota::per_hour(1))?));
    let plain = hello_at("/plain").layer(layer()?.respond(respond::message));
    let router = plain.merge(hello_at("/own").layer(layer()?.respond(own)));
    let server = Server::start(router).await?;
    let client = Client::new(server.address);
    client.get("/plain").await?;
    let plain = client.get("/plain").await?;
    assert_eq!(plain.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(plain.header("content-type")?, Some("application/json"));
    let words = "Too many requests. Try again in 3600 s.";
    assert_eq!(plain.json()?, json!({ "message": words, "retry_after_seconds": 3600 }));
    client.get("/own").await?;
    let own = client.get("/own").await?;
    assert_eq!((own.status.as_u16(), own.header("x-own")?), (420, Some("1")));
    assert_eq!(own.body, "429 Too Many Requests /own in Some(3600)");
    assert_eq!(own.header("retry-after")?, Some("7"), "it is the service's to say");
    assert_eq!(own.header("cache-control")?, Some("private"), "it is the service's to say");
    assert!(own.header("ratelimit")?.is_some());
    Ok(())
}

#[tokio::test]
async fn a_handler_sees_the_decision() -> anyhow::Result<()> {
    let left = |decision: Option<Extension<Decision>>| async move {
        let Some(Extension(decision)) = decision else { return "no decision".to_owned() };
        decision.remaining().expect("a limit").to_string()
    };
    let layer = RateLimitLayer::new(three()?).exempt(|request| request.uri.query() == Some("exempt"));
    let layer = layer.cost(|request| u64::from(request.uri.query() != Some("free")));
    let server = Server::start(Router::new().route("/", get(left)).layer(layer)).await?;
    let client = Client::new(server.address);
    for (path, body) in [("/", "2"), ("/?exempt", "no decision"), ("/?free", "no decision"), ("/", "1")] {
        assert_eq!(client.get(path).await?.body, body, "{path}");
    }
    Ok(())
}

#[tokio::test]
async fn a_layer_outside_sees_why_a_request_was_refused() -> anyhow::Result<()> {
    let tell = middleware::map_response(async |mut response: Response<Body>| {
        let why = match response.extensions().get::<Refusal>() {
            Some(Refusal::Denied { limit, key, .. }) => {
                format!("denied by {limit}: {}", key.as_ref().expect("a layer asked"))
            }
            Some(other) => other.message(),
            None => "served".to_owned(),
        };
        response.headers_mut().insert("x-why", why.parse().expect("it is plain"));
        response
    });
    let server = Server::start(hello().layer(RateLimitLayer::new(three()?)).layer(tell)).await?;
    let client = Client::new(server.address);
    for _ in 0..3 {
        assert_eq!(client.get("/").await?.header("x-why")?, Some("served"));
    }
    assert_eq!(client.get("/").await?.header("x-why")?, Some("denied by default: 127.0.0.1"));
    Ok(())
}

#[tokio::test]
async fn outer_layer_can_write_its_own_headers() -> anyhow::Result<()> {
    let tell = middleware::map_response(async |mut response: Response<Body>| {
        if let Some(left) = response.extensions().get().and_then(Decision::remaining) {
            response.headers_mut().insert("x-ratelimit-remaining", left.into());
        }
        response
    });
    let layer = RateLimitLayer::new(three()?).cost(|request| u64::from(request.uri.query() != Some("free")));
    let server = Server::start(hello().layer(layer).layer(tell)).await?;
    let client = Client::new(server.address);
    for (path, left) in [("/", Some("2")), ("/?free", None), ("/", Some("1")), ("/", Some("0")), ("/", Some("0"))] {
        assert_eq!(client.get(path).await?.header("x-ratelimit-remaining")?, left, "{path}");
    }
    Ok(())
}

#[tokio::test]
async fn a_failing_database_is_not_a_denial_and_never_a_grant() -> anyhow::Result<()> {
    let by = |limiter| hello().layer(RateLimitLayer::new(limiter));
    let without = Server::start(by(Limiter::new(Broken, Quota::per_second(1000))?)).await?;
    let answer = Client::new(without.address).get("/").await?;
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(answer.header("retry-after")?, None);
    assert!(!String::from_utf8(answer.body.to_vec())?.contains("secret"), "{:?}", answer.body);

    let own = |refusal: &Refusal, request: &Parts| match refusal {
        Refusal::Failed(_) => Response::builder().status(504).body(Bytes::new()).expect("it is an answer"),
        _ => respond::problem(refusal, request),
    };
    let layer = RateLimitLayer::new(Limiter::new(Broken, Quota::per_second(1000))?).respond(own);
    let server = Server::start(hello().layer(layer)).await?;
    assert_eq!(Client::new(server.address).get("/").await?.status, StatusCode::GATEWAY_TIMEOUT);

    let falls_back = |fallback| {
        let limiter = Limiter::builder(Broken).deadline(Duration::from_secs(5)).fallback(fallback);
        anyhow::Ok(by(limiter.build(Quota::per_second(1000))?))
    };
    for (fallback, status) in [
        (Fallback::Open, StatusCode::OK),
        (Fallback::Closed(Duration::from_secs(3)), StatusCode::TOO_MANY_REQUESTS),
        (Fallback::Local(Quota::once(1)?), StatusCode::OK),
    ] {
        let server = Server::start(falls_back(fallback.clone())?).await?;
        let client = Client::new(server.address);
        let answer = client.get("/").await?;
        assert_eq!(answer.status, status, "{fallback:?}");
        match fallback {
            Fallback::Closed(_) => {
                assert_eq!(answer.header("retry-after")?, Some("3"));
                let kind = answer.json()?["type"].to_string();
                assert!(kind.ends_with("#temporary-reduced-capacity\""), "{kind}");
            }
            Fallback::Local(_) => assert_eq!(client.get("/").await?.status, StatusCode::TOO_MANY_REQUESTS),
            _ => {}
        }
    }
    Ok(())
}

#[tokio::test]
async fn invalid_request_of_the_service_is_a_server_error() -> anyhow::Result<()> {
    let limiter = Limiter::new(MemoryStore::new(), Rule::Provisioned)?;
    let layer = RateLimitLayer::new(limiter).plan(|_: &Parts| "none such");
    let server = Server::start(hello().layer(layer)).await?;
    let answer = Client::new(server.address).get("/").await?;
    assert_eq!(answer.status, StatusCode::INTERNAL_SERVER_ERROR);
    assert!(!String::from_utf8(answer.body.to_vec())?.contains("token_plans"), "{:?}", answer.body);

    // A plan name that is not a valid key fails, and takes nothing.
    let layer = RateLimitLayer::new(three()?).plan(|_: &Parts| "x".repeat(256));
    let server = Server::start(hello().layer(layer)).await?;
    assert_eq!(Client::new(server.address).get("/").await?.status, StatusCode::INTERNAL_SERVER_ERROR);

    // A window must be the only limit.
    let window = Window::new(100, Duration::from_secs(60), Duration::from_secs(5))?;
    let among_others = RateLimitLayer::new(three()?).and("window", GlobalKey, window);
    let words = among_others.expect_err("it would be answered with 500").to_string();
    assert!(words.starts_with("limit 'window' of the layer is a sliding window"), "{words}");
    let limiter = Limiter::new(MemoryStore::new(), window)?;
    assert!(RateLimitLayer::new(limiter).and("all", GlobalKey, Quota::per_hour(4)).is_err());
    let by_request =
        RateLimitLayer::new(three()?).and("all", GlobalKey, Quota::per_hour(4))?.rule(move |_: &Parts| window);
    let server = Server::start(hello().layer(by_request)).await?;
    assert_eq!(Client::new(server.address).get("/").await?.status, StatusCode::INTERNAL_SERVER_ERROR);

    let unknown = Error::Take(TakeError::UnknownPlan { key: Key::try_from("a")?, plan: None });
    assert_eq!(Refusal::Failed(unknown).status(), StatusCode::INTERNAL_SERVER_ERROR);
    Ok(())
}

#[tokio::test]
async fn a_request_pays_its_cost() -> anyhow::Result<()> {
    let cost = |request: &Parts| request.uri.query().and_then(|query| query.parse().ok()).unwrap_or(1);
    let server = Server::start(hello().layer(RateLimitLayer::new(three()?).cost(cost))).await?;
    let client = Client::new(server.address);
    for (path, status) in [
        ("/?4", StatusCode::BAD_REQUEST), // more than three can never be had
        ("/?18446744073709551615", StatusCode::BAD_REQUEST),
        ("/?2", StatusCode::OK),
        ("/?2", StatusCode::TOO_MANY_REQUESTS),
        ("/?1", StatusCode::OK),
        ("/", StatusCode::TOO_MANY_REQUESTS),
        ("/?0", StatusCode::OK),
    ] {
        assert_eq!(client.get(path).await?.status, status, "{path}");
    }
    let printed = client.get("/?4").await?.json()?;
    assert_eq!(printed["detail"], "This request costs 4 tokens. The limit allows at most 3 at once.");
    Ok(())
}

#[tokio::test]
async fn an_exempt_request_takes_nothing() -> anyhow::Result<()> {
    let layer = RateLimitLayer::new(three()?).exempt(|request| request.uri.path() == "/health");
    let router = hello().route("/health", get(|| async { "well" })).layer(layer);
    let server = Server::start(router).await?;
    let client = Client::new(server.address);
    for _ in 0..10 {
        assert_eq!(client.get("/health").await?.status, StatusCode::OK);
    }
    assert_eq!(client.get("/").await?.status, StatusCode::OK);
    Ok(())
}

#[tokio::test]
async fn request_takes_from_all_limits_or_from_none() -> anyhow::Result<()> {
    let client_id = |request: &Parts| Some(request.headers.get("x-client")?.to_str().ok()?.to_owned());
    let layer =
        RateLimitLayer::new(three()?).name("client").key(client_id).and("all", GlobalKey, Quota::per_hour(4))?;
    let server = Server::start(hello().layer(layer)).await?;
    let client = Client::new(server.address);
    for (id, denied_by) in
        [("a", None), ("a", None), ("a", None), ("a", Some("client")), ("b", None), ("b", Some("all"))]
    {
        let answer = client.get_with("/", &[("x-client", id)]).await?;
        match denied_by {
            None => assert_eq!(answer.status, StatusCode::OK, "{id}"),
            Some(name) => assert_eq!(answer.json()?["violated-policies"], json!([name]), "{id}"),
        }
    }
    Ok(())
}

#[tokio::test]
async fn limits_of_a_layer_must_have_different_names() -> anyhow::Result<()> {
    let layer = || anyhow::Ok(RateLimitLayer::new(three()?).key(GlobalKey));
    let twice = layer()?.and("all", GlobalKey, Quota::per_hour(4))?.and("all", GlobalKey, Quota::per_hour(9));
    let words = twice.expect_err("the first would not hold").to_string();
    assert_eq!(words, "two limits of the layer are called 'all': give each a name of its own");
    assert!(layer()?.and("default", GlobalKey, Quota::per_hour(4)).is_err());
    assert!(layer()?.name("all").and("all", GlobalKey, Quota::per_hour(4)).is_err());
    // A `name` call after `and` is too late for a check, so the layer answers 500.
    let server = Server::start(hello().layer(layer()?.and("all", GlobalKey, Quota::per_hour(4))?.name("all"))).await?;
    let answer = Client::new(server.address).get("/").await?;
    assert_eq!(answer.status, StatusCode::INTERNAL_SERVER_ERROR);
    let detail = "Two limits of the layer are called 'all'. Give each limit its own name.";
    assert_eq!(answer.json()?["detail"], detail);
    Ok(())
}

#[tokio::test]
async fn shared_limit_stays_when_the_database_stops() -> anyhow::Result<()> {
    let fallback = Fallback::Local(Quota::per_hour(2).build()?);
    let limiter =
        Limiter::builder(Broken).deadline(Duration::from_secs(5)).fallback(fallback).build(Quota::per_hour(1000))?;
    let client_id = |request: &Parts| Some(request.headers.get("x-client")?.to_str().ok()?.to_owned());
    let layer = RateLimitLayer::new(limiter).key(client_id).and("all", GlobalKey, Quota::per_hour(5))?;
    let server = Server::start(hello().layer(layer)).await?;
    let client = Client::new(server.address);
    let mut ids = String::new();
    for id in ["a", "a", "a", "b", "b", "b", "c", "c"] {
        if client.get_with("/", &[("x-client", id)]).await?.status == StatusCode::OK {
            ids += id;
        }
    }
    assert_eq!(ids, "aabbc", "two for each, and five for all");
    Ok(())
}

#[tokio::test]
async fn local_fallback_by_plan_applies_in_a_layer() -> anyhow::Result<()> {
    let (paid, free) = (Quota::per_hour(4).build()?, Quota::per_hour(1).build()?);
    let fallback = Fallback::local_by(move |limit| match limit.rule() {
        Rule::Plan(plan) if plan.as_str() == "paid" => paid,
        _ => free,
    });
    let limiter =
        Limiter::builder(Broken).deadline(Duration::from_secs(5)).fallback(fallback).build(Quota::per_hour(1000))?;
    let plan = |request: &Parts| request.headers.get("x-plan")?.to_str().ok().map(ToOwned::to_owned);
    let layer = RateLimitLayer::new(limiter).key(plan).plan(move |request| plan(request).unwrap_or_default());
    let server = Server::start(hello().layer(layer)).await?;
    let client = Client::new(server.address);
    for (name, expected) in [("paid", 4), ("free", 1)] {
        let mut granted = 0;
        for _ in 0..6 {
            granted += u32::from(client.get_with("/", &[("x-plan", name)]).await?.status == StatusCode::OK);
        }
        assert_eq!(granted, expected, "{name}");
    }
    Ok(())
}

fn three() -> anyhow::Result<Limiter<MemoryStore>> {
    Ok(Limiter::new(MemoryStore::new(), Quota::per_hour(3))?)
}

fn hello() -> Router {
    hello_at("/")
}

fn hello_at(path: &str) -> Router {
    Router::new().route(path, get(|| async { "hello" }))
}
