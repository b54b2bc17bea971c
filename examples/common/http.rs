//! Serves a router on this machine.

use std::net::SocketAddr;

use anyhow::Context;
use axum::Router;
use tokio::net::TcpListener;

/// Serves at the address in the given command-line argument. Default: port 3000.
pub async fn serve(router: Router, argument: usize) -> anyhow::Result<()> {
    let address = std::env::args().nth(argument).unwrap_or_else(|| "127.0.0.1:3000".to_owned());
    let listener = TcpListener::bind(&address).await.with_context(|| format!("cannot listen at {address}"))?;
    println!("listening on http://{}", listener.local_addr()?);
    // Provides the peer's address, by which the layer limits.
    axum::serve(listener, router.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}
