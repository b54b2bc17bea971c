//! Requests that are not counted, by what the service answers.

use axum::Router;
use axum::extract::Query;
use axum::http::StatusCode;
use axum::http::response::Parts;
use axum::routing::get;
use tollgate::tower::{ClientAddr, RateLimitLayer};
use tollgate::{Admin, Key, Limiter, MemoryStore, Quota};

use super::client::Client;
use super::server::Server;

#[tokio::test]
async fn only_failed_logins_are_counted() -> anyhow::Result<()> {
    let limiter = Limiter::new(MemoryStore::new(), Quota::per_hour(5))?;
    let login = |Query(form): Query<Login>| async move {
        if form.password == "right" { StatusCode::NO_CONTENT } else { StatusCode::UNAUTHORIZED }
    };
    let failed = RateLimitLayer::new(limiter)
        .key(ClientAddr::peer())
        .refund(|answer, cost| if answer.status.is_success() { cost } else { 0 });
    let server = Server::start(Router::new().route("/login", get(login)).layer(failed)).await?;
    let client = Client::new(server.address);
    // Each token is back before the answer is there.
    for _ in 0..50 {
        assert_eq!(client.get("/login?password=right").await?.status, StatusCode::NO_CONTENT);
    }
    for _ in 0..5 {
        assert_eq!(client.get("/login?password=wrong").await?.status, StatusCode::UNAUTHORIZED);
    }
    assert_eq!(client.get("/login?password=right").await?.status, StatusCode::TOO_MANY_REQUESTS);
    Ok(())
}

#[derive(serde::Deserialize)]
struct Login {
    password: String,
}

#[tokio::test]
async fn what_was_not_used_is_given_back_and_never_more_than_was_taken() -> anyhow::Result<()> {
    let limiter = Limiter::new(MemoryStore::new(), Quota::per_hour(100))?;
    let cached = |answer: &Parts, cost| {
        let unused = answer.headers.get("x-unused").and_then(|unused| unused.to_str().ok()?.parse().ok());
        unused.unwrap_or(cost + 1_000_000)
    };
    let work = |Query(said): Query<Said>| async move { [("x-unused", said.unused.unwrap_or_default())] };
    let layer = RateLimitLayer::new(limiter.clone()).cost(|_| 10).refund(cached);
    let server = Server::start(Router::new().route("/", get(work)).layer(layer)).await?;
    let client = Client::new(server.address);
    let left = async || {
        let level = limiter.store().peek(&Key::try_from("127.0.0.1")?).await?;
        anyhow::Ok(level.map(|level| level.available))
    };
    for (path, left_then) in [("/?unused=0", 90), ("/?unused=7", 87), ("/?unused=10", 87), ("/", 87)] {
        client.get(path).await?;
        assert_eq!(left().await?, Some(left_then), "{path}");
    }
    Ok(())
}

#[derive(serde::Deserialize)]
struct Said {
    unused: Option<String>,
}
