//! The settings of a store that callers choose.

/// The isolation level of transactions: see [`SqlStore::isolation`](crate::SqlStore::isolation).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isolation {
    /// Sufficient, and the fastest.
    ReadCommitted,
    /// Snapshot isolation on PostgreSQL.
    RepeatableRead,
    /// The level that YugabyteDB's users often run.
    Serializable,
}

/// Whether a crash of the database can lose the latest grants.
///
/// Durability is a setting of connections, so you choose it for a pool of the store's own: see [`SqlStore::connect`](crate::SqlStore::connect).
/// Default: [`Asynchronous`](Self::Asynchronous).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Durability {
    /// Answers do not wait for the disk, so a crash can lose the latest grants.
    ///
    /// On PostgreSQL these are the grants of three times `wal_writer_delay`: 0.6 s by default. On SQLite these are the
    /// grants since the last checkpoint, and only if the host itself crashes. So after a crash, a bucket can grant at most
    /// its capacity once more, plus the tokens that were refilled in that time.
    #[default]
    Asynchronous,
    /// A crash loses no answer.
    ///
    /// On `MySQL` and `MariaDB` no connection can choose this. It holds only if the server has
    /// `innodb_flush_log_at_trx_commit = 1` and, with a binary log, `sync_binlog = 1`. Otherwise the store's first
    /// connection logs a warning through `tracing`, and `tollgate doctor` reports it.
    Synchronous,
}
