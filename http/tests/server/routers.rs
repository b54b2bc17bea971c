//! The layer at different places among axum's routers.

use std::net::SocketAddr;

use axum::Router;
use axum::body::Body;
use axum::extract::Extension;
use axum::extract::connect_info::MockConnectInfo;
use axum::http::request::Parts;
use axum::http::{Method, Request, StatusCode};
use axum::routing::get;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tollgate::{Admin, Decision, Key, Limiter, MemoryStore, Quota, admin::Filter};
use tollgate_http::{GlobalKey, MatchedRoute, RateLimitHeaders, RateLimitLayer};
use tower::ServiceExt;

use super::client::Client;
use super::server::Server;

#[tokio::test]
async fn layer_limits_only_its_routes() -> anyhow::Result<()> {
    type Put = fn(RateLimitLayer) -> Router;
    let places: [(Put, &[&str], &[&str]); 5] = [
        (|layer| routes().layer(layer), &["/a", "/b", "/none"], &[]),
        (|layer| routes().route_layer(layer), &["/a", "/b"], &["/none"]),
        (|layer| Router::new().route("/a", get(hello).layer(layer)).merge(later()), &["/a"], &["/later", "/none"]),
        (|layer| routes().layer(layer).merge(later()), &["/a", "/b"], &["/later"]),
        (|layer| Router::new().nest("/api", routes().layer(layer)).merge(later()), &["/api/a"], &["/later", "/a"]),
    ];
    for (place, (put, limited, others)) in places.into_iter().enumerate() {
        for (paths, takes) in [(limited, true), (others, false)] {
            for path in paths {
                let limiter = limiter(9)?;
                let server = Server::start(put(RateLimitLayer::new(limiter.clone()))).await?;
                Client::new(server.address).get(path).await?;
                assert_eq!(limiter.store().is_empty(), !takes, "{path} of {place}");
            }
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_nested_route_is_known_by_its_whole_path() -> anyhow::Result<()> {
    type Put = fn(RateLimitLayer) -> Router;
    let places: [Put; 3] = [
        |layer| Router::new().nest("/api", users()).layer(layer),
        |layer| Router::new().nest("/api", users().layer(layer)),
        |layer| Router::new().nest("/api", Router::new().route("/users/{id}", get(hello).layer(layer))),
    ];
    for (place, put) in places.into_iter().enumerate() {
        let limiter = limiter(9)?;
        let server = Server::start(put(RateLimitLayer::new(limiter.clone()).key(MatchedRoute))).await?;
        for path in ["/api/users/7", "/api/users/8?a=1"] {
            assert_eq!(Client::new(server.address).get(path).await?.status, StatusCode::OK);
        }
        let buckets = limiter.store().list(&Filter::default(), None, 9).await?;
        let keys: Vec<_> = buckets.iter().map(|bucket| bucket.key().as_str()).collect();
        assert_eq!(keys, ["/api/users/{id}"], "{place}");
    }
    Ok(())
}

#[tokio::test]
async fn head_and_options_requests_take_tokens() -> anyhow::Result<()> {
    let server = Server::start(routes().layer(RateLimitLayer::new(limiter(4)?))).await?;
    for client in [Client::new(server.address), Client::http2(server.address)] {
        let mut requested = Vec::new();
        for method in [Method::HEAD, Method::OPTIONS] {
            requested.push(client.ask(method, "/a", &[]).await?.status.as_u16());
        }
        assert_eq!(requested, [200, 405], "what the router says");
    }
    for client in [Client::new(server.address), Client::http2(server.address)] {
        let denied = client.get("/a").await?;
        assert_eq!(denied.status, StatusCode::TOO_MANY_REQUESTS);
        let head = client.ask(Method::HEAD, "/a", &[]).await?;
        assert_eq!((head.status, head.body.len()), (StatusCode::TOO_MANY_REQUESTS, 0));
        assert_eq!(head.header("content-length")?, denied.header("content-length")?);
        assert_eq!(client.ask(Method::OPTIONS, "/a", &[]).await?.status, StatusCode::TOO_MANY_REQUESTS);
    }
    Ok(())
}

/// The outer layer decides first. Its tokens stay taken even if the inner layer denies.
#[tokio::test]
async fn handler_sees_the_decision_of_the_inner_layer() -> anyhow::Result<()> {
    let left = async |Extension(decision): Extension<Decision>| decision.remaining().expect("a limit").to_string();
    let (inner, outer) = (limiter(2)?, limiter(9)?);
    let layer = |limiter: &Limiter<MemoryStore>| RateLimitLayer::new(limiter.clone()).key(GlobalKey);
    let router = Router::new().route("/", get(left)).layer(layer(&inner)).layer(layer(&outer));
    let server = Server::start(router).await?;
    let client = Client::new(server.address);
    for body in ["1", "0"] {
        assert_eq!(client.get("/").await?.body, body);
    }
    assert_eq!(client.get("/").await?.status, StatusCode::TOO_MANY_REQUESTS);
    let level = outer.store().peek(&Key::try_from("everybody")?).await?;
    assert_eq!(level.map(|level| level.available()), Some(6));
    Ok(())
}

#[tokio::test]
async fn layer_mounted_twice_takes_once_per_request() -> anyhow::Result<()> {
    type Put = fn(&dyn Fn() -> RateLimitLayer) -> Router;
    let places: [Put; 4] = [
        |layer| routes().route_layer(layer()).layer(layer()),
        |layer| Router::new().route("/a", get(hello).layer(layer())).layer(layer()),
        |layer| Router::new().nest("/a", Router::new().route("/", get(hello)).layer(layer())).layer(layer()),
        |layer| routes().layer(layer()).layer(layer()).layer(layer()),
    ];
    for (place, put) in places.into_iter().enumerate() {
        let limiter = limiter(2)?;
        let layer = RateLimitLayer::new(limiter.clone()).key(GlobalKey).headers(RateLimitHeaders::Always).x_headers();
        let several = layer.clone().and("b", GlobalKey, Quota::once(9)?)?;
        // A function that builds the router can also build the layer each time, from clones of the limiter.
        let anew = move || {
            let layer = RateLimitLayer::new(limiter.clone()).name("anew").key(GlobalKey);
            layer.headers(RateLimitHeaders::Always)
        };
        let [one, several] = [layer, several].map(|layer| move || layer.clone());
        let router = [put(&one), put(&several), put(&anew)];
        for (limits, router) in [1, 2, 1].into_iter().zip(router) {
            let server = Server::start(router).await?;
            let answer = Client::new(server.address).get("/a").await?;
            assert_eq!(answer.status, StatusCode::OK, "{place}");
            assert_eq!(answer.headers.get_all("ratelimit").iter().count(), limits, "{place}: {answer:?}");
        }
        // The first two layers share the bucket of the first limit, and each took one of its two tokens.
        let denied = Client::new(Server::start(put(&one)).await?.address).get("/a").await?;
        assert_eq!(denied.status, StatusCode::TOO_MANY_REQUESTS, "{place}");
    }
    Ok(())
}

#[tokio::test]
async fn layers_of_one_limiter_with_two_keys_both_take() -> anyhow::Result<()> {
    let limiter = limiter(9)?;
    let layer = RateLimitLayer::new(limiter.clone()).key(GlobalKey);
    let router = routes().layer(layer.clone().key(|_: &Parts| Some("user:42"))).layer(layer.clone().name("named"));
    let server = Server::start(router.layer(layer)).await?;
    assert_eq!(Client::new(server.address).get("/a").await?.status, StatusCode::OK);
    let buckets = limiter.store().list(&Filter::default(), None, 9).await?;
    let keys: Vec<_> = buckets.iter().map(|bucket| bucket.key().as_str()).collect();
    assert_eq!(keys, ["5=named everybody", "everybody", "user:42"]);
    Ok(())
}

#[tokio::test]
async fn layer_with_another_cost_takes_inside_the_first() -> anyhow::Result<()> {
    let layer = RateLimitLayer::new(limiter(3)?).key(GlobalKey);
    let server = Server::start(routes().layer(layer.clone().cost(|_| 2)).layer(layer)).await?;
    let client = Client::new(server.address);
    for status in [StatusCode::OK, StatusCode::TOO_MANY_REQUESTS] {
        assert_eq!(client.get("/a").await?.status, status);
    }
    Ok(())
}

#[tokio::test]
async fn outer_shadow_layer_leaves_the_inner_layer_enforced() -> anyhow::Result<()> {
    let layer = RateLimitLayer::new(limiter(2)?).key(GlobalKey);
    let server = Server::start(routes().layer(layer.clone()).layer(layer.shadow())).await?;
    let client = Client::new(server.address);
    for status in [StatusCode::OK, StatusCode::TOO_MANY_REQUESTS] {
        assert_eq!(client.get("/a").await?.status, status);
    }
    Ok(())
}

/// Tests of routers have no socket.
#[tokio::test]
async fn router_without_socket_accepts_a_given_peer() -> anyhow::Result<()> {
    let limiter = limiter(1)?;
    let peer = SocketAddr::from(([198, 51, 100, 1], 4711));
    let router = routes().layer(RateLimitLayer::new(limiter.clone())).layer(MockConnectInfo(peer));
    for status in [StatusCode::OK, StatusCode::TOO_MANY_REQUESTS] {
        let answer = router.clone().oneshot(Request::get("/a").body(Body::empty())?).await?;
        assert_eq!(answer.status(), status);
    }
    assert!(limiter.store().peek(&Key::try_from("198.51.100.1")?).await?.is_some());
    Ok(())
}

/// The handler serves a protocol that takes over the connection.
#[tokio::test]
async fn a_connection_is_upgraded_through_the_layer_or_denied() -> anyhow::Result<()> {
    let echo = async |request: Request<Body>| {
        tokio::spawn(async move {
            let mut upgraded = TokioIo::new(hyper::upgrade::on(request).await.expect("it is upgraded"));
            let mut printed = [0; 5];
            upgraded.read_exact(&mut printed).await.expect("the client says something");
            upgraded.write_all(&printed).await.expect("it listens");
        });
        (StatusCode::SWITCHING_PROTOCOLS, [("connection", "upgrade"), ("upgrade", "echo")])
    };
    let layer = RateLimitLayer::new(limiter(1)?).headers(RateLimitHeaders::Always);
    let server = Server::start(Router::new().route("/", get(echo)).layer(layer)).await?;
    for (head, printed) in [("HTTP/1.1 101 ", "hello"), ("HTTP/1.1 429 ", "")] {
        let mut stream = TcpStream::connect(server.address).await?;
        stream.write_all(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\nhello").await?;
        stream.shutdown().await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        assert!(
            answer.starts_with(head) && answer.contains("\r\nratelimit: ") && answer.ends_with(printed),
            "{answer}"
        );
    }
    Ok(())
}

fn limiter(tokens: u64) -> anyhow::Result<Limiter<MemoryStore>> {
    Ok(Limiter::new(MemoryStore::new(), Quota::once(tokens)?)?)
}

fn routes() -> Router {
    Router::new().route("/a", get(hello)).route("/b", get(hello))
}

fn users() -> Router {
    Router::new().route("/users/{id}", get(hello))
}

fn later() -> Router {
    Router::new().route("/later", get(hello))
}

async fn hello() -> &'static str {
    "hello"
}
