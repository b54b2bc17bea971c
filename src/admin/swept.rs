use crate::Key;

/// What one step of clearing away came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Swept {
    /// How many rows were deleted: buckets, windows, receipts, overrides and counts of denials.
    pub deleted: u64,
    /// Where the next step begins; `None`: this one came to the end.
    pub next: Option<SweepCursor>,
}

/// Where a step of clearing away ended, so that the next one begins there: in which table, and behind which row.
///
/// It is good for the store that answered it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SweepCursor(Vec<u8>);

impl SweepCursor {
    pub(crate) fn behind(table: &str, row: &str) -> Self {
        Self(format!("{table}/{row}").into_bytes())
    }

    /// The table and the row's key, if they are text.
    pub(crate) fn place(&self) -> Option<(&str, &str)> {
        std::str::from_utf8(&self.0).ok()?.split_once('/')
    }

    #[cfg(any(feature = "postgres", feature = "mysql"))]
    pub(crate) fn from_bytes(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    #[cfg(any(feature = "postgres", feature = "mysql"))]
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl From<&Key> for SweepCursor {
    /// Behind the bucket of a key.
    fn from(key: &Key) -> Self {
        Self::behind(BUCKETS, key.as_str())
    }
}

pub(crate) const BUCKETS: &str = "buckets";
