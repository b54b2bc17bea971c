//! Checks for forward authentication: the proxies whose headers state the client's request.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::ensure;
use axum::body::Body;
use http::{Request, StatusCode};
use tollgate::{AnyStore, Limiter, MemoryStore, Rule};
use tollgate_serve::{Config, Server};
use tower::ServiceExt;

async fn status(server: &Server, peer: &str, headers: &[(&str, &str)]) -> anyhow::Result<StatusCode> {
    let mut request = Request::get("/check/login").extension(peer.parse::<SocketAddr>()?);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    Ok(server.routes().oneshot(request.body(Body::empty())?).await?.status())
}

#[tokio::test]
async fn only_a_trusted_proxy_states_the_path() -> anyhow::Result<()> {
    let store = Arc::new(MemoryStore::new());
    let limiter = Limiter::new(AnyStore::new(Arc::clone(&store)), Rule::Provisioned)?;
    let yaml = "checks: {login: {key: ['{client_ip}', '{path}'], trusted: [127.0.0.1/32], limits: ['2/h burst 2']}}";
    let server = Server::new(&limiter, store, Config::parse(yaml)?)?;
    let (proxy, other) = ("127.0.0.1:4000", "192.0.2.1:4000");
    for expected in [StatusCode::OK, StatusCode::OK, StatusCode::TOO_MANY_REQUESTS] {
        let query = [("x-original-uri", "/login?try=1")];
        ensure!(status(&server, proxy, &query).await? == expected, "the query is not in the key");
    }
    // A client adds the header that its proxy does not set.
    let forged = [("x-original-uri", "/login"), ("x-forwarded-uri", "/another")];
    ensure!(status(&server, proxy, &forged).await? == StatusCode::BAD_REQUEST);
    ensure!(status(&server, proxy, &[]).await? == StatusCode::BAD_REQUEST);
    ensure!(status(&server, other, &forged[..1]).await? == StatusCode::INTERNAL_SERVER_ERROR);
    Ok(())
}

#[tokio::test]
async fn mistyped_check_passes_no_request() -> anyhow::Result<()> {
    let store = Arc::new(MemoryStore::new());
    let limiter = Limiter::new(AnyStore::new(Arc::clone(&store)), Rule::Provisioned)?;
    let server = Server::new(&limiter, store, Config::parse("{domain: edge}")?)?;
    for path in ["/check/login", "/check/", "/chek/login", "/"] {
        let answer = server.routes().oneshot(Request::get(path).body(Body::empty())?).await?;
        ensure!(answer.status() == StatusCode::NOT_FOUND, "{path}: {}", answer.status());
    }
    Ok(())
}
