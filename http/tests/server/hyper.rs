//! hyper's own connections without a framework. The service inserts the peer's address.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use axum::http::{Method, Request, Response, StatusCode};
use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::task::AbortHandle;
use tollgate::{Admin, Key, Limiter, MemoryStore, Quota};
use tollgate_http::{GlobalKey, RateLimitLayer};
use tower::{Layer, ServiceExt, service_fn};
use tower_http::cors::CorsLayer;
use tower_http::timeout::TimeoutLayer;

use super::client::Client;

#[tokio::test]
async fn a_service_of_hyper_is_limited_by_its_peers_address() -> anyhow::Result<()> {
    let limiter = Limiter::new(MemoryStore::new(), Quota::once(2)?)?;
    let (address, server) = serve(RateLimitLayer::new(limiter.clone())).await?;
    for client in [Client::new(address), Client::http2(address)] {
        let answer = client.get("/").await?;
        assert_eq!((answer.status, &answer.body[..]), (StatusCode::OK, &b"hello"[..]));
    }
    for client in [Client::new(address), Client::http2(address)] {
        assert_eq!(client.get("/").await?.status, StatusCode::TOO_MANY_REQUESTS);
    }
    assert!(limiter.store().peek(&Key::try_from("127.0.0.1")?).await?.is_some());
    server.abort();
    Ok(())
}

/// In HTTP/2, hyper sends the body that the service returns, and clients treat a body as a protocol error.
#[tokio::test]
async fn denied_head_request_states_the_body_length() -> anyhow::Result<()> {
    let (address, server) = serve(RateLimitLayer::new(Limiter::new(MemoryStore::new(), Quota::once(1)?)?)).await?;
    let denied = async |client: &Client, method| {
        let answer = client.ask(method, "/", &[]).await?;
        assert_eq!(answer.status, StatusCode::TOO_MANY_REQUESTS);
        assert!(answer.header("ratelimit")?.is_some());
        let length = answer.header("content-length")?.unwrap_or_default().parse::<usize>()?;
        anyhow::Ok((length, answer.body.len()))
    };
    Client::new(address).get("/").await?;
    for client in [Client::new(address), Client::http2(address)] {
        let (length, sent) = denied(&client, Method::GET).await?;
        assert!(length > 0 && sent == length);
        assert_eq!(denied(&client, Method::HEAD).await?, (length, 0));
        assert_eq!(denied(&client, Method::OPTIONS).await?, (length, length));
    }
    server.abort();
    Ok(())
}

/// Starts a server that says hello.
async fn serve(layer: RateLimitLayer) -> anyhow::Result<(SocketAddr, AbortHandle)> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let server = tokio::spawn(async move {
        loop {
            let (stream, peer) = listener.accept().await.expect("it listens");
            let hello = service_fn(async |_: Request<Incoming>| {
                Ok::<_, Infallible>(Response::new(Full::new(Bytes::from("hello"))))
            });
            let service = layer.layer(hello).map_request(move |mut request: Request<Incoming>| {
                request.extensions_mut().insert(peer);
                request
            });
            tokio::spawn(async move {
                let connections = auto::Builder::new(TokioExecutor::new());
                let connection = connections.serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
                // The connection fails if the client has closed it.
                drop(connection.await);
            });
        }
    });
    Ok((address, server.abort_handle()))
}

/// Paused time advances when all tasks are idle.
#[tokio::test(start_paused = true)]
async fn tower_http_layers_wrap_the_layer() -> anyhow::Result<()> {
    let limiter = Limiter::new(MemoryStore::new(), Quota::once(1)?)?;
    let inner = service_fn(async |request: Request<Full<Bytes>>| match request.uri().path() {
        "/slow" => std::future::pending().await,
        _ => Ok::<_, Infallible>(Response::new(Full::new(Bytes::from("hello")))),
    });
    let behind =
        RateLimitLayer::new(limiter).key(GlobalKey).exempt(|request| request.uri.path() == "/slow").layer(inner);
    let timeout = TimeoutLayer::with_status_code(StatusCode::GATEWAY_TIMEOUT, Duration::from_secs(1));
    let service = CorsLayer::permissive().layer(timeout.layer(behind));
    let ask = async |method, path| {
        let request = Request::builder().method(method).uri(path).header("origin", "http://a");
        let request = request.header("access-control-request-method", "GET").body(Full::default())?;
        let answer = service.clone().oneshot(request).await?;
        anyhow::ensure!(answer.headers().contains_key("access-control-allow-origin"), "a browser may not read it");
        anyhow::Ok(answer.status().as_u16())
    };
    for (method, path, status) in [
        (Method::OPTIONS, "/", 200),
        (Method::GET, "/", 200),
        (Method::OPTIONS, "/", 200),
        (Method::GET, "/", 429),
        (Method::GET, "/slow", 504),
    ] {
        assert_eq!(ask(method.clone(), path).await?, status, "{method} {path}");
    }
    Ok(())
}
