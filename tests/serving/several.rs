//! Several limits of one layer, each by what the request says.

use axum::Router;
use axum::http::header::HeaderName;
use axum::http::request::Parts;
use axum::routing::get;
use tollgate::tower::{Everybody, Header, RateLimitLayer};
use tollgate::{Admin, Key, Limiter, MemoryStore, Quota, Rule, Window};

use super::client::Client;
use super::server::Server;

#[tokio::test]
async fn each_limit_may_be_under_a_plan_of_the_request() -> anyhow::Result<()> {
    let limiter = Limiter::new(MemoryStore::new(), Quota::once(1)?)?;
    for (plan, quota) in
        [("free hour", "9 once"), ("free day", "2 once"), ("paid hour", "3 once"), ("paid day", "9 once")]
    {
        limiter.store().create_plan(&Key::try_from(plan)?, quota.parse()?).await?;
    }
    let user = || Header::new(HeaderName::from_static("x-user"));
    let layer =
        RateLimitLayer::new(limiter).name("hour").key(user()).rule(plan("hour")).and_by("day", user(), plan("day"))?;
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
    // A plan that does not exist is the service's fault.
    assert_eq!(client.get_with("/", &[("x-user", "a"), ("x-plan", "none such")]).await?.status, 500);
    Ok(())
}

/// That of the request's client, for such a period.
fn plan(period: &'static str) -> impl Fn(&Parts) -> Rule + Send + Sync + 'static {
    move |request| {
        let says = request.headers.get("x-plan").and_then(|value| value.to_str().ok()).unwrap_or("free");
        Rule::Plan(Key::try_from(format!("{says} {period}")).expect("it is short"))
    }
}

#[tokio::test]
async fn terms_of_a_request_are_no_window_among_several() -> anyhow::Result<()> {
    let limiter = Limiter::new(MemoryStore::new(), Quota::per_hour(9))?;
    let window: Window = "9 in 1h at 1min".parse()?;
    let layer = RateLimitLayer::new(limiter).and_by("window", Everybody, move |_| window)?;
    assert!(layer.clone().and_by("window", Everybody, |_| Rule::Provisioned).is_err(), "there is one of that name");
    let server = Server::start(Router::new().route("/", get(|| async {})).layer(layer)).await?;
    assert_eq!(Client::new(server.address).get("/").await?.status, 500);
    Ok(())
}
