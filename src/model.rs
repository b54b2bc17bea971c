//! The types of requests, limits and answers, and the arithmetic of decisions. Pure: no store, no clock, no task.

pub(crate) mod answer;
pub mod bucket;
pub(crate) mod checked;
pub(crate) mod decide;
pub(crate) mod decision;
pub(crate) mod error;
pub(crate) mod id;
pub(crate) mod key;
pub(crate) mod limit;
pub(crate) mod mode;
pub(crate) mod quota;
pub(crate) mod receipt;
pub(crate) mod take;
#[cfg(feature = "serde")]
mod text;
pub(crate) mod throttle;
pub(crate) mod window;

pub use answer::Outcome;
pub use checked::Checked;
pub use decision::{Decision, Source};
pub use error::{AdminError, Cause, Error, TakeError};
pub use key::{Key, KeyError};
#[cfg(feature = "hashed-keys")]
pub use key::{KeySecret, KeySecretError};
pub use limit::{Limit, Rule};
pub use mode::{Mode, ModeError};
pub use quota::{Quota, QuotaBuilder, QuotaError, Refill};
pub use receipt::{Adjusted, Adjustment, AdjustmentKind, Receipt};
pub use take::Take;
pub use throttle::{Throttle, ThrottleError};
pub use window::{Window, WindowLevel, WindowUsage};
