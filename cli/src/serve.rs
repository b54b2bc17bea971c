//! Runs the local rate limit server.

use std::fs;
use std::io::IsTerminal as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};
use tokio::signal::unix::{SignalKind, signal};
use tollgate::layers::LeaseOptions;
use tollgate::store::Durability;
use tollgate::{AnyStore, Limiter, Rule, SqlStore};
use tollgate_serve::{Address, BoardSource, Config, Options, ServeError, Server, Tls};

use crate::database::{Engine, Missing, close, open};
use crate::exit::CliError;
use crate::lock_timeout::with_lock_timeout;
use crate::output::say;
use crate::{doctor, failure, redact, times};

mod board;

use board::ServeBoard;

/// Serve limits to Envoy, nginx, Traefik, Caddy, HAProxy and every language, from this host
///
/// Speaks Envoy's rate limit service (gRPC, and POST /json), forward authentication (/check/NAME) and JSON (/v1). Loads the
/// configuration again when it changes, or on SIGHUP. On SIGTERM, takes no new requests, and ends those that it has within ten
/// seconds.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n\
\x20 tollgate serve --config limits.yaml\n\
\x20 tollgate serve --config limits/ --listen unix:/run/tollgate.sock --admin 127.0.0.1:9090\n\
\x20 tollgate serve --config limits/ --check   # for CI")]
pub(crate) struct Args {
    /// The configuration: a YAML file, or a directory of them. Default: none, for /v1 alone
    #[arg(long, value_name = "PATH")]
    config: Option<PathBuf>,
    /// Check the configuration, print its limits, and end
    #[arg(long, requires = "config")]
    check: bool,
    /// Where clients connect: an address, or unix:PATH
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8081")]
    listen: Vec<Address>,
    /// Where operators see the dashboard, and read /metrics and /config, on this host
    #[arg(long, value_name = "ADDRESS")]
    admin: Option<SocketAddr>,
    /// Where other hosts can read /metrics, and nothing else
    #[arg(long, value_name = "ADDRESS")]
    metrics: Option<SocketAddr>,
    /// The database as operators connect to it, for the dashboard and /v1/explain [default: as clients do]
    #[arg(long, value_name = "URL", env = "TOLLGATE_OPERATOR_DATABASE_URL", hide_env_values = true)]
    operator_database_url: Option<String>,
    /// The longest time for a decision, after which `on_error` of the configuration applies
    #[arg(long, value_name = "SPAN", value_parser = times::parse, default_value = "1s")]
    deadline: Duration,
    /// Prefetch tokens of busy buckets, and decide from memory. Each server can exceed a limit by the tokens that it holds
    #[arg(long)]
    lease: bool,
    /// The most connections to the database
    #[arg(long, value_name = "NUMBER", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1000))]
    connections: u32,
    /// The certificate of the server and its chain, as PEM
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_certificate: Option<PathBuf>,
    /// The private key of the certificate, as PEM
    #[arg(long, value_name = "FILE", requires = "tls_certificate")]
    tls_key: Option<PathBuf>,
    /// The authorities whose certificates clients must have, as PEM
    #[arg(long, value_name = "FILE", requires = "tls_certificate")]
    tls_client_authority: Option<PathBuf>,
    /// The file with the bearer token that clients must send
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Let other hosts connect without TLS and without a token
    #[arg(long)]
    insecure: bool,
}

impl Args {
    /// Reads the configuration, before there is a database.
    fn read(&self) -> Result<Config, CliError> {
        let Some(path) = &self.config else { return Ok(Config::default()) };
        let config = Config::read(path).map_err(|error| {
            CliError::arguments(error.to_string(), "correct the configuration; `--check` tells whether it is valid")
        })?;
        if config.is_empty() {
            let message = format!("the configuration is empty: {}", path.display());
            return Err(CliError::arguments(message, "add `domain` and `descriptors`, or `checks`"));
        }
        Ok(config)
    }

    /// Checks the configuration, if that is all. `None`: the server is to run.
    pub(crate) fn checked(&self) -> anyhow::Result<Option<ExitCode>> {
        let config = self.read()?;
        if !self.check {
            return Ok(None);
        }
        say(config.to_string().trim_end())?;
        Ok(Some(ExitCode::SUCCESS))
    }

    pub(crate) async fn run<DB: Engine>(self, url: &str) -> anyhow::Result<ExitCode> {
        let config = self.read()?;
        let token = self.token_file.as_ref().map(token).transpose()?;
        let has_terminal = std::io::stderr().is_terminal();
        tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(has_terminal).with_env_filter(filter()).init();
        let store = SqlStore::<DB>::connect(url, Durability::Synchronous)?.max_connections(self.connections);
        let store = Arc::new(store);
        let database = redact::database(url);
        // Before the limiter, which keeps the counters that it finds.
        let metrics = match self.admin.or(self.metrics) {
            Some(_) => Some(
                PrometheusBuilder::new()
                    .set_buckets_for_metric(Matcher::Suffix("_seconds".into()), &SECONDS)?
                    .set_buckets_for_metric(Matcher::Suffix("_requests".into()), &REQUESTS)?
                    .install_recorder()?,
            ),
            None => None,
        };
        let limiter = Limiter::builder(AnyStore::new(Arc::clone(&store)))
            .name("serve")
            .deadline(self.deadline)
            .count_denials(MAX_DENIED);
        let limiter = if self.lease { limiter.lease(LeaseOptions::default()) } else { limiter };
        let limiter = limiter.build(Rule::Provisioned)?;
        let operator = match &self.operator_database_url {
            Some(url) => Arc::new(SqlStore::<DB>::connect(url, Durability::Synchronous)?.max_connections(2)),
            None => store,
        };
        let server = Server::new(&limiter, Arc::clone(&operator), config)?;
        let board = self.admin.map(|_| Arc::new(ServeBoard::new(operator, database)) as Arc<dyn BoardSource>);
        let tls = self.tls_certificate.zip(self.tls_key).map(|(certificate, key)| Tls {
            certificate,
            key,
            client_authority: self.tls_client_authority,
        });
        let options = Options {
            listen: self.listen,
            admin: self.admin.zip(metrics.clone()),
            metrics: self.metrics.zip(metrics),
            board,
            config: self.config,
            tls,
            token,
            insecure: self.insecure,
            max_connections: 0,
        };
        let url = url.to_owned();
        tokio::spawn(async move {
            if let Err(error) = try_calls::<DB>(&url).await {
                let cause = failure::chain(&error);
                tracing::error!(%cause, "the database cannot decide requests: run `tollgate doctor`");
            }
        });
        let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let shutdown = async {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        };
        match tollgate_serve::run(server, options, shutdown).await {
            Ok(()) => Ok(ExitCode::SUCCESS),
            Err(ServeError::Limiter(error)) => Err(error.into()),
            Err(error) => {
                let message = error.to_string();
                let (problem, hint) = message.rsplit_once(": ").unwrap_or((&message, "see `tollgate serve --help`"));
                Err(CliError::arguments(problem, hint).into())
            }
        }
    }
}

/// Makes the calls of a service on connections of their own. Returns what hinders them.
async fn try_calls<DB: Engine>(url: &str) -> anyhow::Result<()> {
    let store = open::<DB>(url, Missing::Refuse).await?;
    let tried = with_lock_timeout(doctor::take(store.pool())).await;
    close(store.pool()).await;
    tried
}

fn filter() -> tracing_subscriber::EnvFilter {
    tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "info,sqlx=error".into())
}

/// Reads the token of a file, which ends with the line.
fn token(file: &PathBuf) -> Result<String, CliError> {
    let text = fs::read_to_string(file).map_err(|error| {
        CliError::arguments(format!("{}: {error}", file.display()), "name a file that this user can read")
    })?;
    let token = text.trim();
    if token.len() < MIN_TOKEN {
        let message = format!("the token of {} has fewer than {MIN_TOKEN} characters", file.display());
        return Err(CliError::arguments(message, "make one: openssl rand -hex 32"));
    }
    Ok(token.to_owned())
}

/// The buckets of histograms, as the dashboards and alerts of `ops/` expect them.
const SECONDS: [f64; 9] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 5.0];
const REQUESTS: [f64; 7] = [1.0, 2.0, 5.0, 10.0, 50.0, 200.0, 1000.0];
const MAX_DENIED: usize = 1000;
const MIN_TOKEN: usize = 16;
