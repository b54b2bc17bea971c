/// The result of one step of a sweep.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Swept {
    /// How many rows were deleted: buckets, windows, receipts, overrides and counts of denials.
    pub deleted: u64,
    /// Whether this step came to the end, so that the next one begins anew. Also true if another session is sweeping: then
    /// this step did nothing.
    pub finished: bool,
}

impl Default for Swept {
    /// Nothing to delete, and nothing left to look at.
    fn default() -> Self {
        Self { deleted: 0, finished: true }
    }
}
