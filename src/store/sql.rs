//! Buckets in SQL databases: a store over whatever [`Dialect`] a pool speaks.

mod adjust;
mod admin;
mod ask;
mod batch;
mod call;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod columns;
mod connect;
mod dialect;
mod handover;
mod isolation;
mod migrate;
#[cfg(feature = "mysql")]
mod mysql;
mod operations;
mod outcomes;
#[cfg(feature = "postgres")]
mod postgres;
mod reconnect;
mod retry;
mod run;
#[cfg(feature = "sqlite")]
mod sqlite;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod standing;
mod store;
mod together;
mod within;

pub use connect::Durability;
pub use dialect::Dialect;
pub(crate) use dialect::code_of;
pub use isolation::Isolation;
pub use migrate::{Migrate, Migration, grants, migrate, migrations, pending_migrations, repair};
#[cfg(feature = "mysql")]
pub use mysql::MySqlStore;
#[cfg(feature = "postgres")]
pub use postgres::PgStore;
#[cfg(feature = "sqlite")]
pub use sqlite::SqliteStore;
pub use store::{SqlStore, create_bucket};
pub use within::{adjust_within, take_within};
