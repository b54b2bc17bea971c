use super::Switch;
use crate::model::{Key, Quota};

/// A quota that many buckets follow, and the mode that they share.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Plan {
    /// What requests call it.
    pub name: Key,
    /// How much each of its buckets holds, and how that comes back.
    pub quota: Quota,
    /// The mode of its own, if it has one.
    pub switch: Option<Switch>,
}
