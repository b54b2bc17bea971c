//! A replica of the crawler, in its own process.

use std::net::SocketAddr;

use common::processes;
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware};
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;
use tollgate::{Key, Limiter};
use tollgate_http::ClientLimit;

use crate::{PAGES, POLITE, REPLICAS};

#[derive(Clone, Deserialize, Serialize)]
pub(crate) struct Orders {
    pub(crate) url: String,
    /// Prefix of the keys, so that the crawl can be repeated on a database.
    pub(crate) crawl: String,
    pub(crate) hosts: Vec<SocketAddr>,
    /// The first page. Each replica fetches every fourth page.
    pub(crate) first: usize,
}

/// Crawls the hosts in its orders.
pub(crate) async fn crawl() -> anyhow::Result<()> {
    let Orders { url, crawl, hosts, first } = processes::receive()?;
    let limiter = Limiter::new(common::open_at(&url).await?.store(), POLITE)?;
    let limit = ClientLimit::new(limiter).key(move |page| Key::try_from(format!("{crawl} {}", page.host_key()?)).ok());
    let client = ClientBuilder::new(reqwest::Client::new()).with(limit.middleware().retries(3)).build();
    let () = processes::ready()?;

    let mut crawling: JoinSet<_> = hosts.into_iter().map(|host| fetch(client.clone(), host, first)).collect();
    let mut fetched = 0;
    while let Some(pages) = crawling.join_next().await {
        fetched += pages??;
    }
    processes::report(&fetched)
}

/// Fetches the pages of a host, one after the other.
async fn fetch(client: ClientWithMiddleware, host: SocketAddr, first: usize) -> anyhow::Result<usize> {
    let mut fetched = 0;
    for page in (first..PAGES).step_by(REPLICAS) {
        client.get(format!("http://{host}/{page}")).send().await?.error_for_status()?;
        fetched += 1;
    }
    Ok(fetched)
}
