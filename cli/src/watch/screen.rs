//! Draws the board.

use std::time::Duration;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize};
use ratatui::symbols::bar;
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Cell, Row as TableRow, Table};
use unicode_width::UnicodeWidthStr;

use super::board::Board;
use super::columns::{KEY_TITLE, ScreenColumns, ValueColumn, Values};
use super::row::BoardRow;
use super::scan::Totals;
use crate::text::{counted, plain, shortened, truncated};
use crate::times;

pub(crate) fn draw(frame: &mut Frame<'_>, board: &Board, every: Duration) {
    let note = board.denials.now.missing_reason;
    let heights = [
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Fill(1),
        Constraint::Length(note.map_or(0, |_| 1)),
        Constraint::Length(1),
    ];
    let [title_area, summary_area, table_area, note_area, status_area] = Layout::vertical(heights).areas(frame.area());
    let width = usize::from(frame.area().width);
    frame.render_widget(title(board, every, width), title_area);
    frame.render_widget(summary(board, width), summary_area);
    match board.empty_note() {
        Some(note) => frame.render_widget(Line::from(truncated(&note, width)), table_area),
        None => frame.render_widget(table(board, table_area), table_area),
    }
    frame.render_widget(Line::from(truncated(note.unwrap_or_default(), width)).yellow(), note_area);
    frame.render_widget(status(board, width), status_area);
}

/// Names the database, the order and the state.
fn title(board: &Board, every: Duration, width: usize) -> Line<'static> {
    let state = if board.paused { " PAUSED " } else { "" };
    let order = format!("  {}, every {} ", board.order.name(), times::exact(every));
    let database = shortened(&plain(&board.database), width.saturating_sub(order.width() + state.width()));
    fitted([Span::from(database).bold(), Span::from(order), Span::from(state).reversed()], width)
}

fn summary(board: &Board, width: usize) -> Line<'static> {
    let first = if board.scan.is_some_and(|scan| !scan.all) { "the first " } else { "" };
    let all = board.totals();
    let buckets = format!("{first}{}", counted(all.buckets as u64, "bucket"));
    let (buckets, totals, denied) = if board.filter.is_empty() {
        (buckets, all, board.denials.all())
    } else {
        let rows = board.visible();
        let shown = Totals::of(rows.iter().copied());
        let denied = rows.iter().filter_map(|row| row.denied_rate).reduce(|one, other| one + other);
        (format!("{} of {buckets}", shown.buckets), shown, denied)
    };
    let (empty, granted, denied) = (totals.empty, rate(totals.rate), rate(denied));
    let text = format!("{buckets}, {empty} empty, {granted} tokens granted/s, {denied} requests denied/s");
    fitted([Span::from(text)], width)
}

/// Cuts a line that is too wide, and marks the cut.
fn fitted<const N: usize>(spans: [Span<'static>; N], width: usize) -> Line<'static> {
    let mut left = width;
    let spans = spans.into_iter().map(|span| {
        let text = truncated(&span.content, left);
        left -= text.width();
        Span::styled(text, span.style)
    });
    Line::from(spans.collect::<Vec<_>>())
}

/// A rate, or dots until the board has one.
fn rate(rate: Option<f64>) -> String {
    rate.map_or_else(|| "…".to_owned(), number)
}

/// A number that is short enough never to be cut: `947`, `0.5`, `5.0M`.
fn number(value: f64) -> String {
    let size = value.abs();
    let unit = UNITS.into_iter().find(|(unit, _)| size >= LONGEST && size >= *unit);
    match unit {
        // Truncates, so that 999 999 is not 1000.0k.
        Some((unit, name)) => format!("{:.1}{name}", (value / unit * 10.0).trunc() / 10.0),
        None => format!("{value:.1}"),
    }
}

/// As [`number`], without a decimal point if the number is small.
#[expect(clippy::cast_precision_loss, reason = "a float is exact below the first unit")]
fn whole(value: i128) -> String {
    if (value.unsigned_abs() as f64) < LONGEST { value.to_string() } else { number(value as f64) }
}

/// Shows every bucket with its values. Values and then sparklines make room for the keys.
fn table(board: &Board, area: Rect) -> Table<'static> {
    let rows: Vec<&BoardRow> = board.visible().into_iter().skip(board.scrolled).take(area.height.into()).collect();
    let is_counted = board.denials.now.missing_reason.is_none();
    let values: Vec<_> = rows.iter().map(|row| values(row, is_counted)).collect();
    let longest = rows.iter().map(|row| plain(row.key.as_str()).width()).max().unwrap_or(0);
    let columns = ScreenColumns::within(area.width.into(), longest, &values, board.order.column());
    let rows: Vec<_> = rows.iter().zip(&values).map(|(shown, values)| row(shown, values, &columns)).collect();
    let widths = columns.widths().map(|width| Constraint::Length(u16::try_from(width).unwrap_or(u16::MAX)));
    let titles = columns.values.iter().map(|(column, width)| cell(*column, column.title(), *width));
    let titles = std::iter::once(Text::from(KEY_TITLE)).chain(titles).chain(columns.history_title().map(Text::from));
    Table::new(rows, widths).header(TableRow::new(titles.map(|title| Cell::from(title.bold()))))
}

/// Formats the values of a row, without denials if services do not count them.
fn values(row: &BoardRow, is_counted: bool) -> Values {
    let tokens = row.level.as_ref().map_or_else(String::new, |level| {
        format!("{}/{}", whole(level.available().into()), whole(level.quota().capacity().into()))
    });
    let granted = if row.level.is_some() { rate(row.rate) } else { String::new() };
    let denied = row.denied.map_or_else(String::new, |denied| whole(denied.into()));
    let denied_rate = if is_counted { rate(row.denied_rate) } else { String::new() };
    [row.quota(), tokens, granted, denied_rate, denied]
}

fn row(row: &BoardRow, values: &Values, columns: &ScreenColumns) -> TableRow<'static> {
    let color = match &row.level {
        Some(level) if level.available() < 1 => Color::Red,
        Some(_) if row.part_left() < 0.2 => Color::Yellow,
        _ => Color::Reset,
    };
    let key = Text::from(shortened(&plain(row.key.as_str()), columns.key));
    let values = columns.values.iter().map(|(column, width)| {
        let text = cell(*column, &values[column.place()], *width);
        if *column == ValueColumn::Tokens { text.style(Style::new().fg(color)) } else { text }
    });
    let history = (columns.history > 0).then(|| Text::from(sparkline(row, columns.history)).cyan());
    TableRow::new(std::iter::once(key).chain(values).chain(history).map(Cell::from))
}

fn cell(column: ValueColumn, text: &str, width: usize) -> Text<'static> {
    let text = Text::from(truncated(text, width));
    if column.is_number() { text.right_aligned() } else { text }
}

/// Draws the last rates as parts of the highest one.
fn sparkline(row: &BoardRow, columns: usize) -> String {
    let highest = row.past.iter().copied().fold(0.0, f64::max);
    row.past
        .iter()
        .skip(row.past.len().saturating_sub(columns))
        .map(|rate| {
            let eighth = if highest > 0.0 { (rate / highest * 8.0).ceil() } else { 0.0 };
            BARS.into_iter()
                .take_while(|(from, _)| *from <= eighth)
                .last()
                .map_or(bar::NINE_LEVELS.empty, |(_, bar)| bar)
        })
        .collect()
}

/// Shows the filter while it is typed, a failed read, or the keys.
fn status(board: &Board, width: usize) -> Line<'static> {
    if board.typing {
        let (before, after) = ("filter: ", "▏  Enter keeps it, Esc drops it");
        let filter = shortened(&plain(&board.filter), width.saturating_sub(before.width() + after.width()));
        return fitted([Span::from(format!("{before}{filter}{after}"))], width);
    }
    if let Some(read_error) = &board.read_error {
        return fitted([Span::from(format!("no newer read: {}", plain(read_error))).red()], width);
    }
    let unreadable = (board.unreadable > 0)
        .then(|| format!("{} cannot be read: tollgate doctor   ", counted(board.unreadable, "row")));
    let filter = shortened(&plain(&board.filter), width / 3);
    let filter = if filter.is_empty() { String::new() } else { format!("only '{filter}', Esc shows all   ") };
    let more = if board.scan.is_some() { "   read in turn: choose by --prefix" } else { "" };
    let keys = format!("q quit  s sort  / filter  p pause  ↑↓ scroll{more}");
    fitted([Span::from(unreadable.unwrap_or_default()).yellow(), Span::from(filter), Span::from(keys).dim()], width)
}

/// Numbers from this one on are shortened.
const LONGEST: f64 = 100_000.0;

const UNITS: [(f64, &str); 6] = [(1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")];

const BARS: [(f64, &str); 9] = [
    (0.0, bar::NINE_LEVELS.empty),
    (1.0, bar::NINE_LEVELS.one_eighth),
    (2.0, bar::NINE_LEVELS.one_quarter),
    (3.0, bar::NINE_LEVELS.three_eighths),
    (4.0, bar::NINE_LEVELS.half),
    (5.0, bar::NINE_LEVELS.five_eighths),
    (6.0, bar::NINE_LEVELS.three_quarters),
    (7.0, bar::NINE_LEVELS.seven_eighths),
    (8.0, bar::NINE_LEVELS.full),
];

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::board::tests::World;
    use super::super::order::WatchOrder;
    use super::super::scan::ScanTotals;
    use super::*;

    /// The lines of a screen with these columns.
    fn lines_of(columns: u16, board: &Board) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(columns, 7)).expect("a terminal");
        terminal.draw(|frame| draw(frame, board, Duration::from_secs(2))).expect("drawn");
        let buffer = terminal.backend().buffer();
        let line = |y| (0..columns).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
        (0..7).map(line).collect()
    }

    fn lines(board: &Board) -> Vec<String> {
        lines_of(120, board)
    }

    async fn world() -> World {
        let mut world = World::new();
        world.take("user:1", "10 once", 10);
        world.take("user:2", "1000 once", 1);
        world.deny("user:1", 1110).await;
        for tokens in [32, 16, 4] {
            world.snapshot().await;
            world.pass(4);
            world.take("user:2", "1000 once", tokens);
        }
        world.deny("user:1", 30).await;
        world.snapshot().await;
        world.board.database = "sqlite:app.db".to_owned();
        world
    }

    #[tokio::test]
    async fn each_bucket_has_its_tokens_its_rate_and_a_sparkline() {
        let world = world().await;
        let lines = lines(&world.board);
        assert_eq!(lines[0], "sqlite:app.db  hottest first, every 2s");
        assert_eq!(lines[1], "2 buckets, 1 empty, 4.8 tokens granted/s, 2.5 requests denied/s");
        let words = |line: usize| lines[line].split_whitespace().collect::<Vec<_>>();
        assert_eq!(words(2), ["bucket", "quota", "tokens", "granted/s", "denied/s", "denied", "lately"]);
        assert_eq!(words(3), ["user:2", "1000", "once", "947/1000", "4.8", "0.0", "█▄▁"]);
        assert_eq!(words(4), ["user:1", "10", "once", "0/10", "0.0", "2.5", "1140"]);
        assert!(lines[6].starts_with("q quit  s sort"), "{}", lines[6]);
    }

    #[tokio::test]
    async fn last_line_shows_filter_error_and_overflow() {
        let mut world = world().await;
        let totals = Totals { buckets: 7500, empty: 3, rate: Some(12.0) };
        world.board.filter = "1".to_owned();
        let filtered = "1 of 2 buckets, 1 empty, 0.0 tokens granted/s, 2.5 requests denied/s";
        assert_eq!(lines(&world.board)[1], filtered);
        world.board.scan = Some(ScanTotals { totals, all: false });
        let shown = lines(&world.board);
        assert!(shown[1].starts_with("1 of the first 7500 buckets, 1 empty, 0.0 tokens granted/s"), "{}", shown[1]);
        assert!(shown[3].starts_with("user:1") && shown[4].is_empty(), "{shown:?}");
        let status = &shown[6];
        assert!(status.starts_with("only '1', Esc shows all   q quit"), "{status}");
        assert!(status.ends_with("read in turn: choose by --prefix"), "{status}");
        world.board.scan = Some(ScanTotals { totals, all: true });
        assert!(lines(&world.board)[1].starts_with("1 of 7500 buckets"));
        world.board.unreadable = 2;
        assert!(lines(&world.board)[6].starts_with("2 rows cannot be read: tollgate doctor   only '1'"));
        world.board.read_error = Some("it is down".to_owned());
        assert_eq!(lines(&world.board)[6], "no newer read: it is down");
        world.board.typing = true;
        assert_eq!(lines(&world.board)[6], "filter: 1▏  Enter keeps it, Esc drops it");
    }

    #[tokio::test]
    async fn screen_of_80_columns_shows_state_and_marks_cuts() {
        let mut world = world().await;
        world.board.database = "postgres://db-primary.example.internal:5432/tenants_of_production".to_owned();
        world.board.paused = true;
        world.board.filter = "1".repeat(99);
        let shown = lines_of(80, &world.board);
        assert_eq!(shown[0].chars().count(), 79);
        assert!(shown[0].starts_with("postgres://db-pr") && shown[0].contains('…'), "{}", shown[0]);
        assert!(shown[0].ends_with("  hottest first, every 2s  PAUSED"), "{}", shown[0]);
        assert!(
            shown[6].contains("1…1") && shown[6].contains("Esc shows all") && shown[6].ends_with('…'),
            "{}",
            shown[6]
        );
        assert!(lines_of(40, &world.board)[1].ends_with('…'));
    }

    #[tokio::test]
    async fn denied_key_without_bucket_is_shown_in_denied_order() {
        let mut world = world().await;
        world.deny("attacker", 5_000_000).await;
        world.snapshot().await;
        assert!(!lines(&world.board).iter().any(|line| line.starts_with("attacker")));
        world.board.order = WatchOrder::Denied;
        let shown = lines_of(80, &world.board);
        assert!(shown[3].starts_with("attacker") && shown[3].contains("no bucket"), "{}", shown[3]);
        assert!(shown[3].contains(" 5.0M"), "{}", shown[3]);
        let narrow = lines_of(40, &world.board);
        assert!(narrow[2].ends_with("denied") && narrow[3].ends_with(" 5.0M"), "{narrow:?}");
    }

    #[test]
    fn large_number_is_shortened_and_never_rounded_up() {
        for (value, shown) in [
            (0, "0"),
            (99_999, "99999"),
            (100_000, "100.0k"),
            (999_999, "999.9k"),
            (5_000_000, "5.0M"),
            (-1_250_000, "-1.2M"),
            (3_155_760_000_000_000_000, "3.1E"),
        ] {
            assert_eq!(whole(value), shown);
        }
        assert_eq!((number(0.25), number(123_456.7)), ("0.2".to_owned(), "123.4k".to_owned()));
    }

    #[tokio::test]
    async fn screen_shows_how_to_turn_on_denial_counts() {
        let mut world = World::new();
        world.take("user:1", "10 once", 10);
        world.snapshot().await;
        let shown = lines(&world.board);
        assert!(shown[1].contains(" … requests denied/s"), "{}", shown[1]);
        assert!(
            shown[5].contains("no denials counted") && shown[5].contains("LimiterBuilder::count_denials"),
            "{shown:?}"
        );
        world.deny("user:1", 1).await;
        world.snapshot().await;
        assert_eq!(lines(&world.board)[5], "");
    }

    #[tokio::test]
    async fn narrow_screen_keeps_keys_values_and_newest_sparkline() {
        let world = world().await;
        let shown = lines_of(70, &world.board);
        let words: Vec<_> = shown[3].split_whitespace().collect();
        assert_eq!(words, ["user:2", "1000", "once", "947/1000", "4.8", "0.0", "█▄▁"]);
    }

    #[tokio::test]
    async fn narrowest_screen_still_identifies_each_bucket() {
        let mut world = World::new();
        let key = "tenant:7:project:12345:user:1234567890:upload";
        world.take(key, "1000 once", 12);
        world.deny(key, 3).await;
        world.snapshot().await;
        for (columns, titles, values) in [
            (40, "tokens granted/s", "988/1000         …"),
            (60, "tokens granted/s denied/s lately", "988/1000         …        …"),
            (80, "tokens granted/s denied/s denied lately", "988/1000         …        …      3"),
        ] {
            let lines = lines_of(columns, &world.board);
            assert!(lines[2].ends_with(titles), "{columns}: {lines:#?}");
            assert!(lines[3].starts_with("tenant:7") && lines[3].ends_with(values), "{columns}: {lines:#?}");
            assert!(lines[3].contains("…0:upload") || lines[3].contains(":upload"), "{columns}: {lines:#?}");
        }
        assert!(lines_of(120, &world.board)[3].starts_with(key));
    }

    #[tokio::test]
    async fn board_without_rows_shows_a_sentence() {
        let mut world = World::new();
        world.snapshot().await;
        assert!(lines(&world.board)[2].starts_with("no buckets; make one: tollgate create"));
        world.take("user:1", "10 once", 10);
        world.snapshot().await;
        world.board.filter = "tenant".to_owned();
        assert_eq!(lines(&world.board)[2], "no key contains 'tenant'");
    }

    #[tokio::test]
    async fn scrolled_rows_are_not_shown() {
        let mut world = world().await;
        world.board.scrolled = 1;
        assert!(lines(&world.board)[3].starts_with("user:1"));
    }

    #[tokio::test]
    async fn a_small_terminal_is_no_error() {
        let world = world().await;
        for size in [(0, 0), (1, 1), (20, 2), (400, 100)] {
            let mut terminal = Terminal::new(TestBackend::new(size.0, size.1)).expect("a terminal");
            terminal.draw(|frame| draw(frame, &world.board, Duration::from_secs(2))).expect("drawn");
        }
    }
}
