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
pub(crate) mod limit_name;
pub(crate) mod limits;
pub(crate) mod mode;
pub(crate) mod period;
pub(crate) mod quota;
pub(crate) mod quota_error;
pub(crate) mod receipt;
pub(crate) mod take;
pub(crate) mod take_in_parts;
#[cfg(feature = "serde")]
mod text;
pub(crate) mod throttle;
pub(crate) mod window;

pub use answer::Outcome;
pub use checked::Checked;
pub(crate) use decision::Decision;
pub use decision::Source;
pub use error::Cause;
pub(crate) use error::{Error, TakeError};
pub(crate) use key::Key;
pub use key::KeyError;
#[cfg(feature = "hashed-keys")]
pub use key::{KeySecret, KeySecretError};
pub(crate) use limit::{Limit, Rule};
pub use limit_name::LimitName;
pub use limits::{Limits, NamedLimit};
pub(crate) use mode::Mode;
pub use mode::ModeError;
pub use period::CalendarPeriod;
pub(crate) use quota::Quota;
pub use quota::{QuotaBuilder, Refill};
pub use quota_error::QuotaError;
pub use receipt::AdjustmentKind;
pub(crate) use receipt::{Adjusted, Adjustment, Receipt};
pub(crate) use take::Take;
pub(crate) use take_in_parts::TakeInParts;
pub(crate) use throttle::Throttle;
pub use throttle::ThrottleError;
pub(crate) use window::Window;
pub use window::{WindowLevel, WindowUsage};
