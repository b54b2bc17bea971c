use chrono::{DateTime, Utc};

use crate::model::Key;

/// How often a key was denied, as far as services [count](crate::LimiterBuilder::count_denials) that.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Denials {
    /// The key.
    pub key: Key,
    /// The requests that were denied in the last 24 hours, or a little less: at least so many. Those that passed only in
    /// [shadow](crate::Mode::Shadow) are among them.
    pub denied: u64,
    /// When a service last told of one.
    pub last_denied_at: DateTime<Utc>,
}

impl Denials {
    /// What can be added: so many at once that no sum overflows, in one order, so that processes do not wait for each other
    /// in a circle.
    pub(crate) fn sound(counted: &[(Key, u64)]) -> Vec<(Key, i64)> {
        let bounded = |(key, denied): &(Key, u64)| (key.clone(), i64::try_from(*denied).unwrap_or(MOST).min(MOST));
        let mut counted: Vec<_> = counted.iter().map(bounded).filter(|(_, denied)| *denied > 0).collect();
        counted.sort_unstable();
        counted
    }

    /// The key that was denied most goes first.
    pub(crate) fn most(mut all: Vec<Self>, limit: u32) -> Vec<Self> {
        all.sort_unstable_by(|one, other| other.denied.cmp(&one.denied).then_with(|| one.key.cmp(&other.key)));
        all.truncate(limit as usize);
        all
    }
}

const MOST: i64 = 1_000_000_000_000_000;
