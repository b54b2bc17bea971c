//! Accepts connections, with bounds on their number and on slow clients, and drains them at the end.

use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt as _;
use tower::util::MapRequestLayer;

use crate::Address;
use crate::first_request::FirstRequest;
use crate::tls::Certificate;
use crate::warning_interval::WarningInterval;

/// A socket that is bound.
pub(crate) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, #[expect(dead_code, reason = "its drop removes the file")] SocketFile),
}

/// Removes the socket's file at the end, unless another server has made its own meanwhile.
pub(crate) struct SocketFile {
    path: PathBuf,
    /// The device and the number of the file.
    identity: Option<(u64, u64)>,
}

impl SocketFile {
    fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), identity: identity(path) }
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.identity.is_some() && identity(&self.path) == self.identity {
            drop(std::fs::remove_file(&self.path));
        }
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    let metadata = std::fs::metadata(path).ok()?;
    Some((metadata.dev(), metadata.ino()))
}

/// A connection of either kind.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

impl Listener {
    pub(crate) async fn bind(address: &Address) -> io::Result<Self> {
        match address {
            Address::Tcp(address) => Ok(Self::Tcp(TcpListener::bind(address).await?)),
            Address::Unix(path) => {
                // A server that was killed leaves its file.
                let refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
                if is_socket(path) && UnixStream::connect(path).await.is_err_and(refused) {
                    std::fs::remove_file(path)?;
                }
                let listener = UnixListener::bind(path)?;
                std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(SOCKET_MODE))?;
                Ok(Self::Unix(listener, SocketFile::new(path)))
            }
        }
    }

    async fn accept(&self) -> io::Result<(Box<dyn Stream>, Option<SocketAddr>)> {
        match self {
            Self::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                stream.set_nodelay(true)?;
                Ok((Box::new(stream), Some(peer)))
            }
            Self::Unix(listener, _) => Ok((Box::new(listener.accept().await?.0), None)),
        }
    }

    /// Serves connections until `ended` changes. Then ends each as soon as its requests are answered, within ten seconds.
    pub(crate) async fn serve(
        self,
        routes: Router,
        tls: Option<Arc<Certificate>>,
        max_connections: usize,
        mut ended: watch::Receiver<bool>,
    ) {
        let (connections, graceful) = (Arc::new(Semaphore::new(max_connections)), GracefulShutdown::new());
        let warning_interval = WarningInterval::default();
        loop {
            let accepting = async {
                let permit = Arc::clone(&connections).acquire_owned().await;
                (permit, self.accept().await)
            };
            let (permit, accepted) = tokio::select! {
                _ = ended.wait_for(|ended| *ended) => break,
                accepted = accepting => accepted,
            };
            let (stream, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    if warning_interval.is_due() {
                        tracing::warn!(%error, "a connection is not accepted");
                    }
                    sleep(PAUSE).await;
                    continue;
                }
            };
            let (routes, watcher) = (routes.clone(), graceful.watcher());
            let tls = tls.as_deref().map(|certificate| TlsAcceptor::from(certificate.config()));
            tokio::spawn(async move {
                let _permit = permit;
                let stream: Box<dyn Stream> = match tls {
                    None => stream,
                    Some(tls) => match timeout(HANDSHAKE, tls.accept(stream)).await {
                        Ok(Ok(stream)) => Box::new(stream),
                        Ok(Err(error)) => return tracing::debug!(%error, "a client did not complete the TLS handshake"),
                        Err(_) => return,
                    },
                };
                let has_begun = Arc::new(AtomicBool::new(false));
                let stream = FirstRequest::within(HEADERS, stream, Arc::clone(&has_begun));
                let with_peer = MapRequestLayer::new(move |mut request: hyper::Request<hyper::body::Incoming>| {
                    has_begun.store(true, Ordering::Relaxed);
                    if let Some(peer) = peer {
                        request.extensions_mut().insert(peer);
                    }
                    request
                });
                let service = TowerToHyperService::new(tower::Layer::layer(
                    &with_peer,
                    routes.map_request(|request: hyper::Request<hyper::body::Incoming>| {
                        request.map(axum::body::Body::new)
                    }),
                ));
                let mut builder = Builder::new(TokioExecutor::new());
                builder.http1().timer(TokioTimer::new()).header_read_timeout(HEADERS);
                builder
                    .http2()
                    .timer(TokioTimer::new())
                    .keep_alive_interval(KEEP_ALIVE)
                    .max_concurrent_streams(MAX_STREAMS)
                    .max_header_list_size(MAX_HEADERS);
                let connection = builder.serve_connection(TokioIo::new(stream), service);
                // A client that breaks its connection needs no answer.
                drop(watcher.watch(connection.into_owned()).await);
            });
        }
        // New connections go elsewhere.
        drop(self);
        drop(timeout(DRAIN, graceful.shutdown()).await);
    }
}

fn is_socket(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt as _;

    std::fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket())
}

/// Its owner and its group can connect.
const SOCKET_MODE: u32 = 0o660;
/// How long connections end their requests.
pub(crate) const DRAIN: Duration = Duration::from_secs(10);
const HANDSHAKE: Duration = Duration::from_secs(10);
const HEADERS: Duration = Duration::from_secs(10);
const KEEP_ALIVE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(50);
const MAX_STREAMS: u32 = 1024;
const MAX_HEADERS: u32 = 16 << 10;
