// `tollgate-http` compiles what the page shows.
#![cfg_attr(not(doctest), doc = include_str!("../README.md"))]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]

mod admin;
mod clock;
mod concurrency;
mod layers;
mod limiter;
mod model;
mod requester;
mod store;
pub mod telemetry;

pub use admin::{
    Admin, BucketLevel, Denials, Explanation, Filter, Origin, Override, Page, Plan, Prospect, Swept, Switch,
};
/// The version of chrono whose instants an operator's calls take, such as the end of an [`Override`].
#[doc(no_inline)]
pub use chrono;
pub use clock::{Clock, ManualClock, ProcessClock, RuntimeClock, SystemClock};
pub use layers::{Batcher, BootClock, DenyCache, Lease, LeaseOptions, LocalReads};
pub use limiter::{Bound, Fallback, Limiter, LimiterBuilder, Reservation};
pub use model::{
    Adjusted, Adjustment, AdjustmentKind, AdminError, Cause, Counted, Decision, Error, HoldBack, HoldBackError, Key,
    KeyError, Limit, Mode, ModeError, Outcome, Quota, QuotaBuilder, QuotaError, Receipt, Refill, Rule, Source, Take,
    TakeError, Window, WindowLevel, bucket,
};
#[cfg(feature = "hashed-keys")]
pub use model::{KeySecret, KeySecretError};
#[cfg(feature = "_sql")]
pub use requester::SqlTokenRequester;
pub use requester::{LimitError, Limited, LocalBucket, TokenRequester, limit};
#[cfg(feature = "stream")]
pub use requester::{LimitedStream, limit_stream};
/// The version of sqlx whose pools and connections the stores take.
#[cfg(feature = "_sql")]
#[doc(no_inline)]
pub use sqlx;
#[cfg(feature = "mysql")]
pub use store::MySqlStore;
#[cfg(feature = "postgres")]
pub use store::PgStore;
#[cfg(feature = "sqlite")]
pub use store::SqliteStore;
pub use store::{AnyStore, Capabilities, Maintenance, MaintenanceFuture, MemoryStore, SharedWindows, Store};
#[cfg(feature = "_sql")]
pub use store::{
    Dialect, Durability, Isolation, Migrate, Migration, SqlStore, adjust_within, create_bucket, grants, migrate,
    migrations, pending_migrations, repair, take_within,
};
/// The version of uuid of which a request's id is: see [`Take::id`]. Its feature `v4` is on.
#[doc(no_inline)]
pub use uuid;

/// The programs in the book compile.
#[cfg(doctest)]
#[doc = include_str!("../docs/start/postgres.md")]
#[doc = include_str!("../docs/start/mysql.md")]
#[doc = include_str!("../docs/start/sqlite.md")]
#[doc = include_str!("../docs/operating.md")]
#[doc = include_str!("../docs/choosing.md")]
#[doc = include_str!("../docs/seeing.md")]
struct Book;
