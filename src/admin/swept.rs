use crate::Key;

/// What one step of clearing away came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Swept {
    /// How many buckets, receipts and overrides were deleted.
    pub deleted: u64,
    /// Where the next step begins; `None`: this one came to the end.
    pub next: Option<Key>,
}
