//! One in-memory limit for a whole HTTP server: a burst of ten, and a token per millisecond.
//!
//! ```text
//! cargo run -p tollgate-http --example http_burst                   # at http://127.0.0.1:3000
//! cargo run -p tollgate-http --example http_burst -- 127.0.0.1:8080 # or elsewhere
//! ```

use axum::Router;
use axum::http::Response;
use axum::routing::get;
use tollgate::{Limiter, MemoryStore, Quota};
use tollgate_http::{GlobalKey, RateLimitLayer};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let limiter = Limiter::new(MemoryStore::new(), Quota::per_second(1000).burst(10))?;
    let limit = RateLimitLayer::new(limiter).key(GlobalKey).respond(|refusal, _request| {
        let mut response = Response::new("rate limited\n");
        *response.status_mut() = refusal.status();
        response
    });
    common::http::serve(Router::new().route("/", get(|| async { "success\n" })).layer(limit), 1).await
}
