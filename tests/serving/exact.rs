//! As many pass as there are tokens, however they come.

use std::iter::repeat_n;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::ensure;
use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tollgate::tower::RateLimitLayer;
use tollgate::{Admin, Key, Limiter, MemoryStore, PgStore, Quota, SqliteStore, Store};

use super::client::Client;
use super::process::{OwnDatabase, Process};
use super::server::Server;

#[tokio::test(flavor = "multi_thread")]
async fn of_a_hundred_streams_released_together_as_many_pass_as_there_are_tokens() -> anyhow::Result<()> {
    let memory = MemoryStore::new();
    streams(Limiter::new(memory, Quota::once(10)?)?).await?;
    let database = OwnDatabase::create().await?;
    streams(Limiter::new(PgStore::from(database.pool().await?), Quota::once(10)?)?).await?;
    database.drop().await?;
    let pool = sqlx::pool::PoolOptions::new().max_connections(1).idle_timeout(None).max_lifetime(None);
    let pool = pool.connect("sqlite::memory:").await?;
    tollgate::migrate(&pool).await?;
    streams(Limiter::new(SqliteStore::from(pool), Quota::once(10)?)?).await
}

async fn streams<S: Store>(limiter: Limiter<S>) -> anyhow::Result<()> {
    let (server, calls) = counting(limiter).await?;
    let client = Client::http2(server.address);
    let together = Arc::new(Barrier::new(100));
    let mut streams = JoinSet::new();
    for _ in 0..100 {
        let (client, together) = (client.clone(), Arc::clone(&together));
        streams.spawn(async move {
            together.wait().await;
            client.get("/").await
        });
    }
    let mut statuses = Vec::new();
    while let Some(answer) = streams.join_next().await {
        statuses.push(answer??.status);
    }
    assert_eq!(count(&statuses), (10, 90));
    assert_eq!(calls.load(Ordering::SeqCst), 10, "so often the handler ran");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn over_connections_that_are_kept_as_many_pass_as_there_are_tokens() -> anyhow::Result<()> {
    let (server, calls) = counting(Limiter::new(MemoryStore::new(), Quota::once(30)?)?).await?;
    let statuses = ask_all(&[server.address; 4], 1, 50).await?;
    assert_eq!(count(&statuses), (30, 170));
    assert_eq!(calls.load(Ordering::SeqCst), 30);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn eight_server_processes_on_one_database_let_as_many_pass_as_there_are_tokens() -> anyhow::Result<()> {
    let database = OwnDatabase::create().await?;
    let store = PgStore::from(database.pool().await?);
    store.create_plan(&Key::try_from("free")?, Quota::once(100)?).await?;
    let mut processes = Vec::new();
    for _ in 0..8 {
        processes.push(Process::start("http_plans", &[&database.url, "127.0.0.1:0"]).await?);
    }
    let addresses: Vec<_> = processes.iter().map(|process| process.address).collect();
    // Each process asks the database for several at once: the first ones of all are more than there are tokens.
    let statuses = ask_all(&addresses, 16, 3).await?;
    assert_eq!(count(&statuses), (100, 284));
    drop(processes);
    database.drop().await
}

/// A server that counts how often its handler runs.
async fn counting<S: Store>(limiter: Limiter<S>) -> anyhow::Result<(Server, Arc<AtomicU64>)> {
    let calls = Arc::new(AtomicU64::new(0));
    let called = Arc::clone(&calls);
    let handler = move || async move {
        called.fetch_add(1, Ordering::SeqCst);
    };
    let router = Router::new().route("/", get(handler)).layer(RateLimitLayer::new(limiter));
    Ok((Server::start(router).await?, calls))
}

/// So many requests at once to each server, all released together, and so many times; each on a connection that is kept.
async fn ask_all(servers: &[SocketAddr], at_once: usize, times: usize) -> anyhow::Result<Vec<StatusCode>> {
    let all = servers.len() * at_once;
    let together = Arc::new(Barrier::new(all));
    let mut clients = JoinSet::new();
    for &address in servers.iter().flat_map(|address| repeat_n(address, at_once)) {
        let together = Arc::clone(&together);
        clients.spawn(async move {
            let client = Client::new(address);
            let mut statuses = Vec::new();
            for _ in 0..times {
                together.wait().await;
                statuses.push(client.get("/").await?.status);
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

/// How many were served, and how many denied. Others are neither.
fn count(statuses: &[StatusCode]) -> (usize, usize) {
    let of = |status| statuses.iter().filter(|other| **other == status).count();
    (of(StatusCode::OK), of(StatusCode::TOO_MANY_REQUESTS))
}
