//! A bucket of n tokens grants exactly n requests.

use std::collections::HashSet;
use std::iter::repeat_n;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use axum::Router;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use parking_lot::Mutex;
use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tollgate::{Admin, Key, Limiter, MemoryStore, PgStore, Quota, SqliteStore, Store};
use tollgate_http::RateLimitLayer;

use super::client::{Client, Connection};
use super::databases::open;
use super::process::{OwnDatabase, Process, SERVERS};
use super::server::Server;

#[tokio::test(flavor = "multi_thread")]
async fn released_streams_pass_exactly_the_tokens() -> anyhow::Result<()> {
    let memory = MemoryStore::new();
    streams(Limiter::new(memory, Quota::once(10)?)?).await?;
    for variable in SERVERS {
        let database = OwnDatabase::create_on(variable).await?;
        streams(Limiter::new(open(&database).await?, Quota::once(10)?)?).await.context(variable)?;
        database.drop().await?;
    }
    let pool = sqlx::pool::PoolOptions::new().max_connections(1).idle_timeout(None).max_lifetime(None);
    let pool = pool.connect("sqlite::memory:").await?;
    tollgate::migrate(&pool).await?;
    streams(Limiter::new(SqliteStore::from(pool), Quota::once(10)?)?).await
}

async fn streams<S: Store>(limiter: Limiter<S>) -> anyhow::Result<()> {
    let service = Counting::start(limiter, 100).await?;
    let client = Client::http2(service.server.address);
    let mut streams = JoinSet::new();
    for _ in 0..100 {
        let client = client.clone();
        streams.spawn(async move { client.get("/").await });
    }
    let mut statuses = Vec::new();
    while let Some(answer) = streams.join_next().await {
        statuses.push(answer??.status);
    }
    assert_eq!(count(&statuses), (10, 90));
    assert_eq!((service.calls(), service.connections()), (10, 1));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn kept_alive_connections_pass_exactly_the_tokens() -> anyhow::Result<()> {
    let service = Counting::start(Limiter::new(MemoryStore::new(), Quota::once(30)?)?, 4).await?;
    let statuses = ask_all(&[service.server.address], 4, 50).await?;
    assert_eq!(count(&statuses), (30, 170));
    assert_eq!((service.calls(), service.connections()), (30, 4));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn eight_server_processes_pass_exactly_the_tokens() -> anyhow::Result<()> {
    let database = OwnDatabase::create().await?;
    let store = PgStore::from(database.pool().await?);
    store.create_plan(&Key::try_from("free")?, Quota::once(100)?.into()).await?;
    let mut processes = Vec::new();
    for _ in 0..8 {
        processes.push(Process::start("http_plans", &[&database.url, "127.0.0.1:0"]).await?);
    }
    let addresses: Vec<_> = processes.iter().map(|process| process.address).collect();
    // Each process requests several tokens in one call. The first calls of all processes request more than the tokens
    // left.
    let statuses = ask_all(&addresses, 16, 3).await?;
    assert_eq!(count(&statuses), (100, 284));
    drop(processes);
    database.drop().await
}

/// A server that counts how often its handler runs, with a barrier before its layer.
struct Counting {
    server: Server,
    calls: Arc<AtomicU64>,
    door: Arc<Door>,
}

/// Admits a number of requests at the same time.
struct Door {
    together: Barrier,
    /// Each connection has its own port.
    peers: Mutex<HashSet<SocketAddr>>,
}

impl Counting {
    async fn start<S: Store>(limiter: Limiter<S>, together: usize) -> anyhow::Result<Self> {
        let calls = Arc::new(AtomicU64::new(0));
        let called = Arc::clone(&calls);
        let handler = move || async move {
            called.fetch_add(1, Ordering::SeqCst);
        };
        let door = Arc::new(Door { together: Barrier::new(together), peers: Mutex::default() });
        let router = Router::new().route("/", get(handler)).layer(RateLimitLayer::new(limiter));
        let router = router.layer(from_fn_with_state(Arc::clone(&door), Door::let_in));
        Ok(Self { server: Server::start(router).await?, calls, door })
    }

    fn calls(&self) -> u64 {
        self.calls.load(Ordering::SeqCst)
    }

    fn connections(&self) -> usize {
        self.door.peers.lock().len()
    }
}

impl Door {
    async fn let_in(
        State(door): State<Arc<Self>>,
        ConnectInfo(peer): ConnectInfo<SocketAddr>,
        request: Request,
        next: Next,
    ) -> Response {
        door.peers.lock().insert(peer);
        match timeout(PATIENCE, door.together.wait()).await {
            Ok(_) => next.run(request).await,
            Err(_) => StatusCode::REQUEST_TIMEOUT.into_response(),
        }
    }
}

const PATIENCE: Duration = Duration::from_secs(30);

/// Opens `at_once` connections to each server, which start at the same time. Each stays open for `times` requests.
pub async fn ask_all(servers: &[SocketAddr], at_once: usize, times: usize) -> anyhow::Result<Vec<StatusCode>> {
    let all = servers.len() * at_once;
    let together = Arc::new(Barrier::new(all));
    let mut clients = JoinSet::new();
    for &address in servers.iter().flat_map(|address| repeat_n(address, at_once)) {
        let together = Arc::clone(&together);
        clients.spawn(async move {
            let mut connection = Connection::open(address).await?;
            let mut statuses = Vec::new();
            together.wait().await;
            for _ in 0..times {
                statuses.push(connection.get("/").await?.status);
            }
            anyhow::Ok(statuses)
        });
    }
    let mut statuses = Vec::new();
    while let Some(client) = clients.join_next().await {
        statuses.extend(client??);
    }
    ensure!(statuses.len() == all * times);
    Ok(statuses)
}

/// Counts the requests that were served and those that were denied.
pub fn count(statuses: &[StatusCode]) -> (usize, usize) {
    let of = |status| statuses.iter().filter(|other| **other == status).count();
    (of(StatusCode::OK), of(StatusCode::TOO_MANY_REQUESTS))
}
