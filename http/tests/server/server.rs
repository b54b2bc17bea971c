use std::net::SocketAddr;

use axum::Router;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// A server of this process, on a port of its own. It stops when its owner does.
pub struct Server {
    pub address: SocketAddr,
    task: JoinHandle<()>,
}

impl Server {
    /// Tells the router who its peers are.
    pub async fn start(router: Router) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let service = router.into_make_service_with_connect_info::<SocketAddr>();
        let task = tokio::spawn(async move { axum::serve(listener, service).await.expect("it serves") });
        Ok(Self { address, task })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}
