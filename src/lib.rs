// `tollgate-http` compiles what the page shows.
#![cfg_attr(not(doctest), doc = include_str!("../README.md"))]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(docsrs, doc(auto_cfg(hide(feature = "_sql"))))]
#![forbid(unsafe_code)]

pub mod admin;
pub mod clock;
mod concurrency;
pub mod layers;
mod limiter;
pub mod model;
mod requester;
pub mod store;
pub mod telemetry;

/// The version of chrono for the instants in calls of operators, such as the end of an [`Override`](admin::Override).
#[doc(no_inline)]
pub use chrono;
pub use limiter::bound::Bound;
pub use limiter::builder::LimiterBuilder;
pub use limiter::policy::{Fallback, LocalQuotas};
pub use limiter::reservation::Reservation;
#[cfg(feature = "stream")]
pub use limiter::stream;
pub use limiter::{Limiter, middleware};
pub use model::decision::Decision;
pub use model::error::{Error, TakeError};
pub use model::key::Key;
pub use model::limit::{Limit, Rule};
pub use model::mode::Mode;
pub use model::quota::Quota;
pub use model::receipt::{Adjusted, Adjustment, Receipt};
pub use model::take::Take;
pub use model::throttle::Throttle;
pub use model::window::Window;
#[cfg(feature = "_sql")]
#[cfg_attr(docsrs, doc(cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))))]
pub use requester::SqlTokenRequester;
pub use requester::{LimitError, Limited, LocalBucket, TokenRequester, limit};
/// The version of sqlx for the pools and connections of the stores.
#[cfg(feature = "_sql")]
#[cfg_attr(docsrs, doc(cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))))]
#[doc(no_inline)]
pub use sqlx;
pub use store::admin::Admin;
pub use store::any::AnyStore;
pub use store::interface::Store;
pub use store::memory::MemoryStore;
#[cfg(feature = "mysql")]
pub use store::sql::MySqlStore;
#[cfg(feature = "postgres")]
pub use store::sql::PgStore;
#[cfg(feature = "sqlite")]
pub use store::sql::SqliteStore;
#[cfg(feature = "_sql")]
#[cfg_attr(docsrs, doc(cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))))]
pub use store::sql::{SqlStore, create_bucket, migrate};
/// The version of uuid for the ids of requests: see [`Take::id`]. Its feature `v4` is on.
#[doc(no_inline)]
pub use uuid;
