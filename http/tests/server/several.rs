//! Several limits of one layer, with keys, costs and rules from the request.

use std::time::Duration;

use axum::Router;
use axum::http::header::HeaderName;
use axum::http::request::Parts;
use axum::http::response;
use axum::routing::get;
use tollgate::{Admin, Fallback, Key, Limiter, MemoryStore, Quota, Rule, Window};
use tollgate_http::{GlobalKey, Header, RateLimitHeaders, RateLimitLayer};

use super::broken::Broken;
use super::client::Client;
use super::server::Server;

#[tokio::test]
async fn each_limit_can_have_a_plan_from_the_request() -> anyhow::Result<()> {
    let limiter = Limiter::new(MemoryStore::new(), Quota::once(1)?)?;
    for (plan, quota) in
        [("free hour", "9 once"), ("free day", "2 once"), ("paid hour", "3 once"), ("paid day", "9 once")]
    {
        limiter.store().create_plan(&Key::try_from(plan)?, quota.parse()?).await?;
    }
    let user = || Header::new(HeaderName::from_static("x-user"));
    let layer = RateLimitLayer::new(limiter).name("hour").key(user()).rule(plan("hour")).and_with(
        "day",
        user(),
        plan("day"),
    )?;
    let server = Server::start(Router::new().route("/", get(|| async {})).layer(layer)).await?;
    let client = Client::new(server.address);
    for (plan, limit, served) in [("free", "day", 2), ("paid", "hour", 3)] {
        let headers = [("x-user", plan), ("x-plan", plan)];
        for _ in 0..served {
            assert_eq!(client.get_with("/", &headers).await?.status, 200, "{plan}");
        }
        let denied = client.get_with("/", &headers).await?;
        assert_eq!(denied.status, 429, "{plan}");
        assert_eq!(denied.json()?["violated-policies"], serde_json::json!([limit]));
    }
    // A plan that does not exist is a server error.
    assert_eq!(client.get_with("/", &[("x-user", "a"), ("x-plan", "none such")]).await?.status, 500);
    Ok(())
}

/// Each limit of a plan has its own items in the headers, and a refund gives back its tokens.
#[tokio::test]
async fn headers_list_each_limit_of_a_plan() -> anyhow::Result<()> {
    let (store, free) = (MemoryStore::new(), Key::try_from("free")?);
    store.create_plan(&free, "10 once; day: 3/d".parse()?).await?;
    let layer = RateLimitLayer::new(Limiter::new(store, Rule::Plan(free))?)
        .key(GlobalKey)
        .headers(RateLimitHeaders::Always)
        .refund(|answer, cost| if answer.status == 404 { cost } else { 0 });
    let server = Server::start(Router::new().route("/", get(|| async {})).layer(layer)).await?;
    let client = Client::new(server.address);
    for (path, left) in [("/", [9, 2]), ("/missing", [9, 2]), ("/", [8, 1]), ("/", [7, 0])] {
        let answer = client.get_with(path, &[]).await?;
        let policies = answer.values("ratelimit-policy")?;
        assert_eq!(policies, ["\"default\";q=10", "\"day\";q=3;w=86400"], "{path}");
        let limits = answer.values("ratelimit")?;
        let counted: Vec<_> = limits.iter().filter_map(|item| item.split(';').nth(1)).collect();
        assert_eq!(counted, left.map(|left| format!("r={left}")), "{path}: {limits:?}");
    }
    let denied = client.get_with("/", &[]).await?;
    assert_eq!((denied.status.as_u16(), &denied.json()?["violated-policies"]), (429, &serde_json::json!(["day"])));
    Ok(())
}

/// Returns the plan of the request's client for a period.
fn plan(period: &'static str) -> impl Fn(&Parts) -> Rule + Send + Sync + 'static {
    move |request| {
        let says = request.headers.get("x-plan").and_then(|value| value.to_str().ok()).unwrap_or("free");
        Rule::Plan(Key::try_from(format!("{says} {period}")).expect("it is short"))
    }
}

/// Returns the tokens left under a limit without a name and under one of bytes, both shared by all clients.
async fn left(limiter: &Limiter<MemoryStore>) -> anyhow::Result<[Option<i64>; 2]> {
    let [unnamed, bytes] = ["everybody", "5=bytes everybody"].map(Key::try_from);
    let level = async |key| anyhow::Ok(limiter.store().peek(&key).await?.map(|level| level.available()));
    Ok([level(unnamed?).await?, level(bytes?).await?])
}

#[tokio::test]
async fn each_limit_can_have_its_own_cost() -> anyhow::Result<()> {
    let limiter = Limiter::new(MemoryStore::new(), Quota::once(5)?)?;
    let length = |request: &Parts| {
        let length = request.headers.get("x-length").and_then(|length| length.to_str().ok());
        length.and_then(|length| length.parse().ok()).unwrap_or(0)
    };
    let free = |request: &Parts| u64::from(request.uri.path() != "/free");
    let layer = RateLimitLayer::new(limiter.clone())
        .key(GlobalKey)
        .cost(free)
        .and("bytes", GlobalKey, Quota::once(100)?)?
        .cost_of("bytes", length)?
        .unit_of("bytes", "content-bytes")?
        .refund(|answer, cost| if answer.status == 404 { cost } else { 0 });
    let unknown = layer.clone().cost_of("byte", length).expect_err("there is no such limit").to_string();
    assert_eq!(unknown, "no limit of the layer is called 'byte': add it before, or name one of 'default', 'bytes'");
    let routes = Router::new().route("/", get(|| async {})).route("/free", get(|| async {}));
    let server = Server::start(routes.layer(layer)).await?;
    let client = Client::new(server.address);
    for (path, length, status, after) in [
        ("/", "0", 200, [Some(4), None]),
        ("/", "60", 200, [Some(3), Some(40)]),
        ("/", "41", 429, [Some(3), Some(40)]),
        ("/free", "10", 200, [Some(3), Some(30)]),
        ("/free", "0", 200, [Some(3), Some(30)]),
        ("/free", "31", 429, [Some(3), Some(30)]),
        // Both limits get their unused tokens back.
        ("/none", "5", 404, [Some(3), Some(30)]),
        ("/", "101", 400, [Some(3), Some(30)]),
    ] {
        assert_eq!(client.get_with(path, &[("x-length", length)]).await?.status, status, "{path} of {length}");
        assert_eq!(left(&limiter).await?, after, "{path} of {length}");
    }
    let denied = client.get_with("/free", &[("x-length", "31")]).await?;
    assert_eq!(denied.header("ratelimit-policy")?, Some("\"bytes\";q=100;qu=\"content-bytes\""));
    Ok(())
}

#[tokio::test]
async fn limits_have_own_local_quotas_during_an_outage() -> anyhow::Result<()> {
    let fallback = Fallback::Local(Quota::once(9)?);
    let limiter = Limiter::builder(Broken).deadline(Duration::from_secs(5)).fallback(fallback).build("1/h")?;
    let layer = RateLimitLayer::new(limiter)
        .key(GlobalKey)
        .and("bytes", GlobalKey, Quota::per_day(1_000_000))?
        .cost_of("bytes", |_| 300)?
        .fallback_of("bytes", Quota::once(1000)?)?;
    let server = Server::start(Router::new().route("/", get(|| async {})).layer(layer)).await?;
    let client = Client::new(server.address);
    for _ in 0..3 {
        assert_eq!(client.get("/").await?.status, 200);
    }
    let denied = client.get("/").await?;
    assert_eq!(denied.status, 429);
    assert_eq!(denied.json()?["violated-policies"], serde_json::json!(["bytes"]));
    Ok(())
}

#[tokio::test]
async fn each_limit_can_have_its_own_refund() -> anyhow::Result<()> {
    for (others_too, after) in [(false, [4, 30]), (true, [5, 30])] {
        let limiter = Limiter::new(MemoryStore::new(), Quota::once(5)?)?;
        let unsent = |answer: &response::Parts, reserved: u64| {
            let sent = answer.headers.get("x-sent").and_then(|sent| sent.to_str().ok());
            reserved - sent.and_then(|sent| sent.parse().ok()).unwrap_or(reserved)
        };
        let layer = RateLimitLayer::new(limiter.clone())
            .key(GlobalKey)
            .and("bytes", GlobalKey, Quota::once(40)?)?
            .cost_of("bytes", |_| 40)?
            .refund_of("bytes", unsent)?;
        assert!(layer.clone().refund_of("byte", unsent).is_err(), "there is no such limit");
        let layer = if others_too { layer.refund(|_, cost| cost) } else { layer };
        let server = Server::start(Router::new().route("/", get(|| async { [("x-sent", "10")] })).layer(layer)).await?;
        assert_eq!(Client::new(server.address).get("/").await?.status, 200);
        assert_eq!(left(&limiter).await?, after.map(Some));
    }
    Ok(())
}

#[tokio::test]
async fn minimum_remaining_applies_to_limits_with_equal_units() -> anyhow::Result<()> {
    let limiter = Limiter::builder(MemoryStore::new()).min_remaining(2).build(Quota::once(5)?)?;
    let layer = RateLimitLayer::new(limiter)
        .key(GlobalKey)
        .cost_of("default", |_| 1)?
        .and("points", GlobalKey, Quota::once(4)?)?
        .cost_of("points", |_| 1)?;
    let server = Server::start(Router::new().route("/", get(|| async {})).layer(layer)).await?;
    let client = Client::new(server.address);
    for _ in 0..3 {
        assert_eq!(client.get("/").await?.status, 200);
    }
    let denied = client.get("/").await?;
    assert_eq!(denied.status, 429);
    assert_eq!(denied.json()?["violated-policies"], serde_json::json!(["default"]));
    Ok(())
}

#[tokio::test]
async fn window_of_a_request_among_limits_is_a_server_error() -> anyhow::Result<()> {
    let limiter = Limiter::new(MemoryStore::new(), Quota::per_hour(9))?;
    let window: Window = "9 in 1h at 1min".parse()?;
    let layer = RateLimitLayer::new(limiter).and_with("window", GlobalKey, move |_| window)?;
    assert!(layer.clone().and_with("window", GlobalKey, |_| Rule::Provisioned).is_err(), "there is one of that name");
    let server = Server::start(Router::new().route("/", get(|| async {})).layer(layer)).await?;
    assert_eq!(Client::new(server.address).get("/").await?.status, 500);
    Ok(())
}
