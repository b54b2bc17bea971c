//! Requests to be.

use tollgate::Key;

/// A request to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arrival {
    /// In nanoseconds since 1970.
    pub(crate) at: i64,
    pub(crate) cost: u64,
    /// Whose it is: a place among the clients, if those are told apart.
    pub(crate) client: u32,
}

/// Requests in the order in which they come.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Traffic {
    pub(crate) arrivals: Vec<Arrival>,
    /// The span that they are looked at in, in nanoseconds since 1970.
    pub(crate) begin: i64,
    pub(crate) end: i64,
    /// Each has a bucket of its own; none: one bucket is for all.
    pub(crate) clients: Vec<Key>,
    /// The lines of a file that were no arrivals, and were left out.
    pub(crate) skipped: u64,
}
