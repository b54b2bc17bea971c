//! Buckets in SQL databases: a store over a pool of any [`Dialect`].

mod admin;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod answers;
mod call;
mod connect;
mod dialect;
mod file;
mod instant;
mod migrate;
#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "postgres")]
mod postgres;
mod retry;
mod runs;
#[cfg(feature = "sqlite")]
mod sqlite;
mod store;
mod within;

pub use connect::Durability;
pub use dialect::Dialect;
pub(crate) use dialect::code_of;
pub use migrate::{Migrate, Migration, grants, migrate, migrations, pending_migrations, repair};
#[cfg(feature = "mysql")]
pub use mysql::MySqlStore;
#[cfg(feature = "postgres")]
pub use postgres::PgStore;
#[cfg(feature = "sqlite")]
pub use sqlite::SqliteStore;
pub use store::{Isolation, SqlStore, create_bucket};
pub use within::{adjust_within, take_within};
