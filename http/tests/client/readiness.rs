//! An underlying client that must be ready before it is called.

use std::future::{Ready, ready};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, join_all};
use http::{Request, Response};
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};
use tollgate::{Limiter, MemoryStore};
use tollgate_http::{ClientLimit, ClientLimitError};
use tower::{Layer, Service, ServiceExt};

#[tokio::test]
async fn client_that_is_not_ready_takes_nothing() -> anyhow::Result<()> {
    let limiter = Limiter::new(MemoryStore::new(), "1 once")?;
    let places = Arc::new(Semaphore::new(1));
    let mut client = ClientLimit::new(limiter.clone()).layer(Places::of(&places));
    let mut other = client.clone();
    client.ready().await.map_err(anyhow::Error::from_boxed)?;
    let mut context = Context::from_waker(std::task::Waker::noop());
    assert!(other.poll_ready(&mut context).is_pending(), "the only place is taken");
    let called = client.call(request()?);
    assert!(other.poll_ready(&mut context).is_pending(), "until its turn has come it keeps the place");
    assert!(limiter.store().is_empty(), "a future does nothing unless it is polled");
    called.await.map_err(anyhow::Error::from_boxed)?;
    assert!(other.poll_ready(&mut context).is_ready());

    // A request that is not sent releases its place.
    let refused = other.call(request()?).await.expect_err("there was one token");
    assert!(matches!(*refused.downcast::<ClientLimitError>().expect("of the limit"), ClientLimitError::Limited { .. }));
    assert_eq!(places.available_permits(), 1);

    places.close();
    let closed = client.ready().await.err().expect("the client's own error");
    assert!(closed.downcast::<AcquireError>().is_ok());
    Ok(())
}

#[tokio::test]
async fn each_request_uses_a_client_that_was_ready() -> anyhow::Result<()> {
    let limit = ClientLimit::new(Limiter::new(MemoryStore::new(), "1000/s burst 1")?).max_wait(Duration::from_secs(9));
    let client = limit.layer(Places::of(&Arc::new(Semaphore::new(3))));
    let requests = (0..20).map(|_| anyhow::Ok(client.clone().oneshot(request()?)));
    for answer in join_all(requests.collect::<Result<Vec<_>, _>>()?).await {
        answer.map_err(anyhow::Error::from_boxed)?;
    }
    Ok(())
}

fn request() -> Result<Request<()>, http::Error> {
    Request::get("http://example.com/").body(())
}

/// Has a number of places, shared by all clones. Panics if called without a place.
struct Places {
    all: Arc<Semaphore>,
    waits: Option<BoxFuture<'static, Result<OwnedSemaphorePermit, AcquireError>>>,
    place: Option<OwnedSemaphorePermit>,
}

impl Places {
    fn of(all: &Arc<Semaphore>) -> Self {
        Self { all: Arc::clone(all), waits: None, place: None }
    }
}

impl Clone for Places {
    fn clone(&self) -> Self {
        Self::of(&self.all)
    }
}

impl Service<Request<()>> for Places {
    type Response = Response<()>;
    type Error = AcquireError;
    type Future = Ready<Result<Response<()>, AcquireError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), AcquireError>> {
        if self.place.is_none() {
            let waits = self.waits.get_or_insert_with(|| Arc::clone(&self.all).acquire_owned().boxed());
            let place = std::task::ready!(waits.poll_unpin(context));
            self.waits = None;
            self.place = Some(place?);
        }
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        drop(self.place.take().expect("it was called without being ready"));
        ready(Ok(Response::new(())))
    }
}
