// `tollgate-http` compiles what the page shows.
#![cfg_attr(not(doctest), doc = include_str!("../README.md"))]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(docsrs, doc(auto_cfg(hide(feature = "_sql"))))]
#![forbid(unsafe_code)]

pub mod admin;
pub mod clock;
mod concurrency;
pub mod layers;
pub mod limiter;
pub mod model;
pub mod requester;
pub mod store;
pub mod telemetry;

/// The version of chrono for the instants in calls of operators, such as the end of an [`Override`](admin::Override).
#[doc(no_inline)]
pub use chrono;
pub use limiter::{Bound, Fallback, Limiter, LimiterBuilder, Reservation};
pub use model::{
    Adjusted, Adjustment, Decision, Error, Key, Limit, Mode, Quota, Receipt, Rule, Take, TakeError, Throttle, Window,
};
#[cfg(feature = "_sql")]
#[cfg_attr(docsrs, doc(cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))))]
pub use requester::SqlTokenRequester;
pub use requester::{LimitError, TokenRequester, limit};
/// The version of sqlx for the pools and connections of the stores.
#[cfg(feature = "_sql")]
#[cfg_attr(docsrs, doc(cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))))]
#[doc(no_inline)]
pub use sqlx;
#[cfg(feature = "mysql")]
pub use store::MySqlStore;
#[cfg(feature = "postgres")]
pub use store::PgStore;
#[cfg(feature = "sqlite")]
pub use store::SqliteStore;
pub use store::{Admin, AnyStore, MemoryStore, Store};
#[cfg(feature = "_sql")]
#[cfg_attr(docsrs, doc(cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))))]
pub use store::{SqlStore, create_bucket, migrate};
/// The version of uuid for the ids of requests: see [`Take::id`]. Its feature `v4` is on.
#[doc(no_inline)]
pub use uuid;

/// Compiles the examples in the guides.
#[cfg(doctest)]
#[doc = include_str!("../docs/start/postgres.md")]
#[doc = include_str!("../docs/start/mysql.md")]
#[doc = include_str!("../docs/start/sqlite.md")]
#[doc = include_str!("../docs/start/yugabytedb.md")]
#[doc = include_str!("../docs/concepts.md")]
#[doc = include_str!("../docs/choosing.md")]
#[doc = include_str!("../docs/sliding-windows.md")]
#[doc = include_str!("../docs/recipes.md")]
#[doc = include_str!("../docs/waiting.md")]
#[doc = include_str!("../docs/outages.md")]
#[doc = include_str!("../docs/operations.md")]
#[doc = include_str!("../docs/observability.md")]
#[doc = include_str!("../docs/testing.md")]
struct Book;
