//! Calling others under their limits: clients that wait for their turn, and pass on what the other side says of its limit.

#[cfg(feature = "_calling")]
mod answer;
#[cfg(feature = "_calling")]
mod client;
#[cfg(feature = "_calling")]
mod error;
#[cfg(feature = "_calling")]
mod estimate;
#[cfg(feature = "_calling")]
mod headers;
#[cfg(feature = "_calling")]
mod outgoing;
#[cfg(feature = "_calling")]
mod passing;
#[cfg(feature = "_calling")]
mod reading;
#[cfg(feature = "_calling")]
mod refusals;
#[cfg(feature = "reqwest")]
mod reqwest;
#[cfg(feature = "stream")]
mod stream;
#[cfg(feature = "_calling")]
mod ticket;
#[cfg(feature = "tower")]
mod tower;

#[cfg(feature = "_calling")]
pub use answer::Answer;
#[cfg(feature = "_calling")]
pub use client::ClientLimit;
#[cfg(feature = "_calling")]
pub use error::ClientLimitError;
#[cfg(feature = "_calling")]
pub use estimate::Estimate;
#[cfg(feature = "_calling")]
pub use headers::Preset;
#[cfg(feature = "_calling")]
pub use outgoing::Outgoing;
#[cfg(feature = "reqwest")]
pub use reqwest::LimitMiddleware;
#[cfg(feature = "stream")]
pub use stream::{LimitedStream, limit_stream};
#[cfg(feature = "tower")]
pub use tower::LimitedClient;
