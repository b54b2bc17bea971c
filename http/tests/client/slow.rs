//! Estimates of requests without an answer, and estimates that a slow store settles.

use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::{Notify, Semaphore};
use tokio::time::timeout;
use tollgate::{
    Adjusted, Adjustment, Error, Key, Limiter, MemoryStore, Rule, Store, Take, TakeError, Throttle, model::Outcome,
    store::TestStore,
};
use tollgate_http::HeaderPreset;

use super::clients::{AnyClient, KINDS};
use super::estimates::{asks, left, of_tokens};

#[tokio::test]
async fn failed_request_has_used_its_estimate() -> anyhow::Result<()> {
    for kind in KINDS {
        let unused = TcpListener::bind("127.0.0.1:0").await?.local_addr()?;
        let limiter = Limiter::new(MemoryStore::new(), "1000 once")?;
        let client = AnyClient::new(kind, of_tokens(limiter.clone(), 300).settle(|_| Some(0)));
        assert!(client.get(&format!("http://{unused}/")).await.is_err());
        assert_eq!(left(limiter.store(), "tokens").await?, 700, "{kind:?}");
    }
    Ok(())
}

#[tokio::test]
async fn cancelled_caller_does_not_stop_the_settlement() -> anyhow::Result<()> {
    let store =
        Arc::new(Slow { store: MemoryStore::new(), requested: Notify::new(), leave: Semaphore::new(0), up: true });
    let limiter = Limiter::new(Arc::clone(&store), "1000 once")?;
    let estimate = asks(of_tokens(limiter, 300).settle_later(), &[]).await?.1.expect("it was served");
    let settles = tokio::spawn(async move { estimate.settle(100).await });
    store.requested.notified().await;
    settles.abort();
    assert!(settles.await.is_err_and(|error| error.is_cancelled()), "it waited for the store");
    store.leave.add_permits(1);
    store.requested.notified().await;
    assert_eq!(left(&store.store, "tokens").await?, 900);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn answer_waits_for_settlement_only_if_it_refuses() -> anyhow::Result<()> {
    let store =
        Arc::new(Slow { store: MemoryStore::new(), requested: Notify::new(), leave: Semaphore::new(0), up: true });
    let limiter = Limiter::builder(Arc::clone(&store)).deadline(Duration::MAX).build("1000 once")?;
    let limit = of_tokens(limiter.clone(), 300).read(HeaderPreset::OpenAiTokens).settle(|_| Some(100));
    let printed = [("x-ratelimit-remaining-tokens", "500"), ("status", "429")];
    let long = Duration::from_hours(1);
    for headers in [&[][..], &printed[..1]] {
        timeout(long, asks(limit.clone(), headers)).await??;
    }
    assert_eq!(left(&store.store, "tokens").await?, 400);
    store.leave.add_permits(2);
    limiter.close().await?;
    assert_eq!(left(&store.store, "tokens").await?, 500, "as was said, and not 800");
    assert!(timeout(long, asks(limit, &printed)).await.is_err(), "who asks again must find that it was refused");
    Ok(())
}

/// A store that settles when it has permits, and signals before and after. It can also be down.
pub(super) struct Slow {
    pub(super) store: MemoryStore,
    pub(super) requested: Notify,
    pub(super) leave: Semaphore,
    pub(super) up: bool,
}

impl TestStore for Slow {
    async fn take(&self, takes: &[Take]) -> Result<Vec<Outcome>, Error> {
        if self.up { self.store.take(takes).await } else { Err(Error::other(std::io::Error::other("down"))) }
    }

    async fn adjust(&self, adjustments: &[Adjustment]) -> Result<Vec<Result<Adjusted, TakeError>>, Error> {
        self.requested.notify_one();
        self.leave.acquire().await.map_err(Error::other)?.forget();
        let adjusted = self.store.adjust(adjustments).await;
        self.requested.notify_one();
        adjusted
    }

    async fn throttle(&self, key: &Key, rule: &Rule, throttle: Throttle) -> Result<bool, Error> {
        self.store.throttle(key, rule, throttle).await
    }
}
