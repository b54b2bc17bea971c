//! Chooses the columns that fit beside the keys.

use unicode_width::UnicodeWidthStr;

use super::row::HISTORY;
use crate::output::MIN_KEY_WIDTH;

/// The columns of a screen, from left to right, with one space between them.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ScreenColumns {
    /// Width of the keys.
    pub(super) key: usize,
    /// The columns of values, with their widths.
    pub(super) values: Vec<(ValueColumn, usize)>,
    /// Width of the sparklines. 0: no sparklines.
    pub(super) history: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ValueColumn {
    Quota,
    Tokens,
    Granted,
    DeniedRate,
    Denied,
}

/// The values of a row, in the order of `ALL`.
pub(super) type Values = [String; ALL.len()];

impl ScreenColumns {
    /// Makes each column of values as wide as its widest value. The longest key takes the space that the values leave, and the
    /// sparklines take the rest. Leaves out empty columns. Drops the columns of `DROP_ORDER`, and at last the column `sorted` by, while a
    /// key has less than `MIN_KEY_WIDTH`, or a sparkline less than its title.
    pub(super) fn within(width: usize, longest: usize, rows: &[Values], sorted: Option<ValueColumn>) -> Self {
        let is_empty = |column: ValueColumn| !rows.is_empty() && rows.iter().all(|row| row[column.place()].is_empty());
        let shown = ALL.into_iter().filter(|column| !is_empty(*column));
        let mut values: Vec<_> = shown.map(|column| (column, column.width_of(rows))).collect();
        let mut has_history = true;
        for dropped in DROP_ORDER.into_iter().filter(|column| sorted.is_none() || *column != sorted).chain([sorted]) {
            let history = if has_history { HISTORY_TITLE.len() + 1 } else { 0 };
            if width >= MIN_KEY_WIDTH.min(longest.max(KEY_TITLE.len())) + used_width(&values) + history {
                break;
            }
            match dropped {
                Some(dropped) => values.retain(|(column, _)| *column != dropped),
                None => has_history = false,
            }
        }
        let free = width.saturating_sub(used_width(&values));
        let rest = free.saturating_sub(longest.max(MIN_KEY_WIDTH) + 1);
        let history = if has_history { rest.clamp(HISTORY_TITLE.len(), HISTORY) } else { 0 };
        let key = if has_history { free - history - 1 } else { free };
        Self { key, values, history }
    }

    pub(super) fn widths(&self) -> impl Iterator<Item = usize> {
        let history = Some(self.history).filter(|width| *width > 0);
        std::iter::once(self.key).chain(self.values.iter().map(|(_, width)| *width)).chain(history)
    }

    pub(super) fn history_title(&self) -> Option<&'static str> {
        (self.history > 0).then_some(HISTORY_TITLE)
    }
}

impl ValueColumn {
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Quota => "quota",
            Self::Tokens => "tokens",
            Self::Granted => "granted/s",
            Self::DeniedRate => "denied/s",
            Self::Denied => "denied",
        }
    }

    /// The place of the column's value in a row.
    pub(super) fn place(self) -> usize {
        ALL.iter().position(|column| *column == self).unwrap_or_default()
    }

    pub(super) fn is_number(self) -> bool {
        self != Self::Quota
    }

    fn width_of(self, rows: &[Values]) -> usize {
        let widest = rows.iter().map(|row| row[self.place()].width()).max().unwrap_or(0).max(self.title().len());
        // Numbers are short, and are never cut.
        if self.is_number() { widest } else { widest.min(MAX_QUOTA_WIDTH) }
    }
}

/// The width of the columns and of the spaces before them.
fn used_width(values: &[(ValueColumn, usize)]) -> usize {
    values.iter().map(|(_, width)| width + 1).sum()
}

const ALL: [ValueColumn; 5] =
    [ValueColumn::Quota, ValueColumn::Tokens, ValueColumn::Granted, ValueColumn::DeniedRate, ValueColumn::Denied];

/// The columns to drop, in this order; `None` is the sparklines. Columns that change from read to read stay longer. A key without its
/// tokens is of least use, so the tokens are last.
const DROP_ORDER: [Option<ValueColumn>; 6] = [
    Some(ValueColumn::Denied),
    Some(ValueColumn::Quota),
    None,
    Some(ValueColumn::DeniedRate),
    Some(ValueColumn::Granted),
    Some(ValueColumn::Tokens),
];

pub(super) const KEY_TITLE: &str = "bucket";
const HISTORY_TITLE: &str = "lately";

const MAX_QUOTA_WIDTH: usize = 24;

#[cfg(test)]
mod tests {
    use super::*;

    fn values() -> Values {
        ["1000 per calendar 1d burst 20", "100.0M/100.0M", "1.5M", "0.0", "99999"].map(str::to_owned)
    }

    #[test]
    fn keys_get_width_and_sparklines_outlast_quotas() {
        // The values take 25 + 14 + 10 + 9 + 7 places.
        for (width, longest, key, columns, history) in [
            (200, 20, 104, 5, 30),
            (120, 16, 24, 5, 30),
            (120, 40, 40, 5, 14),
            (120, 50, 48, 5, 6),
            (120, 255, 48, 5, 6),
            (80, 16, 16, 3, 30),
            (80, 40, 40, 3, 6),
            (60, 40, 20, 3, 6),
            (40, 40, 16, 2, 0),
            (36, 40, 22, 1, 0),
            (20, 40, 20, 0, 0),
            (0, 40, 0, 0, 0),
        ] {
            let found = ScreenColumns::within(width, longest, &[values()], Some(ValueColumn::Tokens));
            assert_eq!((found.key, found.values.len(), found.history), (key, columns, history), "{width} {longest}");
            let (all, count) = (found.widths().sum::<usize>(), found.widths().count());
            assert!(all + count - 1 <= width || width == 0, "{found:?} within {width}");
        }
    }

    #[test]
    fn column_is_as_wide_as_its_widest_number() {
        let found = ScreenColumns::within(200, 20, &[values(), values().map(|value| value.repeat(2))], None);
        assert_eq!(found.values[0], (ValueColumn::Quota, MAX_QUOTA_WIDTH));
        assert_eq!(found.values[1], (ValueColumn::Tokens, 26));
        let [quota, tokens, granted, ..] = values();
        let uncounted = [quota, tokens, granted, String::new(), String::new()];
        assert_eq!(ScreenColumns::within(200, 20, &[uncounted], None).values.len(), 3);
    }
}
