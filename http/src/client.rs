//! Client middleware: requests take their tokens before they are sent, and what upstreams answer throttles the shared bucket.

mod answer;
mod error;
mod estimate;
mod headers;
mod limit;
mod outgoing;
mod passing;
mod reading;
#[cfg(feature = "reqwest")]
mod reqwest;
mod throttles;
mod ticket;
mod tower;
mod turn;

pub use answer::Answer;
pub use error::ClientLimitError;
pub use estimate::Estimate;
pub use headers::{Preset, read_hold_back};
pub use limit::ClientLimit;
pub use outgoing::Outgoing;
#[cfg(feature = "reqwest")]
pub use reqwest::LimitMiddleware;
pub use tower::LimitedClient;
