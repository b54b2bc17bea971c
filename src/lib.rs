#![doc = include_str!("../README.md")]

pub mod bucket;
mod clock;
mod decision;
mod error;
mod key;
mod local;
#[cfg(feature = "_sql")]
mod migrate;
mod quota;
mod requester;
#[cfg(feature = "_sql")]
mod retry;
mod store;

pub use clock::{Clock, ManualClock, SystemClock};
pub use decision::Decision;
pub use error::{Cause, Error, TakeError};
pub use key::{Key, KeyError};
pub use local::LocalBucket;
pub use quota::{Quota, QuotaError, Refill};
pub use requester::{LimitError, Limited, TokenRequester, limit};
pub use store::{Outcome, Rule, Store, Take};

#[cfg(feature = "_sql")]
pub use migrate::{Migrate, Migration, migrate, migrations, pending_migrations};
#[cfg(feature = "_sql")]
pub use requester::SqlTokenRequester;
#[cfg(feature = "mysql")]
pub use store::MySqlStore;
#[cfg(feature = "postgres")]
pub use store::PgStore;
#[cfg(feature = "sqlite")]
pub use store::SqliteStore;
#[cfg(feature = "_sql")]
pub use store::{BucketLevel, Dialect, Isolation, SqlStore, create_bucket};
