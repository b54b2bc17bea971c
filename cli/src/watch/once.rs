//! One look as a table, for pipes and tests.

use super::board::Board;
use crate::output::{Cell, Column, Table};
use crate::times;

pub(crate) fn table(board: &Board) -> String {
    let mut table = Table::new([
        Column::Left("key"),
        Column::Left("terms"),
        Column::Right("available"),
        Column::Right("granted"),
        Column::Right("denied"),
        Column::Right("full in"),
    ]);
    for row in board.visible() {
        let level = &row.level;
        table.row([
            Cell::from(level.key.as_str()),
            Cell::from(level.quota.to_string()),
            Cell::from(level.available.to_string()),
            Cell::from(level.granted.to_string()),
            Cell::from(row.denied.map_or_else(String::new, |denied| denied.to_string())),
            Cell::from(level.full_at.map_or_else(String::new, times::until)),
        ]);
    }
    let more = board.toured.map(|toured| {
        let more = toured.totals.buckets.saturating_sub(board.visible().len());
        format!("… and {more} more: these are {}; choose by --prefix", board.order.name())
    });
    let notes = more.into_iter().chain(board.denials.now.none.map(str::to_owned));
    std::iter::once(table.render()).chain(notes).collect::<Vec<_>>().join("\n")
}
