//! About 100 requests a minute for each path of a URL, counted in steps of 5 s.
//!
//! One process serves at most 100. Processes on one database count together, by the counts that each has read. A denial
//! costs no call.
//!
//! ```text
//! cargo run -p tollgate-http --example http_path_window                             # on SQLite, in memory
//! cargo run -p tollgate-http --example http_path_window -- postgres://localhost/app # or on a database of yours; also mysql:// and sqlite://
//! ```

use std::time::Duration;

use axum::Router;
use tollgate::{Limiter, Window};
use tollgate_http::{RateLimitHeaders, RateLimitLayer, UrlPath};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let window = Window::new(100, Duration::from_secs(60), Duration::from_secs(5))?;
    let limiter = Limiter::new(common::open().await?.local_reads(), window)?;
    let limit = RateLimitLayer::new(limiter).name("path").key(UrlPath).headers(RateLimitHeaders::Always);
    common::http::serve(Router::new().fallback(|| async { "hello\n" }).layer(limit), 2).await
}
