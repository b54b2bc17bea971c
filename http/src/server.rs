//! Server middleware: a tower layer that takes a token for each request, and refuses requests without one.

mod address;
mod admission;
mod body;
mod client_addr;
mod erased_limiter;
mod extractors;
mod forwarded;
mod future;
#[cfg(feature = "tonic")]
mod grpc;
mod headers;
mod key;
mod key_extractor;
mod layer;
mod layer_decision;
mod layer_limit;
mod paid_limits;
mod refund;
mod refusal;
mod refusal_response;
pub mod respond;
mod service;
mod trusted_proxies;

pub use body::ResponseBody;
pub use client_addr::ClientAddr;
#[cfg(feature = "axum")]
pub use extractors::MatchedRoute;
pub use extractors::{GlobalKey, Header, UrlPath, extension, hashed};
pub use future::ResponseFuture;
pub use headers::RateLimitHeaders;
pub use key::joined_key;
pub use key_extractor::{KeyExtractor, MissingKey};
pub use layer::RateLimitLayer;
pub use refund::is_success;
pub use refusal::{Refusal, ShadowRefusal};
pub use service::RateLimit;
pub use trusted_proxies::{NetworkError, TrustedProxies};
