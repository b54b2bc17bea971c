//! Limits what an HTTP or gRPC service serves: a [tower] layer for axum, tonic and hyper.
//!
//! A request without tokens is answered at once with 429 (`RESOURCE_EXHAUSTED` by gRPC) and is told when to come again:
//! the handler does not run, and the body is not read. Out of the box each client address has a bucket of its own, and no
//! header is believed.
//!
//! ```
//! use std::net::SocketAddr;
//! use axum::Router;
//! use axum::routing::get;
//! use tollgate::tower::RateLimitLayer;
//! use tollgate::{Limiter, MemoryStore, Quota};
//!
//! # #[cfg(feature = "axum")]
//! # fn router() -> Result<(), tollgate::Error> {
//! let limiter = Limiter::new(MemoryStore::new(), Quota::per_second(10).burst(20))?; // or PgStore::from(pool)
//! let router: Router = Router::new().route("/", get(|| async { "hello" })).layer(RateLimitLayer::new(limiter));
//! let service = router.into_make_service_with_connect_info::<SocketAddr>(); // tells the layer who the peer is
//! # drop(service);
//! # Ok(())
//! # }
//! ```
//!
//! [tower]: https://docs.rs/tower

mod address;
mod answer;
mod body;
mod check;
mod client_addr;
mod extract;
mod extractors;
mod forwarded;
mod future;
mod gate;
#[cfg(feature = "tonic")]
mod grpc;
mod handler;
mod headers;
mod key;
mod layer;
mod outcome;
mod refusal;
pub mod respond;
mod service;
mod terms;
mod trust;

pub use body::ResponseBody;
pub use client_addr::ClientAddr;
pub use extract::{KeyExtractor, NoKey};
#[cfg(feature = "axum")]
pub use extractors::MatchedRoute;
pub use extractors::{Everybody, Header, UrlPath, extension, hashed};
pub use future::ResponseFuture;
pub use headers::RateLimitHeaders;
pub use layer::RateLimitLayer;
pub use outcome::succeeded;
pub use refusal::{Refusal, Shadowed};
pub use service::RateLimit;
pub use trust::{NetworkError, TrustedProxies};

/// Its snippets compile and run.
#[cfg(all(doctest, feature = "axum", feature = "postgres"))]
#[doc = include_str!("../docs/serving.md")]
#[doc = include_str!("../docs/personal-data.md")]
mod documentation {}
