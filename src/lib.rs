// `tollgate-http` compiles what the page shows.
#![cfg_attr(not(doctest), doc = include_str!("../README.md"))]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]

mod admin;
mod answer;
mod at_work;
mod book;
pub mod bucket;
mod clock;
mod coalesce;
mod decision;
mod deny_cache;
mod error;
mod handover;
mod hold_back;
mod key;
mod lease;
mod limit;
mod limiter;
mod local;
mod memory;
mod mode;
mod quota;
mod receipt;
mod requester;
mod rule;
#[cfg(feature = "_sql")]
mod sql;
mod store;
mod sync;
mod take;
pub mod telemetry;
mod window;
#[cfg(feature = "serde")]
mod words;

pub use admin::{
    Admin, AdminError, BucketLevel, Denials, Explanation, Filter, Origin, Override, Page, Plan, Prospect, Swept, Switch,
};
/// The version of chrono whose instants an operator's calls take, such as the end of an [`Override`].
#[doc(no_inline)]
pub use chrono;
pub use clock::{Clock, ManualClock, ProcessClock, RuntimeClock, SystemClock};
pub use coalesce::Coalesce;
pub use decision::{Decision, Source};
pub use deny_cache::DenyCache;
pub use error::{Cause, Error, TakeError};
pub use hold_back::{HoldBack, HoldBackError};
pub use key::{Key, KeyError};
#[cfg(feature = "hashed-keys")]
pub use key::{KeySecret, KeySecretError};
pub use lease::{BootClock, Lease, LeaseOptions};
pub use limit::Limit;
pub use limiter::{Bound, Fallback, Limiter, LimiterBuilder, Reservation};
pub use local::LocalBucket;
pub use memory::MemoryStore;
pub use mode::{Mode, ModeError};
pub use quota::{Quota, QuotaBuilder, QuotaError, Refill};
pub use receipt::{Adjusted, Adjustment, AdjustmentKind, Receipt};
pub use requester::{LimitError, Limited, TokenRequester, limit};
pub use rule::Rule;
/// The version of sqlx whose pools and connections the stores take.
#[cfg(feature = "_sql")]
#[doc(no_inline)]
pub use sqlx;
pub use store::{AnyStore, Capabilities, Outcome, Store};
pub use take::Take;
/// The version of uuid of which a request's id is: see [`Take::id`]. Its feature `v4` is on.
#[doc(no_inline)]
pub use uuid;
pub use window::{Counted, LocalReads, SharedWindows, Window, WindowLevel};

#[cfg(feature = "stream")]
pub use requester::{LimitedStream, limit_stream};

#[cfg(feature = "mysql")]
pub use sql::MySqlStore;
#[cfg(feature = "postgres")]
pub use sql::PgStore;
#[cfg(feature = "sqlite")]
pub use sql::SqliteStore;
#[cfg(feature = "_sql")]
pub use sql::{
    Dialect, Durability, Isolation, Migrate, Migration, SqlStore, SqlTokenRequester, adjust_within, create_bucket,
    grants, migrate, migrations, pending_migrations, repair, take_within,
};

/// The programs in the book compile.
#[cfg(doctest)]
#[doc = include_str!("../docs/start/postgres.md")]
#[doc = include_str!("../docs/start/mysql.md")]
#[doc = include_str!("../docs/start/sqlite.md")]
#[doc = include_str!("../docs/operating.md")]
#[doc = include_str!("../docs/choosing.md")]
#[doc = include_str!("../docs/seeing.md")]
struct Book;
