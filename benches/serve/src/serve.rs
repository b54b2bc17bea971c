//! `tollgate serve`, with the settings of the CLI.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tollgate::layers::LeaseOptions;
use tollgate::store::Durability;
use tollgate::{AnyStore, Limiter, MemoryStore, PgStore, Rule, Store};
use tollgate_serve::{Address, Config, Options, Server};

/// The settings of a server.
pub(crate) struct Settings {
    /// The directory of the configuration.
    pub(crate) config: PathBuf,
    pub(crate) listen: Vec<Address>,
    /// Whether it leases tokens of busy buckets.
    pub(crate) lease: bool,
}

pub(crate) async fn over_postgres(url: String, settings: Settings, ended: oneshot::Receiver<()>) -> anyhow::Result<()> {
    let store = Arc::new(postgres(&url)?);
    let limiter = limiter(Arc::clone(&store), settings.lease)?;
    let server = Server::new(&limiter, Arc::clone(&store), Config::read(&settings.config)?)?;
    run(server, settings.listen, ended).await?;
    store.pool().close().await;
    Ok(())
}

pub(crate) async fn over_memory(settings: Settings, ended: oneshot::Receiver<()>) -> anyhow::Result<()> {
    let store = Arc::new(MemoryStore::new());
    let limiter = limiter(Arc::clone(&store), settings.lease)?;
    let server = Server::new(&limiter, store, Config::read(&settings.config)?)?;
    run(server, settings.listen, ended).await
}

async fn run(server: Server, listen: Vec<Address>, ended: oneshot::Receiver<()>) -> anyhow::Result<()> {
    let options = Options { listen, ..Options::default() };
    let end = async move {
        let _ = ended.await;
    };
    tollgate_serve::run(server, options, end).await?;
    Ok(())
}

/// Opens the store. Commits do not wait for the disk, because Redis does not either.
pub(crate) fn postgres(url: &str) -> anyhow::Result<PgStore> {
    Ok(PgStore::connect(url, Durability::Asynchronous)?.max_connections(CONNECTIONS))
}

pub(crate) fn limiter<S: Store>(store: S, lease: bool) -> anyhow::Result<Limiter> {
    let builder = Limiter::builder(AnyStore::new(store)).name("serve").deadline(DEADLINE).count_denials(MAX_DENIED);
    let builder = if lease { builder.lease(LeaseOptions::default()) } else { builder };
    Ok(builder.build(Rule::Provisioned)?)
}

// The CLI's defaults.
const CONNECTIONS: u32 = 8;
const DEADLINE: Duration = Duration::from_secs(1);
const MAX_DENIED: usize = 1000;
