//! Requests to be.

/// A request to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arrival {
    /// In nanoseconds since 1970.
    pub(crate) at: i64,
    pub(crate) cost: u64,
}

/// Requests in the order in which they come.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Traffic {
    pub(crate) arrivals: Vec<Arrival>,
    /// The span that they are looked at in, in nanoseconds since 1970.
    pub(crate) begin: i64,
    pub(crate) end: i64,
}
