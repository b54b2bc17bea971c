//! Measures how many requests an HTTP server serves behind each limit.

mod client;
mod layers;

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::Context;
use axum::Router;
use axum::http::HeaderMap;
use axum::routing::get;
use tokio::net::TcpSocket;
use tokio::runtime::{Builder, Runtime};

use crate::peer::{Opened, Peer, opened};
use crate::scene::Scene;
use crate::system::System;
use client::Client;

/// A server on its own threads, and a client that keeps its connections.
pub(crate) struct Served {
    client: Client,
    runtime: Option<Runtime>,
}

/// Serves behind the limit of a system under test.
pub(crate) async fn open(system: System, scene: &Scene) -> anyhow::Result<Box<dyn Opened>> {
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let (system, scene) = (system, scene.clone());
    let served = runtime.spawn(async move {
        let router = Router::new().route("/", get(|| async { "hello" }));
        let router = layers::limit(router, system, &scene).await?;
        let socket = TcpSocket::new_v4()?;
        socket.bind((Ipv4Addr::LOCALHOST, 0).into())?;
        // All clients can connect at once. The server would reset connections beyond its backlog.
        let listener = socket.listen(4096)?;
        let address = listener.local_addr()?;
        let service = router.into_make_service_with_connect_info::<SocketAddr>();
        tokio::spawn(async move { axum::serve(listener, service).await });
        anyhow::Ok(address)
    });
    let address = served.await.context("the server panicked")??;
    Ok(opened(Served { client: Client::new(address), runtime: Some(runtime) }))
}

impl Peer for Served {
    async fn ask(&self, key: u32) -> anyhow::Result<bool> {
        self.client.ask(key).await
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // Does not wait: all requests have ended, and a runtime must not block inside another one.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// The header with the key of a request.
const KEY: &str = "x-key";

fn key_of(headers: &HeaderMap) -> Option<u32> {
    headers.get(KEY)?.to_str().ok()?.parse().ok()
}
