//! A crawled host. It counts requests that come too soon, and can ask for a pause after some pages.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use parking_lot::Mutex;
use tokio::time::Instant;
use tollgate::{Limiter, MemoryStore};

use crate::REPLICAS;

/// The crawl's rate, with a burst for requests that each replica can have in progress while this process is busy.
const BEARABLE: &str = "20/s burst 6";
const PAUSE: Duration = Duration::from_secs(1);

pub(crate) struct Host {
    address: SocketAddr,
    site: Arc<Site>,
}

struct Site {
    limiter: Limiter<MemoryStore>,
    refuses_after: Option<usize>,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    pages: usize,
    too_soon: usize,
    paused: Option<Instant>,
    /// How many requests came during the pause.
    uninvited: usize,
}

impl Host {
    pub(crate) async fn start(refuses_after: Option<usize>) -> anyhow::Result<Self> {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let limiter = Limiter::new(MemoryStore::new(), BEARABLE)?;
        let site = Arc::new(Site { limiter, refuses_after, seen: Mutex::default() });
        let router = Router::new().fallback(page).with_state(Arc::clone(&site));
        tokio::spawn(async move { axum::serve(listener, router).await });
        Ok(Self { address, site })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn seen(&self) -> String {
        let seen = self.site.seen.lock();
        let alone = seen.paused.map(|_| format!(", after it was left alone for {PAUSE:?}"));
        format!("{} pages{}", seen.pages, alone.unwrap_or_default())
    }

    /// Returns how many requests came too soon. Allows one request of each other replica that was already on its way
    /// when the host asked for the pause.
    pub(crate) fn violations(&self) -> usize {
        let seen = self.site.seen.lock();
        seen.too_soon + (seen.uninvited + 1).saturating_sub(REPLICAS)
    }
}

async fn page(State(site): State<Arc<Site>>) -> Response {
    let bearable = site.limiter.allow("everybody").await.is_ok_and(|decision| decision.is_granted());
    let mut seen = site.seen.lock();
    seen.too_soon += usize::from(!bearable);
    if seen.paused.is_none() && site.refuses_after == Some(seen.pages) {
        seen.paused = Some(Instant::now());
    } else if seen.paused.is_some_and(|since| since.elapsed() < PAUSE) {
        seen.uninvited += 1;
    } else {
        seen.pages += 1;
        return "a page".into_response();
    }
    (StatusCode::TOO_MANY_REQUESTS, [("retry-after", PAUSE.as_secs().to_string())]).into_response()
}
