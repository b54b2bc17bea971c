use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::thread::{self, JoinHandle};

use anyhow::anyhow;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;

use crate::proto::envoy::service::ratelimit::v3::rate_limit_service_server::{
    RateLimitService, RateLimitServiceServer,
};

/// A server in this process, on a runtime of its own. Dropping it ends it.
pub(crate) struct Running {
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<anyhow::Result<()>>>,
}

impl Running {
    /// Starts a server, whose threads have this name.
    pub(crate) fn start<F, Serving>(name: &'static str, serve: F) -> anyhow::Result<Self>
    where
        F: FnOnce(oneshot::Receiver<()>) -> Serving + Send + 'static,
        Serving: Future<Output = anyhow::Result<()>>,
    {
        let (end, ended) = oneshot::channel();
        let thread = thread::Builder::new().name(name.to_owned()).spawn(move || {
            let runtime = runtime(name)?;
            runtime.block_on(serve(ended))
        })?;
        Ok(Self { end: Some(end), thread: Some(thread) })
    }

    /// Ends the server, and returns its error.
    pub(crate) fn end(mut self) -> anyhow::Result<()> {
        self.join()
    }

    fn join(&mut self) -> anyhow::Result<()> {
        if let Some(end) = self.end.take() {
            // A server that has failed does not listen for its end.
            let _ = end.send(());
        }
        match self.thread.take() {
            Some(thread) => thread.join().map_err(|_| anyhow!("a server panicked"))?,
            None => Ok(()),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Err(error) = self.join() {
            eprintln!("{error:#}");
        }
    }
}

/// Serves a rate limit service until `ended`.
pub(crate) async fn serve<S: RateLimitService>(
    service: S,
    listener: TcpListener,
    ended: oneshot::Receiver<()>,
) -> anyhow::Result<()> {
    listener.set_nonblocking(true)?;
    let incoming = TcpIncoming::from(tokio::net::TcpListener::from_std(listener)?).with_nodelay(Some(true));
    let end = async move {
        let _ = ended.await;
    };
    Server::builder()
        .max_concurrent_streams(MAX_STREAMS)
        .add_service(RateLimitServiceServer::new(service))
        .serve_with_incoming_shutdown(incoming, end)
        .await?;
    Ok(())
}

/// Makes the runtime of a server, or of the load.
pub(crate) fn runtime(name: &str) -> anyhow::Result<Runtime> {
    Ok(Builder::new_multi_thread().worker_threads(WORKERS).thread_name(name).enable_all().build()?)
}

/// Listens on a free port of loopback.
pub(crate) fn listen() -> anyhow::Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    Ok((listener, address))
}

const WORKERS: usize = 2;
/// As `tollgate serve`.
const MAX_STREAMS: u32 = 1024;
