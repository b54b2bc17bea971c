//! Server middleware: a tower layer that takes a token for each request, and refuses requests without one.

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
mod limits;
mod outcome;
mod paid_limits;
mod refusal;
pub mod respond;
mod service;
mod trust;

pub use body::ResponseBody;
pub use client_addr::ClientAddr;
pub use extract::{KeyExtractor, MissingKey};
#[cfg(feature = "axum")]
pub use extractors::MatchedRoute;
pub use extractors::{GlobalKey, Header, UrlPath, extension, hashed};
pub use future::ResponseFuture;
pub use headers::RateLimitHeaders;
pub use layer::RateLimitLayer;
pub use outcome::is_success;
pub use refusal::{Refusal, ShadowRefusal};
pub use service::RateLimit;
pub use trust::{NetworkError, TrustedProxies};
