//! Calling others under their limits: clients that wait for their turn, and pass on what the other side says of its limit.

mod answer;
mod client;
mod error;
mod estimate;
mod headers;
mod outgoing;
mod passing;
mod reading;
#[cfg(feature = "reqwest")]
mod reqwest;
mod ticket;
#[cfg(feature = "tower")]
mod tower;

pub use answer::Answer;
pub use client::ClientLimit;
pub use error::ClientLimitError;
pub use estimate::Estimate;
pub use headers::Preset;
pub use outgoing::Outgoing;
#[cfg(feature = "reqwest")]
pub use reqwest::LimitMiddleware;
#[cfg(feature = "tower")]
pub use tower::LimitedClient;
