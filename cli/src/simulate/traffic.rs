//! The traffic of a simulation.

use tollgate::Key;

/// The arrival of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arrival {
    /// In nanoseconds since 1970.
    pub(crate) at: i64,
    pub(crate) cost: u64,
    /// The client's position in [`Traffic::clients`], or 0 if one bucket is for all.
    pub(crate) client: u32,
}

/// Arrivals in order of time.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Traffic {
    pub(crate) arrivals: Vec<Arrival>,
    /// The simulated span, in nanoseconds since 1970.
    pub(crate) begin: i64,
    pub(crate) end: i64,
    /// The clients, each with its own bucket. Empty if one bucket is for all.
    pub(crate) clients: Vec<Key>,
    /// The number of skipped lines of the file.
    pub(crate) skipped: u64,
}
