//! Buckets in SQL databases: a store over a pool of any [`Dialect`].

mod admin;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod answers;
mod batches;
mod call;
mod caller_transaction;
mod connect;
mod dialect;
mod endpoints;
mod file;
mod instant;
mod migrate;
#[cfg(feature = "mysql")]
mod mysql;
mod plans;
#[cfg(feature = "postgres")]
mod postgres;
mod reconnect;
mod retry;
mod settings;
#[cfg(feature = "sqlite")]
mod sqlite;
mod store;

pub use caller_transaction::{adjust_within, take_within};
pub use dialect::Dialect;
#[cfg(feature = "postgres")]
pub use migrate::citus::migrate_citus;
pub use migrate::{Migrate, Migration, grants, migrate, migrations, pending_migrations, repair};
#[cfg(feature = "mysql")]
pub use mysql::MySqlStore;
#[cfg(feature = "postgres")]
pub use postgres::PgStore;
pub use settings::{Durability, Isolation};
#[cfg(feature = "sqlite")]
pub use sqlite::SqliteStore;
pub use store::{SqlStore, create_bucket};
