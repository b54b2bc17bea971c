//! Clients that disconnect or wait, on real connections.

use std::panic;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::routing::get;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tollgate::{Admin, Key, Limiter, MemoryStore, Quota, clock::ManualClock};
use tollgate_http::{GlobalKey, RateLimitLayer};

use super::client::Client;
use super::gated::Gated;
use super::server::Server;

/// One client closes its connection. The other resets a stream, and its connection stays open.
#[tokio::test(flavor = "multi_thread")]
async fn disconnected_client_has_used_its_token() -> anyhow::Result<()> {
    let panics = count_panics();
    let store = Gated::open();
    let layer = RateLimitLayer::new(Limiter::new(Arc::clone(&store), Quota::once(4)?)?);
    let (tell, mut reported) = mpsc::unbounded_channel();
    let never = move || {
        let tell = tell.clone();
        async move {
            let _ = tell.send("begun");
            let _gone = WhenDropped(|| _ = tell.send("gone"));
            std::future::pending::<()>().await;
        }
    };
    let router = Router::new().route("/never", get(never)).route("/", get(|| async {}));
    let server = Server::start(router.layer(layer.key(GlobalKey).refund(|_, cost| cost))).await?;
    let granted = async || {
        let level = store.store.peek(&Key::try_from("everybody")?).await?;
        anyhow::Ok(level.map(|level| (level.available(), level.granted())))
    };

    let mut connection = TcpStream::connect(server.address).await?;
    connection.write_all(b"GET /never HTTP/1.1\r\nhost: a\r\n\r\n").await?;
    assert_eq!(reported.recv().await, Some("begun"));
    drop(connection);
    assert_eq!(reported.recv().await, Some("gone"));
    assert_eq!(granted().await?, Some((3, 1)));

    let client = Client::http2(server.address);
    let stream = tokio::spawn({
        let client = client.clone();
        async move { client.get("/never").await }
    });
    assert_eq!(reported.recv().await, Some("begun"));
    stream.abort();
    assert!(stream.await.is_err(), "it was being served");
    assert_eq!(reported.recv().await, Some("gone"));
    assert_eq!(granted().await?, Some((2, 2)));

    // Answered requests get a refund, as the cancelled ones would have.
    for client in [client, Client::new(server.address)] {
        assert_eq!(client.get("/").await?.status, StatusCode::OK);
    }
    assert_eq!(granted().await?, Some((2, 4)));
    assert_eq!(panics.load(Ordering::SeqCst), 0);
    Ok(())
}

/// The store's time is paused, so no token returns. A request served from the empty bucket has therefore waited for its
/// scheduled time.
#[tokio::test(flavor = "multi_thread")]
async fn short_waits_are_served_and_long_waits_refused_at_once() -> anyhow::Result<()> {
    let limiter =
        Limiter::new(MemoryStore::with_clock(ManualClock::default()), Quota::per_second(20).burst(1_000_000))?;
    let cost = |request: &Parts| if request.uri.path() == "/all" { 1_000_000 } else { 1 };
    let layer = RateLimitLayer::new(limiter.clone()).key(GlobalKey).cost(cost).wait(Duration::from_secs(60));
    let server = Server::start(Router::new().fallback(get(|| async {})).layer(layer)).await?;
    let client = Client::http2(server.address);
    assert_eq!(client.get("/all").await?.status, StatusCode::OK);
    let mut waiting = JoinSet::new();
    for n in 0..10 {
        let client = if n % 2 == 0 { client.clone() } else { Client::new(server.address) };
        waiting.spawn(async move { client.get("/").await });
    }
    while let Some(answer) = waiting.join_next().await {
        assert_eq!(answer??.status, StatusCode::OK);
    }
    let denied = client.get("/all").await?;
    assert_eq!(denied.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(denied.header("retry-after")?, Some("50001"), "a million and ten tokens, 20 a second");
    let level = limiter.store().peek(&Key::try_from("everybody")?).await?;
    assert_eq!(level.map(|level| (level.available(), level.granted())), Some((-10, 1_000_010)));
    Ok(())
}

/// Counts the panics in this process from now on.
fn count_panics() -> Arc<AtomicU64> {
    let (panics, before) = (Arc::new(AtomicU64::new(0)), panic::take_hook());
    let counted = Arc::clone(&panics);
    panic::set_hook(Box::new(move |panic| {
        counted.fetch_add(1, Ordering::SeqCst);
        before(panic);
    }));
    panics
}

struct WhenDropped<F: Fn()>(F);

impl<F: Fn()> Drop for WhenDropped<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}
