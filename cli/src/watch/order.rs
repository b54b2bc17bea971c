use std::cmp::Ordering;

use clap::ValueEnum;

use super::columns::ValueColumn;
use super::row::BoardRow;

/// Which buckets come first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum WatchOrder {
    /// Most grants per second; until there are two looks, most grants ever.
    #[default]
    Hottest,
    /// The smallest part of the capacity left.
    Emptiest,
    /// Most requests denied in the last 24 hours, as far as services count them. Includes keys without a bucket.
    Denied,
    /// By key.
    Key,
}

impl WatchOrder {
    pub(crate) fn compare(self, one: &BoardRow, other: &BoardRow) -> Ordering {
        let first = match self {
            Self::Hottest => Ordering::Equal,
            Self::Emptiest => one.part_left().total_cmp(&other.part_left()),
            Self::Denied => other.denied.cmp(&one.denied),
            Self::Key => one.key.cmp(&other.key),
        };
        let hotter = || other.rate.unwrap_or(0.0).total_cmp(&one.rate.unwrap_or(0.0));
        let ever = || other.granted().cmp(&one.granted());
        first.then_with(hotter).then_with(ever).then_with(|| one.key.cmp(&other.key))
    }

    pub(crate) fn next(self) -> Self {
        match self {
            Self::Hottest => Self::Emptiest,
            Self::Emptiest => Self::Denied,
            Self::Denied => Self::Key,
            Self::Key => Self::Hottest,
        }
    }

    /// The column of the screen that shows the order.
    pub(super) fn column(self) -> Option<ValueColumn> {
        match self {
            Self::Hottest => Some(ValueColumn::Granted),
            Self::Emptiest => Some(ValueColumn::Tokens),
            Self::Denied => Some(ValueColumn::Denied),
            Self::Key => None,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Hottest => "hottest first",
            Self::Emptiest => "emptiest first",
            Self::Denied => "most denied first",
            Self::Key => "by key",
        }
    }
}
