//! A crawler of many replicas that is polite to each host: one limit a host, shared by all of them.
//!
//! The hosts are little servers that the example starts. One of them answers 429 in between, and is left alone by every
//! replica until its time is over.
//!
//! ```text
//! cargo run --example crawler                             # on SQLite, in memory
//! cargo run --example crawler -- postgres://localhost/app # or on a database of yours; also mysql:// and sqlite://
//! ```

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use parking_lot::Mutex;
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware};
use tokio::time::Instant;
use tollgate::{ClientLimit, Key, Limiter};

mod common;

const REPLICAS: usize = 4;
const PAGES: usize = 32;
const PAUSE: Duration = Duration::from_secs(1);

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let database = common::open().await?;
    let hosts = [Host::start(None).await?, Host::start(Some(10)).await?];
    println!("{REPLICAS} replicas crawl {} hosts, 20 pages a second of each", hosts.len());

    let mut crawling = Vec::new();
    for replica in 0..REPLICAS {
        // In a service each replica is a process with a pool of its own.
        let limiter = Limiter::new(database.clone(), "20/s burst 1")?;
        let run = database.key("crawl")?;
        let limit =
            ClientLimit::new(limiter).keyed_by(move |page| Key::try_from(format!("{run} {}", page.host_key()?)).ok());
        let client = ClientBuilder::new(reqwest::Client::new()).with(limit.middleware().retries(3)).build();
        for host in &hosts {
            crawling.push(tokio::spawn(crawl(client.clone(), host.address, replica)));
        }
    }
    for crawling in crawling {
        crawling.await??;
    }
    for (host, name) in hosts.iter().zip(["one", "the other"]) {
        let seen = host.seen.lock();
        match seen.paused {
            None => println!("{name}: {} pages", seen.pages),
            // Those who were given a turn before may have been on their way: one of each other replica.
            Some(_) if seen.uninvited < REPLICAS => {
                println!("{name}: {} pages, after it was left alone for {PAUSE:?}", seen.pages);
            }
            Some(_) => anyhow::bail!("{name}: {} requests while it was to be left alone", seen.uninvited),
        }
    }
    Ok(())
}

/// Fetches every fourth page of a host, one after the other.
async fn crawl(client: ClientWithMiddleware, host: SocketAddr, replica: usize) -> anyhow::Result<()> {
    for page in (replica..PAGES).step_by(REPLICAS) {
        client.get(format!("http://{host}/{page}")).send().await?.error_for_status()?;
    }
    Ok(())
}

/// A host that may ask to be left alone once it has served some pages.
struct Host {
    address: SocketAddr,
    seen: Arc<Mutex<Seen>>,
}

#[derive(Default)]
struct Seen {
    pages: usize,
    refuses_after: Option<usize>,
    paused: Option<Instant>,
    /// How many requests came while it was to be left alone.
    uninvited: usize,
}

impl Host {
    async fn start(refuses_after: Option<usize>) -> anyhow::Result<Self> {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let seen = Arc::new(Mutex::new(Seen { refuses_after, ..Seen::default() }));
        let router = Router::new().fallback(page).with_state(Arc::clone(&seen));
        tokio::spawn(async move { axum::serve(listener, router).await });
        Ok(Self { address, seen })
    }
}

async fn page(State(seen): State<Arc<Mutex<Seen>>>) -> Response {
    let mut seen = seen.lock();
    if seen.paused.is_none() && seen.refuses_after == Some(seen.pages) {
        seen.paused = Some(Instant::now());
    } else if seen.paused.is_some_and(|since| since.elapsed() < PAUSE) {
        seen.uninvited += 1;
    } else {
        seen.pages += 1;
        return "a page".into_response();
    }
    (StatusCode::TOO_MANY_REQUESTS, [("retry-after", PAUSE.as_secs().to_string())]).into_response()
}
