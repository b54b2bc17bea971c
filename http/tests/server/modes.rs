//! Requests without tokens, which are denied, wait or pass in shadow mode, and the readiness of the service.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::extract::Extension;
use axum::http::header::HeaderName;
use axum::http::request::Parts;
use axum::http::{Request, Response, StatusCode};
use axum::routing::get;
use axum::{Router, middleware};
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore};
use tokio::task::yield_now;
use tollgate::{Admin, Decision, Fallback, Limiter, MemoryStore, Mode, Quota, clock::ManualClock};
use tollgate_http::{GlobalKey, Header, RateLimitLayer, Refusal, ShadowRefusal};
use tower::{Layer, Service, ServiceExt, service_fn};

use super::broken::Broken;
use super::client::Client;
use super::gated::Gated;
use super::server::Server;

/// The store's time is paused. The runtime's time advances when all tasks are idle.
#[tokio::test(start_paused = true)]
async fn waiting_requests_are_served_in_arrival_order() -> anyhow::Result<()> {
    let limiter = Limiter::new(MemoryStore::with_clock(ManualClock::default()), Quota::per_second(1))?;
    let layer = RateLimitLayer::new(limiter).key(GlobalKey).wait(Duration::from_secs(2));
    let served = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&served);
    let service = layer.layer(service_fn(move |request: Request<u32>| {
        seen.lock().push(*request.body());
        std::future::ready(Ok::<_, Infallible>(Response::new(Body::empty())))
    }));
    let mut answers = Vec::new();
    for n in 0..5 {
        answers.push(tokio::spawn(service.clone().oneshot(Request::new(n))));
        yield_now().await;
    }
    let mut statuses = Vec::new();
    for answer in answers {
        statuses.push(answer.await??.status().as_u16());
    }
    // One request now, two within two seconds, and two that would wait longer and are denied at once.
    assert_eq!(statuses, [200, 200, 200, 429, 429]);
    assert_eq!(*served.lock(), [0, 1, 2]);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn client_disconnected_while_waiting_has_used_its_token() -> anyhow::Result<()> {
    let limiter = Limiter::new(MemoryStore::with_clock(ManualClock::default()), Quota::per_second(1))?;
    let layer = RateLimitLayer::new(limiter).key(GlobalKey).wait(Duration::from_secs(1));
    let service = layer.layer(service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(Body::empty()))));
    let ask = || service.clone().oneshot(Request::new(()));
    assert_eq!(ask().await?.status(), StatusCode::OK);
    let waiting = tokio::spawn(ask());
    for _ in 0..10 {
        yield_now().await; // until it waits: nothing here takes time
    }
    waiting.abort();
    assert!(waiting.await.is_err(), "it waited");
    assert_eq!(ask().await?.status(), StatusCode::TOO_MANY_REQUESTS, "the next turn is its still");
    Ok(())
}

#[tokio::test]
async fn client_disconnected_before_the_call_takes_nothing() -> anyhow::Result<()> {
    let store = Gated::before_it_takes();
    let limiter = Limiter::new(Arc::clone(&store), Quota::once(2)?)?;
    let layer = RateLimitLayer::new(limiter).key(GlobalKey).wait(Duration::from_secs(1));
    let service = layer.layer(service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(Body::empty()))));
    let ask = || tokio::spawn(service.clone().oneshot(Request::new(())));
    // The first request is in its call. Behind it, one client disconnects and one stays.
    let first = ask();
    store.requested.notified().await;
    let (goes, stays) = (ask(), ask());
    yield_now().await;
    goes.abort();
    assert!(goes.await.is_err(), "it stood in line");
    store.takes.add_permits(1);
    assert_eq!(first.await??.status(), StatusCode::OK);
    store.requested.notified().await;
    store.takes.add_permits(1);
    assert_eq!(stays.await??.status(), StatusCode::OK, "nobody had the second token");

    let store = Gated::before_it_takes();
    let limiter = Limiter::new(Arc::clone(&store), Quota::once(1)?)?;
    let layer = RateLimitLayer::new(limiter).key(GlobalKey).wait(Duration::from_secs(1));
    let service = layer.layer(service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(Body::empty()))));
    let goes = tokio::spawn(service.clone().oneshot(Request::new(())));
    store.requested.notified().await;
    goes.abort();
    assert!(goes.await.is_err(), "it was being asked for");
    store.takes.add_permits(2);
    assert_eq!(service.oneshot(Request::new(())).await?.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(store.adjusted.load(Ordering::SeqCst), 0);
    Ok(())
}

#[tokio::test]
async fn pending_database_calls_are_bounded() -> anyhow::Result<()> {
    let store = Gated::before_it_takes();
    let limiter = Limiter::new(Arc::clone(&store), Quota::once(1)?)?;
    let layer = RateLimitLayer::new(limiter).key(GlobalKey).wait(Duration::from_secs(1));
    let service = layer.layer(service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(Body::empty()))));
    let mut context = Context::from_waker(std::task::Waker::noop());
    let mut ask = || {
        let mut requested = Box::pin(service.clone().oneshot(Request::new(())));
        let polled = requested.as_mut().poll(&mut context);
        (requested, polled)
    };
    let _first = ask();
    store.requested.notified().await;
    let mut line: Vec<_> = (0..16_384).map(|_| ask()).collect();
    assert!(line.iter().all(|(_, polled)| polled.is_pending()));
    let (_, Poll::Ready(refused)) = ask() else { anyhow::bail!("one more stands in line") };
    assert_eq!(refused?.status(), StatusCode::SERVICE_UNAVAILABLE);
    line.truncate(1000);
    assert!(ask().1.is_pending(), "there is room");
    Ok(())
}

#[tokio::test]
async fn shadow_mode_passes_all_and_reports_refusals() -> anyhow::Result<()> {
    let tell = middleware::map_response(async |mut response: Response<Body>| {
        let shadowed =
            response.extensions().get::<ShadowRefusal>().map(|ShadowRefusal(refusal)| refusal.status().as_u16());
        response.headers_mut().insert("x-shadowed", shadowed.unwrap_or(0).into());
        response
    });
    let granted = |decision: Option<Extension<Decision>>| async move {
        decision.map_or_else(|| "nobody knows".to_owned(), |Extension(decision)| decision.is_granted().to_string())
    };
    let router = || Router::new().route("/", get(granted));
    let limiter = Limiter::new(MemoryStore::new(), Quota::per_hour(2))?;
    let server = Server::start(router().layer(RateLimitLayer::new(limiter).shadow()).layer(tell.clone())).await?;
    let client = Client::new(server.address);
    for (granted, shadowed) in [("true", "0"), ("true", "0"), ("false", "429"), ("false", "429")] {
        let answer = client.get("/").await?;
        assert_eq!((answer.status, &answer.body[..]), (StatusCode::OK, granted.as_bytes()));
        assert_eq!(answer.header("x-shadowed")?, Some(shadowed));
        assert!(!answer.headers.contains_key("retry-after") && !answer.headers.contains_key("ratelimit"));
    }
    // A failing store and a missing key would also have refused the request.
    let broken = RateLimitLayer::new(Limiter::new(Broken, Quota::per_hour(2))?).shadow();
    let server = Server::start(router().layer(broken).layer(tell.clone())).await?;
    let answer = Client::new(server.address).get("/").await?;
    assert_eq!((&answer.body[..], answer.header("x-shadowed")?), (&b"nobody knows"[..], Some("503")));
    let limiter = Limiter::new(MemoryStore::new(), Quota::per_hour(2))?;
    let keyless = RateLimitLayer::new(limiter).key(|_: &Parts| None::<String>).shadow();
    let server = Server::start(router().layer(keyless).layer(tell)).await?;
    let answer = Client::new(server.address).get("/").await?;
    assert_eq!((&answer.body[..], answer.header("x-shadowed")?), (&b"nobody knows"[..], Some("400")));
    Ok(())
}

#[tokio::test]
async fn limit_that_is_only_tried_refuses_no_request() -> anyhow::Result<()> {
    let limiter = Limiter::new(MemoryStore::new(), Quota::per_hour(2))?;
    let layer = RateLimitLayer::new(limiter)
        .key(GlobalKey)
        .and("new", GlobalKey, Quota::per_hour(1))?
        .mode_of("new", Mode::Shadow)?;
    let modes = |Extension(decision): Extension<Decision>| async move {
        decision.each().iter().map(|one| one.mode().as_str()).collect::<Vec<_>>().join(" ")
    };
    let server = Server::start(Router::new().route("/", get(modes)).layer(layer)).await?;
    let client = Client::new(server.address);
    for seen in ["enforce enforce", "enforce shadow"] {
        assert_eq!(&client.get("/").await?.body[..], seen.as_bytes());
    }
    assert_eq!(client.get("/").await?.status, StatusCode::TOO_MANY_REQUESTS);
    Ok(())
}

#[tokio::test]
async fn innermost_shadow_layer_reports_its_refusal() -> anyhow::Result<()> {
    let trial = |name: &str| {
        let limiter = Limiter::new(MemoryStore::new(), Quota::once(1)?)?;
        anyhow::Ok(RateLimitLayer::new(limiter).name(name).key(GlobalKey).shadow())
    };
    let inner = service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(Body::empty())));
    let service = trial("outer")?.layer(trial("inner")?.layer(inner));
    service.clone().oneshot(Request::new(())).await?;
    let answer = service.oneshot(Request::new(())).await?;
    let Some(ShadowRefusal(Refusal::Denied { limit, .. })) = answer.extensions().get() else { panic!("{answer:?}") };
    assert_eq!(&**limit, "inner");
    Ok(())
}

/// An operator who switches a limiter off in an incident wants all requests to pass.
#[tokio::test]
async fn disabled_or_shadow_layer_refuses_only_by_extractor() -> anyhow::Result<()> {
    let layers = || {
        let limiter = Limiter::new(Broken, Quota::per_hour(2))?;
        let keyless = RateLimitLayer::new(limiter.clone()).key(|_: &Parts| None::<String>);
        let failing = RateLimitLayer::new(limiter.clone());
        anyhow::Ok([(limiter.clone(), keyless, 400), (limiter, failing, 503)])
    };
    for (limiter, layer, refused) in layers()? {
        let server = Server::start(Router::new().route("/", get(|| async {})).layer(layer)).await?;
        let client = Client::new(server.address);
        for (mode, status) in [(Mode::Enforce, refused), (Mode::Off, 200), (Mode::Shadow, 200), (Mode::Block, 429)] {
            limiter.set_mode(mode);
            let status = if mode == Mode::Block && refused == 400 { 400 } else { status };
            assert_eq!(client.get("/").await?.status, status, "{mode}");
        }
    }
    // A request that the extractor rejects does not pass.
    let limiter = Limiter::builder(Broken).mode(Mode::Off).build("1/h")?;
    let layer = RateLimitLayer::new(limiter).key(Header::new(HeaderName::from_static("x-user")));
    let server = Server::start(Router::new().route("/", get(|| async {})).layer(layer)).await?;
    let client = Client::new(server.address);
    for (headers, status) in [(&[][..], 200), (&[("x-user", "1"), ("x-user", "2")], 400)] {
        assert_eq!(client.get_with("/", headers).await?.status, status, "{headers:?}");
    }
    Ok(())
}

/// The store's time is paused. The runtime's time would advance if a request waited.
#[tokio::test(start_paused = true)]
async fn shadow_layer_does_not_wait() -> anyhow::Result<()> {
    type Set = fn(RateLimitLayer) -> RateLimitLayer;
    const WAIT: Duration = Duration::from_secs(1);
    let orders: [Set; 2] = [|layer| layer.wait(WAIT).shadow(), |layer| layer.shadow().wait(WAIT)];
    for set in orders {
        let limiter = Limiter::new(MemoryStore::with_clock(ManualClock::default()), Quota::per_second(1))?;
        let layer = set(RateLimitLayer::new(limiter).key(GlobalKey));
        let service = layer.layer(service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(Body::empty()))));
        let begun = tokio::time::Instant::now();
        for refused in [false, false, true, true] {
            let answer = service.clone().oneshot(Request::new(())).await?;
            assert_eq!(answer.status(), StatusCode::OK);
            assert_eq!(answer.extensions().get::<ShadowRefusal>().is_some(), refused);
        }
        assert!(begun.elapsed() < WAIT, "a request waited");
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn shadow_limiter_or_store_does_not_wait_or_take() -> anyhow::Result<()> {
    for of_store in [false, true] {
        let limiter = Limiter::new(MemoryStore::with_clock(ManualClock::default()), Quota::per_second(1))?;
        let set = async |mode| {
            if of_store {
                limiter.store().set_mode(mode, None, None).await
            } else {
                limiter.set_mode(mode);
                Ok(())
            }
        };
        set(Mode::Shadow).await?;
        let layer = RateLimitLayer::new(limiter.clone()).key(GlobalKey).wait(Duration::from_secs(5));
        let service = layer.layer(service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(Body::empty()))));
        let begun = tokio::time::Instant::now();
        let requested: Vec<_> = (0..10).map(|_| tokio::spawn(service.clone().oneshot(Request::new(())))).collect();
        let mut modes = Vec::new();
        for answer in requested {
            let answer = answer.await??;
            assert_eq!(answer.status(), StatusCode::OK);
            modes.extend(answer.extensions().get::<Decision>().map(Decision::mode));
        }
        assert_eq!((modes[0], &modes[1..]), (Mode::Enforce, &[Mode::Shadow; 9][..]));
        assert!(begun.elapsed() < Duration::from_secs(1), "a request waited");
        set(Mode::Enforce).await?;
        let waited = service.oneshot(Request::new(())).await?;
        let wait = waited.extensions().get::<Decision>().map(Decision::wait);
        assert_eq!(wait, Some(Duration::from_secs(1)), "what passed in shadow has taken nothing");
    }
    Ok(())
}

/// A wait calls the store until the deadline, and then sleeps for the granted wait.
#[tokio::test(start_paused = true)]
async fn fallback_answers_waiting_requests_during_an_outage() -> anyhow::Result<()> {
    for (fallback, statuses, waited) in [
        (Fallback::Open, [200, 200, 200], 0),
        (Fallback::Closed(Duration::from_secs(3)), [429, 429, 429], 0),
        (Fallback::Local(Quota::per_minute(1).build()?), [200, 200, 429], 60),
    ] {
        let store = Gated::before_it_takes(); // it never answers
        let limiter = Limiter::builder(store).deadline(Duration::from_millis(50)).fallback(fallback.clone());
        let layer =
            RateLimitLayer::new(limiter.build(Quota::per_hour(9))?).key(GlobalKey).wait(Duration::from_secs(90));
        let service = layer.layer(service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(Body::empty()))));
        let begun = tokio::time::Instant::now();
        let requested = statuses.map(|_| tokio::spawn(service.clone().oneshot(Request::new(()))));
        for (requested, status) in requested.into_iter().zip(statuses) {
            assert_eq!(requested.await??.status(), status, "{fallback:?}");
        }
        assert_eq!(begun.elapsed().as_secs(), waited, "{fallback:?}");
    }
    Ok(())
}

#[tokio::test]
async fn service_that_is_not_ready_takes_nothing() -> anyhow::Result<()> {
    let limiter = Limiter::new(MemoryStore::new(), Quota::per_hour(10))?;
    let inner = OneAtATime { places: Arc::new(Semaphore::new(1)), place: None };
    let mut service = RateLimitLayer::new(limiter.clone()).key(GlobalKey).layer(inner);

    service.ready().await?;
    let first = service.call(Request::new(()));
    let mut other = service.clone();
    let mut waiting = tokio_test_poll(&mut other);
    assert!(waiting.is_pending(), "its only place is taken");
    assert!(limiter.store().is_empty(), "nothing was taken before the first was polled");
    assert_eq!(first.await?.status(), StatusCode::OK);
    waiting = tokio_test_poll(&mut other);
    assert!(waiting.is_ready(), "the place is free");

    // A denied request releases its place.
    let none = Limiter::new(MemoryStore::new(), Quota::once(1)?)?;
    let inner = OneAtATime { places: Arc::new(Semaphore::new(1)), place: None };
    let service = RateLimitLayer::new(none).key(GlobalKey).layer(inner);
    for status in [200, 429, 429, 429] {
        assert_eq!(service.clone().oneshot(Request::new(())).await?.status(), status);
    }
    Ok(())
}

fn tokio_test_poll(service: &mut (impl Service<Request<()>, Error = Infallible> + ?Sized)) -> Poll<()> {
    let waker = std::task::Waker::noop();
    service.poll_ready(&mut Context::from_waker(waker)).map(|ready| ready.expect("it is infallible"))
}

/// Serves one request at a time, and panics if called before it is ready.
struct OneAtATime {
    places: Arc<Semaphore>,
    place: Option<tokio::sync::OwnedSemaphorePermit>,
}

impl Clone for OneAtATime {
    fn clone(&self) -> Self {
        Self { places: Arc::clone(&self.places), place: None }
    }
}

impl Service<Request<()>> for OneAtATime {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        if self.place.is_none() {
            self.place = Arc::clone(&self.places).try_acquire_owned().ok();
        }
        if self.place.is_some() { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        drop(self.place.take().expect("it was called without being ready"));
        std::future::ready(Ok(Response::new(Body::empty())))
    }
}

#[tokio::test]
async fn disconnected_client_gets_no_refund() -> anyhow::Result<()> {
    let limiter = Limiter::new(MemoryStore::new(), Quota::per_hour(2))?;
    let (begun, calls) = (Arc::new(Notify::new()), Arc::new(AtomicU64::new(0)));
    let handler = {
        let (begun, calls) = (Arc::clone(&begun), Arc::clone(&calls));
        move |_: Request<()>| {
            let (begun, calls) = (Arc::clone(&begun), Arc::clone(&calls));
            async move {
                calls.fetch_add(1, Ordering::SeqCst);
                begun.notify_one();
                std::future::pending::<Result<Response<Body>, Infallible>>().await
            }
        }
    };
    let layer = RateLimitLayer::new(limiter).key(GlobalKey).refund(|_, cost| cost);
    let service = layer.layer(service_fn(handler));
    for _ in 0..2 {
        let requested = tokio::spawn(service.clone().oneshot(Request::new(())));
        begun.notified().await;
        requested.abort();
        assert!(requested.await.is_err(), "it was being served");
    }
    let third = service.oneshot(Request::new(())).await?;
    assert_eq!(third.status(), StatusCode::TOO_MANY_REQUESTS);
    assert!(matches!(third.extensions().get::<Refusal>(), Some(Refusal::Denied { .. })));
    assert_eq!(calls.load(Ordering::SeqCst), 2);
    Ok(())
}
