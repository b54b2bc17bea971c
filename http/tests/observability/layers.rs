//! Logs and metrics of a layer in shadow mode, and of requests without a key.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use axum::http::request::Parts;
use axum::http::{Request, Response, StatusCode};
use tollgate::{Admin, Limiter, MemoryStore};
use tollgate_http::{Header, RateLimitLayer};
use tollgate_tests::logged;
use tollgate_tests::recorded::{recorder, value};
use tower::{Layer, ServiceExt, service_fn};

#[tokio::test]
async fn shadow_layer_logs_shadow_and_not_denied() -> anyhow::Result<()> {
    let recorder = recorder()?;
    let (handle, _guard) = (recorder.handle(), metrics::set_default_local_recorder(&recorder));
    let limiter = Limiter::builder(MemoryStore::new()).name("trial").count_denials(10).build("1 once")?;
    let layer = RateLimitLayer::new(limiter.clone()).key(|_: &Parts| Some("a".to_owned())).shadow();
    let service = layer.layer(service_fn(async |_: Request<Body>| Ok::<_, Infallible>(Response::new(Body::empty()))));
    for _ in 0..3 {
        assert_eq!(service.clone().oneshot(Request::new(Body::empty())).await?.status(), StatusCode::OK);
    }
    let count = |outcome, mode| {
        value(&handle, "tollgate_decisions_total", &[("limiter", "trial"), ("outcome", outcome), ("mode", mode)])
    };
    assert_eq!([count("granted", "enforce"), count("granted", "shadow")], [Some(1.0), Some(2.0)]);
    assert_eq!(count("denied", "enforce"), Some(0.0));
    limiter.close().await?;
    let reported = limiter.store().most_denied(10).await?;
    assert_eq!(
        reported.iter().map(|reported| (reported.key.as_str(), reported.denied)).collect::<Vec<_>>(),
        [("a", 2)]
    );
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn missing_client_address_is_logged_and_counted() -> anyhow::Result<()> {
    let recorder = recorder()?;
    let (handle, _guard) = (recorder.handle(), metrics::set_default_local_recorder(&recorder));
    logged::listen();
    let limiter = Limiter::builder(MemoryStore::new()).name("served").build("1/s")?;
    let inner = service_fn(async |_: Request<Body>| Ok::<_, Infallible>(Response::new(Body::empty())));
    // The request has no peer address.
    let by_address = RateLimitLayer::new(limiter.clone()).layer(inner);
    for seconds in [0, 0, 59, 1] {
        tokio::time::advance(Duration::from_secs(seconds)).await;
        let answer = by_address.clone().oneshot(Request::new(Body::empty())).await?;
        assert_eq!(answer.status(), StatusCode::INTERNAL_SERVER_ERROR);
    }
    let by_header =
        RateLimitLayer::new(limiter).key(Header::new(http::HeaderName::from_static("x-client"))).layer(inner);
    assert_eq!(by_header.oneshot(Request::new(Body::empty())).await?.status(), StatusCode::BAD_REQUEST);
    let labels = [("limiter", "served"), ("outcome", "error"), ("source", "limiter"), ("mode", "enforce")];
    assert_eq!(value(&handle, "tollgate_decisions_total", &labels), Some(5.0));
    let errors = |error| value(&handle, "tollgate_errors_total", &[("limiter", "served"), ("error", error)]);
    assert_eq!([errors("not_set_up"), errors("no_key")], [Some(4.0), Some(1.0)]);
    let text = logged::text();
    for (line, times) in [
        ("WARN tollgate: request without a key limiter=\"served\" status=500 reason=", 2),
        ("DEBUG tollgate: request without a key limiter=\"served\" status=500 reason=", 2),
        ("DEBUG tollgate: request without a key limiter=\"served\" status=400\n", 1),
    ] {
        assert_eq!(text.matches(line).count(), times, "{line} in {text}");
    }
    Ok(())
}

#[tokio::test]
async fn request_without_key_is_counted_once_and_is_no_error() -> anyhow::Result<()> {
    let recorder = recorder()?;
    let (handle, _guard) = (recorder.handle(), metrics::set_default_local_recorder(&recorder));
    logged::listen();
    let limiter = Limiter::builder(MemoryStore::new()).name("open").build("9/h")?;
    let inner = service_fn(async |_: Request<Body>| Ok::<_, Infallible>(Response::new(Body::empty())));
    let client = || Header::new(http::HeaderName::from_static("x-client"));
    let one = RateLimitLayer::new(limiter.clone()).key(client()).allow_missing_key();
    let both = one.clone().and("all", |_: &Parts| Some("all"), "9/h")?;
    for layer in [one, both] {
        let answer = layer.layer(inner).oneshot(Request::new(Body::empty())).await?;
        assert_eq!(answer.status(), StatusCode::OK);
    }
    let count = |outcome, source| {
        let labels = [("limiter", "open"), ("outcome", outcome), ("source", source), ("mode", "enforce")];
        value(&handle, "tollgate_decisions_total", &labels)
    };
    // The second request was granted by its other limit.
    assert_eq!([count("granted", "limiter"), count("granted", "memory")], [Some(1.0), Some(1.0)]);
    assert_eq!((count("error", "limiter"), value(&handle, "tollgate_errors_total", &[])), (None, None));
    let text = logged::text();
    let reported = "DEBUG tollgate: request without a key passes limiter=\"open\"\n";
    assert_eq!(text.matches(reported).count(), 1, "{text}");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn missing_plan_is_logged_once_a_minute() -> anyhow::Result<()> {
    logged::listen();
    let limiter = Limiter::builder(MemoryStore::new()).name("planned").build("1/s")?;
    let inner = service_fn(async |_: Request<Body>| Ok::<_, Infallible>(Response::new(Body::empty())));
    let layer = RateLimitLayer::new(limiter).key(|_: &Parts| Some("a".to_owned())).plan(|_| "gold").layer(inner);
    for seconds in [0, 59, 1] {
        tokio::time::advance(Duration::from_secs(seconds)).await;
        let answer = layer.clone().oneshot(Request::new(Body::empty())).await?;
        assert_eq!(answer.status(), StatusCode::INTERNAL_SERVER_ERROR);
    }
    let text = logged::text();
    let warned = "WARN tollgate: no decision limiter=\"planned\" error=\"not_set_up\" plan=\"gold\"";
    assert_eq!(text.matches(warned).count(), 2, "{text}");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn missing_rule_for_a_request_is_logged_and_counted() -> anyhow::Result<()> {
    let recorder = recorder()?;
    let (handle, _guard) = (recorder.handle(), metrics::set_default_local_recorder(&recorder));
    logged::listen();
    let limiter = Limiter::builder(MemoryStore::new()).name("planned").build("1/s")?;
    let inner = service_fn(async |_: Request<Body>| Ok::<_, Infallible>(Response::new(Body::empty())));
    let no_rule = |_: &Parts| "as 203.0.113.7";
    let layer = RateLimitLayer::new(limiter).key(|_: &Parts| Some("a".to_owned())).rule(no_rule).layer(inner);
    for seconds in [0, 59, 1] {
        tokio::time::advance(Duration::from_secs(seconds)).await;
        let answer = layer.clone().oneshot(Request::new(Body::empty())).await?;
        assert_eq!(answer.status(), StatusCode::INTERNAL_SERVER_ERROR);
    }
    let labels = [("limiter", "planned"), ("outcome", "error"), ("source", "limiter")];
    assert_eq!(value(&handle, "tollgate_decisions_total", &labels), Some(3.0));
    assert_eq!(value(&handle, "tollgate_errors_total", &[("limiter", "planned"), ("error", "not_set_up")]), Some(3.0));
    let (text, reported) =
        (logged::text(), |level| format!("{level} tollgate: no limits for a request limiter=\"planned\""));
    assert_eq!([text.matches(&reported("WARN")).count(), text.matches(&reported("DEBUG")).count()], [2, 1], "{text}");
    assert!(!text.contains("203.0.113.7"), "{text}");
    Ok(())
}
