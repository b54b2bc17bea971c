#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]

#[cfg(feature = "client")]
mod client;
#[cfg(feature = "server")]
mod server;

#[cfg(feature = "reqwest")]
pub use client::LimitMiddleware;
#[cfg(feature = "client")]
pub use client::{
    ClientLimit, ClientLimitError, Estimate, HeaderPreset, LimitedClient, OutgoingRequest, UpstreamResponse,
    read_throttle,
};
#[cfg(feature = "axum")]
pub use server::MatchedRoute;
#[cfg(feature = "server")]
pub use server::{
    ClientAddr, GlobalKey, Header, KeyExtractor, MissingKey, NetworkError, RateLimit, RateLimitHeaders, RateLimitLayer,
    Refusal, ResponseBody, ResponseFuture, ShadowRefusal, TrustedProxies, UrlPath, extension, hashed, is_success,
    joined_key, respond,
};

/// Compiles the programs in the book.
#[cfg(all(doctest, feature = "axum", feature = "tonic", feature = "reqwest"))]
#[doc = include_str!("../../README.md")]
#[doc = include_str!("../../docs/api-keys.md")]
#[doc = include_str!("../../docs/http-client.md")]
#[doc = include_str!("../../docs/http-server.md")]
#[doc = include_str!("../../docs/personal-data.md")]
struct Book;
