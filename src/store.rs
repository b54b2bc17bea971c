//! Stores of buckets: what layers and limiters call, and the stores in memory and in SQL databases.

pub(crate) mod admin;
pub(crate) mod any;
pub(crate) mod interface;
pub(crate) mod memory;
#[cfg(feature = "_sql")]
pub(crate) mod sql;
mod test_store;

pub(crate) use admin::Admin;
pub(crate) use any::AnyStore;
pub use interface::{CallOptions, Capabilities, Maintenance, MaintenanceFuture, SharedWindows};
pub(crate) use interface::{Store, sealed};
pub(crate) use memory::MemoryStore;
#[cfg(feature = "_sql")]
pub(crate) use sql::SqlStore;
#[cfg(feature = "postgres")]
#[cfg_attr(docsrs, doc(cfg(feature = "postgres")))]
pub use sql::migrate_citus;
#[cfg(feature = "_sql")]
#[cfg_attr(docsrs, doc(cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))))]
pub use sql::{
    Dialect, Durability, Isolation, Migrate, Migration, adjust_within, grants, migrations, pending_migrations, repair,
    take_within,
};
pub use test_store::TestStore;
