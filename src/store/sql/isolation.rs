/// The level of the transactions that [`SqlStore::isolation`](crate::SqlStore::isolation) asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isolation {
    /// Enough, and the fastest.
    ReadCommitted,
    /// Snapshot isolation on PostgreSQL.
    RepeatableRead,
    /// What YugabyteDB's users often run.
    Serializable,
}
