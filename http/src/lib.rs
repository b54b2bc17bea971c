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
pub use client::{Answer, ClientLimit, ClientLimitError, Estimate, LimitedClient, Outgoing, Preset, read_hold_back};
#[cfg(feature = "axum")]
pub use server::MatchedRoute;
#[cfg(feature = "server")]
pub use server::{
    ClientAddr, Everybody, Header, KeyExtractor, NetworkError, NoKey, RateLimit, RateLimitHeaders, RateLimitLayer,
    Refusal, ResponseBody, ResponseFuture, Shadowed, TrustedProxies, UrlPath, extension, hashed, respond, succeeded,
};

/// The programs in the book compile.
#[cfg(all(doctest, feature = "axum", feature = "tonic", feature = "reqwest"))]
#[doc = include_str!("../../README.md")]
#[doc = include_str!("../../docs/http-client.md")]
#[doc = include_str!("../../docs/http-server.md")]
#[doc = include_str!("../../docs/personal-data.md")]
struct Book;
