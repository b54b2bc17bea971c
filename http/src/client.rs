//! Client middleware: takes tokens before a request is sent, and throttles the shared bucket when the upstream refuses.

mod error;
mod estimate;
mod headers;
mod limit;
mod outgoing_request;
mod report;
mod reporter;
#[cfg(feature = "reqwest")]
mod reqwest;
mod response_reader;
mod scheduled_request;
mod throttles;
mod ticket;
mod tower;
mod upstream_response;

pub use error::ClientLimitError;
pub use estimate::Estimate;
pub use headers::{HeaderPreset, read_throttle};
pub use limit::ClientLimit;
pub use outgoing_request::OutgoingRequest;
#[cfg(feature = "reqwest")]
pub use reqwest::LimitMiddleware;
pub use tower::LimitedClient;
pub use upstream_response::UpstreamResponse;
