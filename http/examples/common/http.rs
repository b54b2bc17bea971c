//! Serves a router on this machine.

use std::net::SocketAddr;

use anyhow::Context;
use axum::Router;
use tokio::net::TcpListener;

/// At the address that is given as an argument at this place, or else at port 3000.
pub(crate) async fn serve(router: Router, argument: usize) -> anyhow::Result<()> {
    let address = std::env::args().nth(argument).unwrap_or_else(|| "127.0.0.1:3000".to_owned());
    let listener = TcpListener::bind(&address).await.with_context(|| format!("cannot listen at {address}"))?;
    println!("listening on http://{}", listener.local_addr()?);
    // The layer limits by the peer's address, which the router must be told.
    axum::serve(listener, router.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}
