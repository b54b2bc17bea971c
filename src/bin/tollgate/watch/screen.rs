//! How the board looks.

use std::time::Duration;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Style, Stylize};
use ratatui::symbols::bar;
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Cell, Row as TableRow, Table};

use super::board::{Board, PAST, Row};
use crate::output::plain;

pub(crate) fn draw(frame: &mut Frame<'_>, board: &Board, every: Duration) {
    let [above, middle, below] =
        Layout::vertical([Constraint::Length(1), Constraint::Fill(1), Constraint::Length(1)]).areas(frame.area());
    frame.render_widget(summary(board, every), above);
    frame.render_widget(table(board, middle.height), middle);
    frame.render_widget(status(board), below);
}

fn summary(board: &Board, every: Duration) -> Line<'static> {
    let first = if board.more { "the first " } else { "" };
    let rate = board.rate().map_or_else(|| "…".to_owned(), |rate| format!("{rate:.1}"));
    let figures = format!(
        "{first}{} buckets, {} empty, {rate} tokens granted/s, {}, every {}",
        board.buckets(),
        board.empty(),
        board.order.name(),
        humantime::format_duration(every)
    );
    let state = if board.paused { " PAUSED " } else { "" };
    Line::from(vec![Span::raw(figures), Span::raw(" "), Span::from(state).reversed()])
}

fn table(board: &Board, height: u16) -> Table<'static> {
    let titles = ["bucket", "quota", "tokens", "granted/s", "denied", "lately"].map(|title| Cell::from(title.bold()));
    let rows = board.visible().into_iter().skip(board.scrolled).take(height.into()).map(row);
    let widths = [
        Constraint::Fill(1),
        Constraint::Length(24),
        Constraint::Length(15),
        Constraint::Length(11),
        Constraint::Length(10),
        Constraint::Length(u16::try_from(PAST).unwrap_or(u16::MAX)),
    ];
    Table::new(rows, widths).header(TableRow::new(titles))
}

fn row(row: &Row) -> TableRow<'static> {
    let level = &row.level;
    let color = match row.part_left() {
        _ if level.available < 1 => Color::Red,
        part if part < 0.2 => Color::Yellow,
        _ => Color::Reset,
    };
    let tokens = format!("{}/{}", level.available, level.quota.capacity());
    let rate = row.rate.map_or_else(|| "…".to_owned(), |rate| format!("{rate:.1}"));
    TableRow::new([
        Cell::from(plain(level.key.as_str())),
        Cell::from(level.quota.to_string()),
        Cell::from(Text::from(tokens).style(Style::new().fg(color))),
        Cell::from(rate),
        Cell::from(row.denied.map_or_else(String::new, |denied| denied.to_string())),
        Cell::from(sparkline(row).cyan()),
    ])
}

/// Its rates until now, as parts of the highest of them.
fn sparkline(row: &Row) -> String {
    let highest = row.past.iter().copied().fold(0.0, f64::max);
    row.past
        .iter()
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
    let more = if board.more { "   there are more: choose by --prefix" } else { "" };
    Line::from(format!("q quit  s sort  / filter  p pause  ↑↓ scroll{filter}{more}")).dim()
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
    use super::*;

    /// What a screen of 120 columns shows, line by line.
    fn lines(board: &Board) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(120, 6)).expect("a terminal");
        terminal.draw(|frame| draw(frame, board, Duration::from_secs(2))).expect("drawn");
        let buffer = terminal.backend().buffer();
        let line = |y| (0..120).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
        (0..6).map(line).collect()
    }

    async fn world() -> World {
        let mut world = World::new();
        world.take("user:1", "10 once", 10);
        world.take("user:2", "1000 once", 1);
        for tokens in [8, 4, 1] {
            world.look().await;
            world.pass(1);
            world.take("user:2", "1000 once", tokens);
        }
        world.deny("user:1", 1234).await;
        world.look().await;
        world
    }

    #[tokio::test]
    async fn each_bucket_has_its_tokens_its_rate_and_a_sparkline() {
        let world = world().await;
        let lines = lines(&world.board);
        assert_eq!(lines[0], "2 buckets, 1 empty, 1.0 tokens granted/s, hottest first, every 2s");
        let words = |line: usize| lines[line].split_whitespace().collect::<Vec<_>>();
        assert_eq!(words(1), ["bucket", "quota", "tokens", "granted/s", "denied", "lately"]);
        assert_eq!(words(2), ["user:2", "1000", "once", "986/1000", "1.0", "█▄▁"]);
        assert_eq!(words(3), ["user:1", "10", "once", "0/10", "0.0", "1234"]);
        assert!(lines[5].starts_with("q quit  s sort"), "{}", lines[5]);
    }

    #[tokio::test]
    async fn the_last_line_shows_the_filter_the_trouble_and_that_there_are_more() {
        let mut world = world().await;
        world.board.more = true;
        world.board.filter = "1".to_owned();
        world.board.paused = true;
        let shown = lines(&world.board);
        assert!(shown[0].starts_with("the first 2 buckets") && shown[0].ends_with("PAUSED"), "{}", shown[0]);
        assert!(shown[2].starts_with("user:1") && shown[3].is_empty(), "{shown:?}");
        assert!(shown[5].ends_with("only '1'   there are more: choose by --prefix"), "{}", shown[5]);
        world.board.trouble = Some("it is down".to_owned());
        assert_eq!(lines(&world.board)[5], "no newer look: it is down");
        world.board.typing = true;
        assert_eq!(lines(&world.board)[5], "filter: 1▏  Enter keeps it, Esc drops it");
    }

    #[tokio::test]
    async fn what_is_scrolled_past_is_not_shown() {
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
