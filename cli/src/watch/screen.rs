//! How the board looks.

use std::time::Duration;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize};
use ratatui::symbols::bar;
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Cell, Row as TableRow, Table};
use unicode_width::UnicodeWidthStr;

use super::board::{Board, BoardRow};
use super::columns::{Figure, ScreenColumns, shortened};
use crate::output::{counted, plain};
use crate::times;

pub(crate) fn draw(frame: &mut Frame<'_>, board: &Board, every: Duration) {
    let note = board.denials.now.none;
    let heights =
        [Constraint::Length(1), Constraint::Fill(1), Constraint::Length(note.map_or(0, |_| 1)), Constraint::Length(1)];
    let [above, middle, beneath, below] = Layout::vertical(heights).areas(frame.area());
    frame.render_widget(summary(board, every), above);
    frame.render_widget(table(board, middle), middle);
    frame.render_widget(Line::from(note.unwrap_or_default()).yellow(), beneath);
    frame.render_widget(status(board), below);
}

fn summary(board: &Board, every: Duration) -> Line<'static> {
    let first = if board.toured.is_some_and(|toured| !toured.all) { "the first " } else { "" };
    let totals = board.totals();
    let (granted, denied) = (rate(totals.rate), rate(board.denials.all()));
    let figures = format!(
        "{first}{}, {} empty, {granted} tokens granted/s, {denied} requests denied/s, {}, every {}",
        counted(totals.buckets, "bucket"),
        totals.empty,
        board.order.name(),
        times::exact(every)
    );
    let state = if board.paused { " PAUSED " } else { "" };
    Line::from(vec![Span::raw(figures), Span::raw(" "), Span::from(state).reversed()])
}

/// Until there is one, or where there is none, dots.
fn rate(rate: Option<f64>) -> String {
    rate.map_or_else(|| "…".to_owned(), |rate| format!("{rate:.1}"))
}

/// What does not fit gives way to the keys: first the sparklines.
fn table(board: &Board, area: Rect) -> Table<'static> {
    let rows: Vec<&BoardRow> = board.visible().into_iter().skip(board.scrolled).take(area.height.into()).collect();
    let longest = rows.iter().map(|row| plain(row.level.key.as_str()).width()).max().unwrap_or(0);
    let columns = ScreenColumns::within(area.width.into(), longest);
    let rows: Vec<_> = rows.into_iter().map(|shown| row(shown, &columns)).collect();
    let widths = columns.widths().map(|width| Constraint::Length(u16::try_from(width).unwrap_or(u16::MAX)));
    let titles = columns.titles().map(|title| Cell::from(title.bold()));
    Table::new(rows, widths).header(TableRow::new(titles))
}

fn row(row: &BoardRow, columns: &ScreenColumns) -> TableRow<'static> {
    let level = &row.level;
    let color = match row.part_left() {
        _ if level.available < 1 => Color::Red,
        part if part < 0.2 => Color::Yellow,
        _ => Color::Reset,
    };
    let key = Cell::from(shortened(&plain(level.key.as_str()), columns.key));
    let figures = columns.figures.iter().map(|figure| match figure {
        Figure::Quota => Cell::from(level.quota.to_string()),
        Figure::Tokens => {
            let tokens = format!("{}/{}", level.available, level.quota.capacity());
            Cell::from(Text::from(tokens).style(Style::new().fg(color)))
        }
        Figure::Granted => Cell::from(rate(row.rate)),
        Figure::DeniedRate => Cell::from(rate(row.denied_rate)),
        Figure::Denied => Cell::from(row.denied.map_or_else(String::new, |denied| denied.to_string())),
    });
    let lately = (columns.lately > 0).then(|| Cell::from(sparkline(row, columns.lately).cyan()));
    TableRow::new(std::iter::once(key).chain(figures).chain(lately))
}

/// Its last rates, as parts of the highest of all.
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

/// What keys do, what is typed, or what is wrong.
fn status(board: &Board) -> Line<'static> {
    if board.typing {
        return Line::from(format!("filter: {}▏  Enter keeps it, Esc drops it", board.filter));
    }
    if let Some(trouble) = &board.trouble {
        return Line::from(format!("no newer look: {trouble}")).red();
    }
    let filter = if board.filter.is_empty() { String::new() } else { format!("   only '{}'", board.filter) };
    let more = if board.toured.is_some() { "   read in turn: choose by --prefix" } else { "" };
    let keys = Span::from(format!("q quit  s sort  / filter  p pause  ↑↓ scroll{filter}{more}")).dim();
    let unreadable = (board.unreadable > 0).then(|| {
        Span::from(format!("{} cannot be read: tollgate doctor   ", counted(board.unreadable, "row"))).yellow()
    });
    unreadable.into_iter().chain([keys]).collect()
}

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
    use super::super::tour::{ScanTotals, Totals};
    use super::*;

    /// What a screen of 120 columns shows, line by line.
    fn lines(board: &Board) -> Vec<String> {
        lines_of(120, board)
    }

    fn lines_of(columns: u16, board: &Board) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(columns, 6)).expect("a terminal");
        terminal.draw(|frame| draw(frame, board, Duration::from_secs(2))).expect("drawn");
        let buffer = terminal.backend().buffer();
        let line = |y| (0..columns).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
        (0..6).map(line).collect()
    }

    async fn world() -> World {
        let mut world = World::new();
        world.take("user:1", "10 once", 10);
        world.take("user:2", "1000 once", 1);
        world.deny("user:1", 1110).await;
        for tokens in [32, 16, 4] {
            world.look().await;
            world.pass(4);
            world.take("user:2", "1000 once", tokens);
        }
        world.deny("user:1", 30).await;
        world.look().await;
        world
    }

    #[tokio::test]
    async fn each_bucket_has_its_tokens_its_rate_and_a_sparkline() {
        let world = world().await;
        let lines = lines(&world.board);
        assert_eq!(
            lines[0],
            "2 buckets, 1 empty, 1.0 tokens granted/s, 2.5 requests denied/s, hottest first, every 2s"
        );
        let words = |line: usize| lines[line].split_whitespace().collect::<Vec<_>>();
        assert_eq!(words(1), ["bucket", "quota", "tokens", "granted/s", "denied/s", "denied", "lately"]);
        assert_eq!(words(2), ["user:2", "1000", "once", "947/1000", "1.0", "0.0", "█▄▁"]);
        assert_eq!(words(3), ["user:1", "10", "once", "0/10", "0.0", "2.5", "1140"]);
        assert!(lines[5].starts_with("q quit  s sort"), "{}", lines[5]);
    }

    #[tokio::test]
    async fn last_line_shows_filter_error_and_overflow() {
        let mut world = world().await;
        let totals = Totals { buckets: 7500, empty: 3, rate: Some(12.0) };
        world.board.toured = Some(ScanTotals { totals, all: false });
        world.board.filter = "1".to_owned();
        world.board.paused = true;
        let shown = lines(&world.board);
        let figures = "the first 7500 buckets, 3 empty, 12.0 tokens granted/s";
        assert!(shown[0].starts_with(figures) && shown[0].ends_with("PAUSED"), "{}", shown[0]);
        assert!(shown[2].starts_with("user:1") && shown[3].is_empty(), "{shown:?}");
        assert!(shown[5].ends_with("only '1'   read in turn: choose by --prefix"), "{}", shown[5]);
        world.board.toured = Some(ScanTotals { totals, all: true });
        assert!(lines(&world.board)[0].starts_with("7500 buckets"));
        world.board.unreadable = 2;
        assert!(lines(&world.board)[5].starts_with("2 rows cannot be read: tollgate doctor   q quit"));
        world.board.trouble = Some("it is down".to_owned());
        assert_eq!(lines(&world.board)[5], "no newer look: it is down");
        world.board.typing = true;
        assert_eq!(lines(&world.board)[5], "filter: 1▏  Enter keeps it, Esc drops it");
    }

    #[tokio::test]
    async fn screen_shows_how_to_turn_on_denial_counts() {
        let mut world = World::new();
        world.take("user:1", "10 once", 10);
        world.look().await;
        let shown = lines(&world.board);
        assert!(shown[0].contains(" … requests denied/s"), "{}", shown[0]);
        assert!(
            shown[4].contains("no denials counted") && shown[4].contains("LimiterBuilder::count_denials"),
            "{shown:?}"
        );
        world.deny("user:1", 1).await;
        world.look().await;
        assert_eq!(lines(&world.board)[4], "");
    }

    #[tokio::test]
    async fn narrow_screen_keeps_keys_values_and_newest_sparkline() {
        let world = world().await;
        let mut terminal = Terminal::new(TestBackend::new(83, 6)).expect("a terminal");
        terminal.draw(|frame| draw(frame, &world.board, Duration::from_secs(2))).expect("drawn");
        let buffer = terminal.backend().buffer();
        let line: String = (0..83).map(|x| buffer[(x, 2)].symbol()).collect();
        assert_eq!(
            line.split_whitespace().collect::<Vec<_>>(),
            ["user:2", "1000", "once", "947/1000", "1.0", "0.0", "█▄▁"]
        );
        assert!(line.ends_with("█▄▁    "), "{line}");
    }

    #[tokio::test]
    async fn narrowest_screen_still_identifies_each_bucket() {
        let mut world = World::new();
        let key = "tenant:7:project:12345:user:1234567890:upload";
        world.take(key, "1000 once", 12);
        world.deny(key, 3).await;
        world.look().await;
        for (columns, titles, shown) in [
            (40, "bucket             tokens      granted/s", "tenant:7:…0:upload 988/1000    …"),
            (60, "bucket              quota              tokens      granted/s", "tenant:7:…90:upload"),
            (
                80,
                "bucket                quota              tokens      granted/s denied/s denied",
                "tenant:7:p…890:upload 1000 once          988/1000    …         …        3",
            ),
            (
                120,
                "bucket",
                "tenant:7:project:12345:user:1234567890:upload 1000 once          988/1000    …         …        3",
            ),
        ] {
            let lines = lines_of(columns, &world.board);
            assert!(lines[1].starts_with(titles) && lines[2].starts_with(shown), "{columns}: {lines:#?}");
        }
    }

    #[tokio::test]
    async fn scrolled_rows_are_not_shown() {
        let mut world = world().await;
        world.board.scrolled = 1;
        assert!(lines(&world.board)[2].starts_with("user:1"));
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
