//! Logs and metrics of refunds that fail.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use axum::http::request::Parts;
use axum::http::{Request, Response, StatusCode};
use tollgate::{
    Adjusted, Adjustment, Error, Limiter, MemoryStore, Store, Take, TakeError, model::Outcome, store::TestStore,
};
use tollgate_http::RateLimitLayer;
use tollgate_tests::logged;
use tollgate_tests::recorded::{recorder, value};
use tower::{Layer, ServiceExt, service_fn};

/// Sends a request whose refund fails.
async fn a_refund_that_fails(limiter: &Limiter<TakesOnly>) -> anyhow::Result<()> {
    let layer = RateLimitLayer::new(limiter.clone()).key(|_: &Parts| Some("203.0.113.7")).refund(|_, cost| cost);
    let service = layer.layer(service_fn(async |_: Request<Body>| Ok::<_, Infallible>(Response::new(Body::empty()))));
    assert_eq!(service.oneshot(Request::new(Body::empty())).await?.status(), StatusCode::OK);
    Ok(())
}

fn limiter() -> Result<Limiter<TakesOnly>, Error> {
    Limiter::builder(TakesOnly(MemoryStore::new())).name("refunding").build("9/h")
}

#[tokio::test(start_paused = true)]
async fn failed_refund_is_counted_and_logged_without_its_key() -> anyhow::Result<()> {
    let recorder = recorder()?;
    let (handle, _guard) = (recorder.handle(), metrics::set_default_local_recorder(&recorder));
    logged::listen();
    let limiter = limiter()?;
    for seconds in [0, 59, 1] {
        tokio::time::advance(Duration::from_secs(seconds)).await;
        a_refund_that_fails(&limiter).await?;
    }
    let labels = [("limiter", "refunding"), ("error", "other")];
    assert_eq!(value(&handle, "tollgate_refund_errors_total", &labels), Some(3.0));
    assert_eq!(value(&handle, "tollgate_errors_total", &[]), None, "the requests were answered");
    let (text, reported) =
        (logged::text(), |level| format!("{level} tollgate: could not give back limiter=\"refunding\""));
    assert_eq!([text.matches(&reported("WARN")).count(), text.matches(&reported("DEBUG")).count()], [2, 1], "{text}");
    assert!(!text.contains("203.0.113.7"), "{text}");
    Ok(())
}

/// A store whose adjustments fail.
#[derive(Debug)]
struct TakesOnly(MemoryStore);

impl TestStore for TakesOnly {
    async fn take(&self, takes: &[Take]) -> Result<Vec<Outcome>, Error> {
        self.0.take(takes).await
    }

    async fn adjust(&self, _: &[Adjustment]) -> Result<Vec<Result<Adjusted, TakeError>>, Error> {
        Err(Error::other(std::io::Error::other("of 203.0.113.7")))
    }
}
