//! Runs a server until it is told to end: its listeners, its configuration, and the way it ends.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::middleware;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tollgate::Error;

use crate::config::Sources;
use crate::guard::Guard;
use crate::listener::Listener;
use crate::tls::Certificate;
use crate::{Address, BoardSource, Config, ConfigError, Server, Tls, admin};

/// Where a server listens, and whom it lets in.
#[derive(Default)]
pub struct Options {
    /// The addresses for clients.
    pub listen: Vec<Address>,
    /// The address for operators, on this host, with the metrics to serve there.
    pub admin: Option<(SocketAddr, PrometheusHandle)>,
    /// The address for programs that collect the metrics, which can be on other hosts. `None`: none but `admin`.
    pub metrics: Option<(SocketAddr, PrometheusHandle)>,
    /// The reader of the database for the dashboard at the address for operators. `None`: no dashboard.
    pub board: Option<Arc<dyn BoardSource>>,
    /// The file or the directory of the configuration, to load it again when it changes. `None`: it stays.
    pub config: Option<PathBuf>,
    /// The certificate of the addresses for clients. `None`: no TLS.
    pub tls: Option<Tls>,
    /// The token that clients send. `None`: none.
    pub token: Option<String>,
    /// Whether other hosts can connect without TLS and without a token.
    pub insecure: bool,
    /// The most connections of each address. 0: 10,000.
    pub max_connections: usize,
}

/// Why a server does not run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The address cannot be used.
    #[error("cannot listen on {0}: {1}: choose another address, or end the program that has it")]
    Listen(Address, #[source] io::Error),
    /// Other hosts can reach the address.
    #[error(
        "other hosts can connect to {0}, and nothing protects it: give a certificate or a token, listen on 127.0.0.1 or a \
         socket, or set --insecure"
    )]
    Unprotected(Address),
    /// Other hosts can reach the address for operators.
    #[error("other hosts can connect to {0}: choose an address of this host for operators, such as 127.0.0.1:9090")]
    AdminAddress(SocketAddr),
    /// A file of the certificate cannot be used.
    #[error("{}: {reason}: give a PEM file", file.display())]
    Tls {
        /// The file.
        file: PathBuf,
        /// The mistake in it.
        reason: String,
    },
    /// The limiter failed.
    #[error(transparent)]
    Limiter(#[from] Error),
}

/// Serves until `shutdown` ends. Then answers the requests that it has, for at most ten seconds, and gives leased tokens back.
///
/// Loads the configuration and the certificate again when their files change, or on SIGHUP. Files with a mistake change nothing: it
/// is logged and shown to operators.
///
/// # Errors
///
/// Returns an error if an address, a certificate or the protection of an address is not valid. Nothing is served then.
pub async fn run(server: Server, options: Options, shutdown: impl Future<Output = ()>) -> Result<(), ServeError> {
    let tls = options.tls.map(Certificate::new).transpose()?.map(Arc::new);
    let is_protected = tls.is_some() || options.token.is_some() || options.insecure;
    let max_connections = if options.max_connections == 0 { MAX_CONNECTIONS } else { options.max_connections };
    let mut listeners = Vec::new();
    for address in &options.listen {
        if !address.is_local() && !is_protected {
            return Err(ServeError::Unprotected(address.clone()));
        }
        listeners.push(bind(address).await?);
    }
    let operators = match options.admin {
        None => None,
        Some((address, _)) if !address.ip().is_loopback() => return Err(ServeError::AdminAddress(address)),
        Some((address, metrics)) => Some((bind(&Address::Tcp(address)).await?, metrics)),
    };
    let collectors = match options.metrics {
        None => None,
        Some((address, metrics)) => Some((bind(&Address::Tcp(address)).await?, metrics)),
    };
    let (end, ended) = watch::channel(false);
    let token: Option<Arc<str>> = options.token.map(Arc::from);
    // A page of a browser can have its own name lead here, and other hosts need a token or a certificate.
    let requires_address = token.is_none() && options.listen.iter().all(Address::is_local);
    let guard = Guard::new(token, requires_address);
    let routes = server.routes().layer(middleware::from_fn_with_state(guard, Guard::check));
    let mut serving = JoinSet::new();
    for listener in listeners {
        // A socket has no need for TLS.
        let tls = tls.clone().filter(|_| matches!(listener, Listener::Tcp(_)));
        serving.spawn(listener.serve(routes.clone(), tls, max_connections, ended.clone()));
    }
    let recorded = operators.as_ref().or(collectors.as_ref());
    let keeping = recorded.map(|(_, metrics)| metrics.clone()).map(|metrics| {
        tokio::spawn(async move {
            loop {
                sleep(UPKEEP).await;
                metrics.run_upkeep();
            }
        })
    });
    if let Some((listener, metrics)) = collectors {
        let routes = admin::metrics_route(Arc::clone(&server.state), metrics);
        serving.spawn(listener.serve(routes, None, MAX_OPERATORS, ended.clone()));
    }
    if let Some((listener, metrics)) = operators {
        let routes = admin::routes(Arc::clone(&server.state), metrics, options.board, ended.clone());
        serving.spawn(listener.serve(routes, None, MAX_OPERATORS, ended));
    }
    let reloading = tokio::spawn(reload(server.clone(), options.config, tls));
    server.set_ready(true).await;
    for address in &options.listen {
        tracing::info!(%address, "listening");
    }
    shutdown.await;
    tracing::info!("ending: no new connections, and ten seconds for those that there are");
    server.set_ready(false).await;
    reloading.abort();
    end.send_replace(true);
    while serving.join_next().await.is_some() {}
    if let Some(keeping) = keeping {
        keeping.abort();
    }
    server.limiter().close().await?;
    Ok(())
}

async fn bind(address: &Address) -> Result<Listener, ServeError> {
    Listener::bind(address).await.map_err(|error| ServeError::Listen(address.clone(), error))
}

/// Loads the configuration and the certificate when their files change, and does so at once on SIGHUP, which never ends the server.
async fn reload(server: Server, path: Option<PathBuf>, certificate: Option<Arc<Certificate>>) {
    let Ok(mut hangups) = signal(SignalKind::hangup()) else { return };
    let mut config = path.map(|path| (Sources::read(&path), path));
    loop {
        let is_requested = tokio::select! {
            _ = hangups.recv() => true,
            () = sleep(INTERVAL) => false,
        };
        // Contents and not notices tell of changes, because a mounted directory changes by its link alone.
        if let Some((known, path)) = &mut config {
            let found = read(path).await;
            if is_requested || found != *known {
                apply(&server, path, found.clone()).await;
                *known = found;
            }
        }
        if let Some(certificate) = certificate.clone() {
            let refreshing = tokio::task::spawn_blocking(move || certificate.refresh(is_requested));
            let Some(loaded) = refreshing.await.ok().flatten() else { continue };
            server.certificate_loaded(&loaded);
            match loaded {
                Ok(()) => tracing::info!("the certificate is loaded"),
                Err(error) => {
                    tracing::error!(%error, "the certificate is not loaded, and the previous one stays in use");
                }
            }
        }
    }
}

async fn apply(server: &Server, path: &Path, sources: Result<Sources, ConfigError>) {
    match load(server, sources).await {
        Ok(()) => tracing::info!(path = %path.display(), "the configuration is loaded"),
        Err(error) => {
            server.config_failed(&error);
            tracing::error!(%error, "the configuration is not loaded, and the previous one stays in force");
        }
    }
}

async fn read(path: &Path) -> Result<Sources, ConfigError> {
    let path = path.to_owned();
    let reading = tokio::task::spawn_blocking(move || Sources::read(&path));
    reading.await.unwrap_or_else(|error| Err(ConfigError::new(error.to_string())))
}

/// Checks the files off the runtime's threads, because a large configuration takes a while.
async fn load(server: &Server, sources: Result<Sources, ConfigError>) -> Result<(), ConfigError> {
    let server = server.clone();
    let loading = tokio::task::spawn_blocking(move || {
        let config = Config::of_sources(&sources?)?;
        // An editor can have emptied the file before it writes it.
        if config.is_empty() {
            return Err(ConfigError::new("the configuration is empty: add `domain` and `descriptors`, or `checks`"));
        }
        server.set_config(config).map_err(|error| ConfigError::new(error.to_string()))
    });
    loading.await.unwrap_or_else(|error| Err(ConfigError::new(error.to_string())))
}

/// How often the recorded times of calls become buckets of histograms. Otherwise they stay in memory until a scrape.
const UPKEEP: Duration = Duration::from_secs(5);
const INTERVAL: Duration = Duration::from_secs(2);
const MAX_CONNECTIONS: usize = 10_000;
const MAX_OPERATORS: usize = 64;
