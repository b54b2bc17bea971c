//! Each framework serves the first request of a client, and denies the second.

use std::net::SocketAddr;

use anyhow::{Context, ensure};
use reqwest::header::HeaderMap;
use tokio::sync::oneshot;
use tollgate::clock::ManualClock;
use tollgate::{AnyStore, Limiter, MemoryStore};

#[tokio::test]
async fn actix_web_denies_the_second_request() -> anyhow::Result<()> {
    use actix_web::middleware::from_fn;
    use actix_web::{App, HttpServer, web};

    let limiter = web::Data::new(limiter()?);
    // Each worker has a runtime of its own. They share the limiter.
    let app = move || {
        let hello = web::get().to(async || "hello");
        App::new()
            .app_data(limiter.clone())
            .route("/", hello)
            .wrap(from_fn(tollgate_recipes::actix_web::rate_limit))
    };
    let server = HttpServer::new(app)
        .workers(2)
        .disable_signals()
        .bind("127.0.0.1:0")?;
    let address = *server.addrs().first().context("it listens")?;
    tokio::spawn(server.run());
    second_request_is_denied(address).await
}

#[tokio::test]
async fn poem_denies_the_second_request() -> anyhow::Result<()> {
    use poem::listener::{Acceptor, Listener, TcpListener};
    use poem::{EndpointExt, Route, Server, endpoint::make_sync, get};

    let hello = get(make_sync(|_| "hello"));
    let app = Route::new()
        .at("/", hello)
        .around(tollgate_recipes::poem::rate_limit)
        .data(limiter()?);
    let acceptor = TcpListener::bind("127.0.0.1:0").into_acceptor().await?;
    let address = *acceptor.local_addr()[0]
        .as_socket_addr()
        .context("it listens on TCP")?;
    tokio::spawn(Server::new_with_acceptor(acceptor).run(app));
    second_request_is_denied(address).await
}

#[tokio::test]
async fn salvo_denies_the_second_request() -> anyhow::Result<()> {
    use salvo::conn::Acceptor;
    use salvo::prelude::{Listener, Router, Server, TcpListener, handler};
    use tollgate_recipes::salvo::{peer_address, rate_limit};

    #[handler]
    async fn hello() -> &'static str {
        "hello"
    }

    let router = Router::new()
        .hoop(peer_address)
        .hoop(rate_limit(limiter()?))
        .get(hello);
    let acceptor = TcpListener::new("127.0.0.1:0").bind().await;
    let address = acceptor.holdings()[0]
        .local_addr
        .clone()
        .into_std()
        .context("it listens on TCP")?;
    tokio::spawn(Server::new(acceptor).serve(router));
    second_request_is_denied(address).await
}

#[tokio::test]
async fn rocket_denies_the_second_request() -> anyhow::Result<()> {
    use rocket::fairing::AdHoc;
    use rocket::{Config, get, routes};
    use tollgate_recipes::rocket::{RateLimit, rate_limit_answers};

    #[get("/")]
    fn hello(_limit: RateLimit) -> &'static str {
        "hello"
    }

    let (listens, address) = oneshot::channel();
    let listens = AdHoc::on_liftoff("address", |rocket| {
        let address =
            SocketAddr::new(rocket.config().address, rocket.config().port);
        Box::pin(async move { listens.send(address).unwrap_or_default() })
    });
    let config = Config { port: 0, ..Config::debug_default() };
    let rocket = rocket::custom(config)
        .manage(limiter()?)
        .attach(rate_limit_answers())
        .attach(listens);
    tokio::spawn(rocket.mount("/", routes![hello]).launch());
    second_request_is_denied(address.await?).await
}

/// Each client address has one token, and its clock stands still.
fn limiter() -> anyhow::Result<Limiter> {
    let store = MemoryStore::with_clock(ManualClock::default());
    Ok(Limiter::new(AnyStore::new(store), "1/h")?)
}

async fn second_request_is_denied(
    address: SocketAddr,
) -> anyhow::Result<()> {
    let url = format!("http://{address}/");
    let served = reqwest::get(&url).await?;
    assert_eq!(served.status(), 200);
    ensure!(!served.headers().contains_key("retry-after"));
    assert_eq!(served.text().await?, "hello");

    let denied = reqwest::get(&url).await?;
    assert_eq!(denied.status(), 429);
    assert_eq!(
        stated(
            denied.headers(),
            [
                "retry-after",
                "ratelimit",
                "ratelimit-policy",
                "cache-control",
                "content-type"
            ]
        ),
        [
            "3600",
            r#""default";r=0;t=3600"#,
            POLICY,
            "no-store",
            "application/problem+json"
        ]
    );
    let body = denied.text().await?;
    ensure!(
        body.contains(
            r#""detail":"Too many requests. Try again in 3600 s.""#
        ),
        "{body}"
    );
    Ok(())
}

/// The only value of each header.
fn stated<const N: usize>(
    headers: &HeaderMap,
    names: [&str; N],
) -> [String; N] {
    names.map(|name| {
        let values: Vec<_> = headers
            .get_all(name)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .collect();
        values.join(" and ")
    })
}

const POLICY: &str = r#""default";q=1;w=3600"#;
