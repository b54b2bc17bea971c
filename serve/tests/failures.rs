//! A store that does not answer: the configuration says what happens.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{bail, ensure};
use axum::body::Body;
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use tokio::sync::Semaphore;
use tokio::task::yield_now;
use tokio::time::timeout;
use tollgate::model::Outcome;
use tollgate::store::TestStore;
use tollgate::{
    Adjusted, Adjustment, AnyStore, Error, Key, Limiter, MemoryStore, Rule, Store as _, Take, TakeError, Throttle,
};
use tollgate_serve::{Config, Server};
use tower::ServiceExt;

/// A store that never answers.
struct Silent;

impl TestStore for Silent {
    async fn take(&self, _: &[Take]) -> Result<Vec<Outcome>, Error> {
        std::future::pending().await
    }

    async fn adjust(&self, _: &[Adjustment]) -> Result<Vec<Result<Adjusted, TakeError>>, Error> {
        std::future::pending().await
    }
}

/// A store whose adjustments wait for a permit.
struct Blocked {
    memory: Arc<MemoryStore>,
    permits: Arc<Semaphore>,
}

impl TestStore for Blocked {
    async fn take(&self, takes: &[Take]) -> Result<Vec<Outcome>, Error> {
        self.memory.take(takes).await
    }

    async fn adjust(&self, adjustments: &[Adjustment]) -> Result<Vec<Result<Adjusted, TakeError>>, Error> {
        self.permits.acquire().await.map_err(Error::other)?.forget();
        self.memory.adjust(adjustments).await
    }

    async fn throttle(&self, key: &Key, rule: &Rule, throttle: Throttle) -> Result<bool, Error> {
        self.memory.throttle(key, rule, throttle).await
    }
}

fn server(on_error: &str) -> anyhow::Result<Server> {
    let limiter = Limiter::builder(AnyStore::new(Silent)).deadline(Duration::from_secs(1)).build(Rule::Provisioned)?;
    let yaml = format!(
        "{{domain: edge, tollgate: {{on_error: {on_error}}}, descriptors: [{{key: a, rate_limit: {{unit: day, requests_per_unit: 5}}}}, {{key: shadow, shadow_mode: true, rate_limit: {{unit: day, requests_per_unit: 5}}}}, {{key: quota, quota_mode: true, rate_limit: {{unit: day, requests_per_unit: 5}}}}], \
         checks: {{login: {{key: [x], limits: [5/h], on_error: {on_error}}}}}}}"
    );
    Ok(Server::new(&limiter, Arc::new(MemoryStore::new()), Config::parse(&yaml)?)?)
}

async fn answer_to(server: &Server, request: Request<Body>) -> anyhow::Result<(StatusCode, String)> {
    let answer = server.routes().oneshot(request).await?;
    let status = answer.status();
    Ok((status, String::from_utf8(answer.into_body().collect().await?.to_bytes().to_vec())?))
}

fn json(key: &str) -> anyhow::Result<Request<Body>> {
    let body = format!(r#"{{"domain": "edge", "descriptors": [{{"entries": [{{"key": "{key}", "value": "x"}}]}}]}}"#);
    Ok(Request::post("/json").header("content-type", "application/json").body(Body::from(body))?)
}

#[tokio::test(start_paused = true)]
async fn configuration_decides_while_the_store_is_silent() -> anyhow::Result<()> {
    let (ok, denied, unavailable) = (StatusCode::OK, StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE);
    for (on_error, expected) in [
        ("error", [unavailable, unavailable, unavailable]),
        ("open", [ok, ok, ok]),
        ("closed", [denied, denied, denied]),
        ("{local: 2/h}", [ok, ok, denied]),
    ] {
        let server = server(on_error)?;
        for key in ["a", "quota"] {
            for status in expected {
                let (found, body) = answer_to(&server, json(key)?).await?;
                ensure!(found == status, "{key}, {on_error}: {found} {body}");
            }
        }
        for status in expected {
            let (found, body) = answer_to(&server, Request::get("/check/login").body(Body::empty())?).await?;
            ensure!(found == status, "check, {on_error}: {found} {body}");
        }
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn open_circuit_breaker_answers_at_once() -> anyhow::Result<()> {
    let server = server("open")?;
    for _ in 0..16 {
        answer_to(&server, json("a")?).await?;
    }
    let before = tokio::time::Instant::now();
    ensure!(answer_to(&server, json("a")?).await?.0 == StatusCode::OK);
    ensure!(before.elapsed().is_zero(), "the time of the runtime stands still while nothing waits");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn look_at_a_limit_in_shadow_mode_is_never_denied() -> anyhow::Result<()> {
    let server = server("closed")?;
    // Opens the circuit breaker, and begins to test the store.
    for _ in 0..17 {
        answer_to(&server, json("a")?).await?;
    }
    for (key, status) in [("shadow", StatusCode::OK), ("a", StatusCode::TOO_MANY_REQUESTS)] {
        let body = format!(
            r#"{{"domain": "edge", "descriptors": [{{"entries": [{{"key": "{key}", "value": "x"}}], "hitsAddend": "0"}}]}}"#
        );
        let request = Request::post("/json").header("content-type", "application/json").body(Body::from(body))?;
        let (found, body) = answer_to(&server, request).await?;
        ensure!(found == status, "{key}: {found} {body}");
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn usage_counts_after_its_caller_has_left() -> anyhow::Result<()> {
    let (memory, permits) = (Arc::new(MemoryStore::new()), Arc::new(Semaphore::new(0)));
    let blocked = Blocked { memory: Arc::clone(&memory), permits: Arc::clone(&permits) };
    let limiter = Limiter::builder(AnyStore::new(blocked)).build(Rule::Provisioned)?;
    let yaml = "{domain: edge, descriptors: [{key: a, rate_limit: {tollgate: {limit: 100/h, after_use: true}}}]}";
    let server = Server::new(&limiter, Arc::clone(&memory), Config::parse(yaml)?)?;
    let caller = timeout(Duration::from_millis(1), answer_to(&server, json("a")?)).await;
    ensure!(caller.is_err(), "the caller has left before the charge");
    permits.add_permits(8);
    let of_memory = Limiter::new(memory, Rule::Provisioned)?;
    for _ in 0..1000 {
        if of_memory.peek("4=edge 1=a x").await.is_ok_and(|level| level.available() == 99) {
            return Ok(());
        }
        yield_now().await;
    }
    bail!("the usage is lost")
}
