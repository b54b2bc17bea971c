//! Requests that were sent but got no ordinary answer from their upstream.

use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use tokio::net::TcpListener;
use tokio::sync::{Notify, Semaphore};
use tollgate::{
    Adjusted, Adjustment, Admin, Error, Fallback, Key, Limiter, MemoryStore, Rule, Store, Take, TakeError, Throttle,
    model::Outcome, store::TestStore,
};
use tollgate_http::{ClientLimit, HeaderPreset};
use tower::{Layer, ServiceExt, service_fn};

use super::clients::{AnyClient, KINDS, Kind};
use super::upstream::{Upstream, answer};

/// How far the request got is unknown.
#[tokio::test]
async fn failed_request_has_used_its_token() -> anyhow::Result<()> {
    for kind in KINDS {
        let unused = TcpListener::bind("127.0.0.1:0").await?.local_addr()?;
        let limiter = Limiter::new(MemoryStore::new(), "10 once")?;
        let client = AnyClient::new(kind, ClientLimit::new(limiter.clone()));
        assert!(client.get(&format!("http://{unused}/")).await.is_err(), "{kind:?}");
        let level = limiter.store().peek(&Key::try_from(unused.to_string())?).await?;
        assert_eq!(level.map(|level| level.available()), Some(9), "{kind:?}");
    }
    Ok(())
}

/// The underlying client follows the redirect without taking another token.
#[tokio::test]
async fn redirect_uses_the_token_of_the_first_host() -> anyhow::Result<()> {
    let other = Upstream::new([]).await?;
    let upstream = Upstream::new([answer(302, &[("location", &other.url("/"))])]).await?;
    let limiter = Limiter::new(MemoryStore::new(), "10 once")?;
    let client = AnyClient::new(Kind::Reqwest, ClientLimit::new(limiter.clone()));
    assert_eq!(client.get(&upstream.url("/")).await??, 200);
    assert_eq!((upstream.reached(), other.reached()), (1, 1));
    assert_eq!(limiter.store().peek(&Key::try_from(other.address.to_string())?).await?, None);
    Ok(())
}

/// Otherwise each upstream answer would call a store that does not respond.
#[tokio::test]
async fn bucket_that_was_not_taken_from_is_not_lowered() -> anyhow::Result<()> {
    struct Down;

    impl TestStore for Down {
        async fn take(&self, _: &[Take]) -> Result<Vec<Outcome>, Error> {
            Err(Error::other(std::io::Error::other("down")))
        }

        async fn adjust(&self, _: &[Adjustment]) -> Result<Vec<Result<Adjusted, TakeError>>, Error> {
            Err(Error::other(std::io::Error::other("down")))
        }

        async fn throttle(&self, _: &Key, _: &Rule, _: Throttle) -> Result<bool, Error> {
            Err(Error::other(std::io::Error::other("down")))
        }
    }

    let limiter = Limiter::builder(Down).deadline(Duration::from_millis(50)).fallback(Fallback::Open).build("10/h")?;
    let limit = ClientLimit::new(limiter).read(HeaderPreset::RateLimit);
    let upstream = service_fn(async |_: Request<()>| Response::builder().header("ratelimit", "\"a\";r=5").body(()));
    for _ in 0..3 {
        let request = Request::get("http://example.com/").body(())?;
        let answer = limit.clone().layer(upstream).oneshot(request).await.map_err(anyhow::Error::from_boxed)?;
        assert_eq!(answer.status(), 200);
    }
    assert_eq!(limit.unreported(), 0);
    Ok(())
}

#[tokio::test]
async fn cancelled_caller_does_not_stop_the_report() -> anyhow::Result<()> {
    let store = Arc::new(Slow { store: MemoryStore::new(), requested: Notify::new(), leave: Semaphore::new(0) });
    let limit = ClientLimit::new(Limiter::new(Arc::clone(&store), "10/h")?);
    let refusing = service_fn(async |_: Request<()>| Response::builder().status(429).body(()));
    let request = Request::get("http://example.com/").body(())?;
    let asks = tokio::spawn(limit.clone().layer(refusing).oneshot(request));
    store.requested.notified().await;
    asks.abort();
    assert!(asks.await.is_err_and(|error| error.is_cancelled()), "it waited for the store");
    store.leave.add_permits(1);
    store.requested.notified().await;
    let level = store.store.peek(&Key::try_from("example.com")?).await?;
    assert_eq!((level.map(|level| level.available()), limit.unreported()), (Some(0), 0));
    Ok(())
}

/// A store that throttles when it has permits, and signals before and after.
struct Slow {
    store: MemoryStore,
    requested: Notify,
    leave: Semaphore,
}

impl TestStore for Slow {
    async fn take(&self, takes: &[Take]) -> Result<Vec<Outcome>, Error> {
        self.store.take(takes).await
    }

    async fn adjust(&self, adjustments: &[Adjustment]) -> Result<Vec<Result<Adjusted, TakeError>>, Error> {
        self.store.adjust(adjustments).await
    }

    async fn throttle(&self, key: &Key, rule: &Rule, throttle: Throttle) -> Result<bool, Error> {
        self.requested.notify_one();
        self.leave.acquire().await.map_err(Error::other)?.forget();
        let lowered = self.store.throttle(key, rule, throttle).await;
        self.requested.notify_one();
        lowered
    }
}
