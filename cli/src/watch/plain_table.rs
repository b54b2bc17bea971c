//! Prints one read as a table, for pipes and tests.

use tollgate::admin::BucketLevel;

use super::board::Board;
use super::order::WatchOrder;
use crate::output::{Cell, Column, Layout, Table};
use crate::text::wrapped;
use crate::times;

/// Formats the rows to fit the width, or a sentence if there are none.
pub(crate) fn table(board: &Board, width: Option<usize>) -> String {
    let mut table = Table::new([
        Column::Left("key"),
        Column::Left("limit"),
        Column::Right("available"),
        Column::Right("granted"),
        Column::Right("denied"),
        Column::Right("full in"),
    ])
    .drops(&["full in", "limit", "granted", "denied", "available"]);
    let rows = board.visible();
    for row in &rows {
        let level = row.level.as_ref();
        table.row(
            [
                row.key.as_str().to_owned(),
                row.quota(),
                level.map_or_else(String::new, |level| level.available().to_string()),
                level.map_or_else(String::new, |level| level.granted().to_string()),
                row.denied.map_or_else(String::new, |denied| denied.to_string()),
                level.and_then(BucketLevel::full_at).map_or_else(String::new, times::until),
            ]
            .map(Cell::from),
        );
    }
    let more = board.scan.and_then(|scan| {
        let shown = rows.iter().filter(|row| row.level.is_some()).count();
        let more = scan.totals.buckets.saturating_sub(shown);
        (more > 0).then(|| format!("… and {more} more: these are {}; choose by --prefix", board.order.name()))
    });
    let notes = more.into_iter().chain(board.denials.now.missing_reason.map(str::to_owned));
    let notes = notes.map(|note| wrapped(&note, width, 0));
    let mut layout = Layout::within(width).keeping(match board.order {
        WatchOrder::Hottest => Some("granted"),
        WatchOrder::Emptiest => Some("available"),
        WatchOrder::Denied => Some("denied"),
        WatchOrder::Key => None,
    });
    let shown = board.empty_note().map_or_else(|| table.lines(&mut layout), |note| wrapped(&note, width, 0));
    std::iter::once(shown).chain(notes).collect::<Vec<_>>().join("\n")
}
