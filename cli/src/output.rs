//! Writes tables, lines and JSON to standard output.

use std::fmt::Write as _;
use std::io::{self, IsTerminal as _, Write as _};

use anstyle::Style;
use indicatif::{ProgressBar, ProgressStyle};
use schemars::JsonSchema;
use serde::Serialize;
use unicode_width::UnicodeWidthStr;

use crate::exit::CliError;
use crate::text::{is_unseen, plain, shortened, truncated, wrapped};

const FAINT: Style = Style::new().dimmed();

/// Prints a text. Uses colours only on a terminal, and none if `NO_COLOR` is set.
///
/// Ignores a closed pipe, as `head` leaves it: the command completes with the same exit code.
pub(crate) fn say(text: impl AsRef<str>) -> Result<(), CliError> {
    let mut out = anstream::stdout().lock();
    let written =
        out.write_all(text.as_ref().as_bytes()).and_then(|()| out.write_all(b"\n")).and_then(|()| out.flush());
    is_read(written).map(drop)
}

/// Whether the reader of the output still has its end of the pipe open.
pub(crate) fn is_read(written: io::Result<()>) -> Result<bool, CliError> {
    match written {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => {
            let hint = "write it to another file or device, one with room";
            Err(CliError::unwritable(format!("cannot write the output: {error}"), hint))
        }
    }
}

/// Prints one JSON document.
pub(crate) fn say_json(value: &impl Serialize) -> Result<(), CliError> {
    say(pretty(value))
}

/// A changed object.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "ChangeOf{T}")]
pub(crate) struct ChangeJson<T> {
    /// The object before the change. Null: there was none.
    pub(crate) before: Option<T>,
    /// The object after the change. Null: there is none any more.
    pub(crate) after: Option<T>,
}

/// Prints what a command changed as JSON, or in words.
pub(crate) fn say_change<T: Serialize>(
    as_json: bool,
    (before, after): (Option<T>, Option<T>),
    words: impl FnOnce() -> String,
) -> Result<(), CliError> {
    if as_json { say_json(&ChangeJson { before, after }) } else { say(words()) }
}

/// Formats JSON, and escapes characters that would steer a terminal, as JSON allows.
pub(crate) fn pretty(value: &impl Serialize) -> String {
    let mut json = String::new();
    let formatted = serde_json::to_string_pretty(value).expect("texts and numbers are JSON");
    for c in formatted.chars() {
        if c != '\n' && is_unseen(c) {
            for unit in c.encode_utf16(&mut [0; 2]) {
                let _ = write!(json, "\\u{unit:04x}");
            }
        } else {
            json.push(c);
        }
    }
    json
}

/// Prints a text behind a label on standard error. Breaks its lines between words if standard error is a terminal.
pub(crate) fn say_error(label: &str, style: Style, text: &str) {
    let (width, indent) = (terminal_width(io::stderr().is_terminal()), label.len() + 2);
    let lines: Vec<_> = text.trim_end().split('\n').map(|line| wrapped(&plain(line), width, indent)).collect();
    let text = lines.join(&format!("\n{:indent$}", ""));
    // Ignores an unwritable standard error: the command and its exit code do not depend on it.
    let _ = writeln!(anstream::stderr().lock(), "{style}{label}:{style:#} {text}");
}

/// Prints a note on standard error.
pub(crate) fn note(text: &str) {
    say_error("note", Style::new(), text);
}

/// Prints a line on standard error.
pub(crate) fn complain(text: &str) {
    // Ignores a failed write: standard error is closed.
    let _ = writeln!(anstream::stderr(), "tollgate: {text}");
}

/// The width of the terminal, to fit output to it. `None` if `wide` is set or standard output is not a terminal.
pub(crate) fn width_to_fit(wide: bool) -> Option<usize> {
    terminal_width(!wide && io::stdout().is_terminal())
}

fn terminal_width(is_terminal: bool) -> Option<usize> {
    let (columns, _) = ratatui::crossterm::terminal::size().ok().filter(|_| is_terminal)?;
    Some(usize::from(columns)).filter(|columns| *columns > 0)
}

/// A shorter part of a key does not identify it, and of another text says too little.
pub(crate) const MIN_KEY_WIDTH: usize = 16;

/// A table that fits the terminal. Leaves columns out and shortens texts if its lines would be too long.
pub(crate) struct Table<const N: usize> {
    columns: [Column; N],
    rows: Vec<[Cell; N]>,
    /// The headings of columns to leave out, in this order.
    drop_order: &'static [&'static str],
    /// The headings of columns to shorten before the first column, which holds the keys.
    shortened: &'static [&'static str],
}

/// The columns of successive tables with their widths, and the width that lines fit.
#[derive(Debug, Default)]
pub(crate) struct Layout {
    /// `None` for a column that is left out.
    columns: Vec<Option<usize>>,
    width: Option<usize>,
    kept: Option<&'static str>,
}

impl Layout {
    pub(crate) fn within(width: Option<usize>) -> Self {
        Self { width, ..Self::default() }
    }

    /// Keeps a column that the rows are sorted by.
    pub(crate) fn keeping(self, heading: Option<&'static str>) -> Self {
        Self { kept: heading, ..self }
    }
}

/// A heading, and on which side its cells begin.
pub(crate) enum Column {
    Left(&'static str),
    Right(&'static str),
}

/// A text and its style.
pub(crate) struct Cell(String, Style);

impl Cell {
    pub(crate) fn styled(text: impl AsRef<str>, style: Style) -> Self {
        Self(plain(text.as_ref()), style)
    }
}

impl<T: AsRef<str>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self::styled(text, Style::new())
    }
}

impl<const N: usize> Table<N> {
    pub(crate) fn new(columns: [Column; N]) -> Self {
        Self { columns, rows: Vec::new(), drop_order: &[], shortened: &[] }
    }

    /// Names the columns to leave out, in this order, while the lines do not fit.
    pub(crate) fn drops(self, headings: &'static [&'static str]) -> Self {
        Self { drop_order: headings, ..self }
    }

    /// Names the columns to shorten before the keys.
    pub(crate) fn shortens(self, headings: &'static [&'static str]) -> Self {
        Self { shortened: headings, ..self }
    }

    pub(crate) fn row(&mut self, cells: [Cell; N]) {
        self.rows.push(cells);
    }

    /// Formats the lines in full, without the end of the last one.
    pub(crate) fn render(&self) -> String {
        self.lines(&mut Layout::default())
    }

    /// Formats the lines to fit the terminal, or in full if standard output is not a terminal.
    pub(crate) fn fitted(&self) -> String {
        self.lines(&mut Layout::within(width_to_fit(false)))
    }

    /// Formats lines below those of an earlier table with the same columns. Columns become no narrower, and headings appear only
    /// in the first table.
    pub(crate) fn lines(&self, layout: &mut Layout) -> String {
        let headings: [Cell; N] = std::array::from_fn(|at| Cell::styled(self.columns[at].heading(), FAINT));
        let is_first = layout.columns.is_empty();
        let mut widths: [Option<usize>; N] = std::array::from_fn(|at| {
            let cells = self.rows.iter().map(|row| row[at].0.width()).chain([headings[at].0.width()]);
            let above = if is_first { Some(0) } else { layout.columns[at] };
            Some(cells.max()?.max(above?))
        });
        if let Some(width) = layout.width {
            if is_first {
                self.leave_out(&mut widths, width, layout.kept);
            }
            self.shorten(&mut widths, width);
        }
        layout.columns = widths.to_vec();
        let mut text = String::new();
        for row in is_first.then_some(&headings).into_iter().chain(&self.rows) {
            let mut line = String::new();
            for (at, ((Cell(cell, style), column), width)) in row.iter().zip(&self.columns).zip(widths).enumerate() {
                let Some(width) = width else { continue };
                let cell = if at == 0 { shortened(cell, width) } else { truncated(cell, width) };
                let padding = " ".repeat(width - cell.width());
                let _ = match column {
                    Column::Left(_) => write!(line, "{style}{cell}{style:#}{padding}  "),
                    Column::Right(_) => write!(line, "{padding}{style}{cell}{style:#}  "),
                };
            }
            text += line.trim_end();
            text.push('\n');
        }
        text.truncate(text.trim_end().len());
        text
    }

    /// Leaves columns out until the lines fit with the shortest texts.
    fn leave_out(&self, widths: &mut [Option<usize>; N], fit: usize, kept: Option<&str>) {
        for heading in self.drop_order.iter().filter(|heading| Some(**heading) != kept) {
            let shortest: [_; N] = std::array::from_fn(|at| {
                widths[at].map(|width| self.min_width(at).map_or(width, |min| width.min(min)))
            });
            if line_width(&shortest) <= fit {
                return;
            }
            if let Some(at) = self.place(heading) {
                widths[at] = None;
            }
        }
    }

    /// Shortens the texts until the lines fit: the keys last.
    fn shorten(&self, widths: &mut [Option<usize>; N], fit: usize) {
        for at in self.shortened.iter().filter_map(|heading| self.place(heading)).chain([0]) {
            let excess = line_width(widths).saturating_sub(fit);
            if let (Some(width), Some(min)) = (widths[at], self.min_width(at)) {
                widths[at] = Some(width.saturating_sub(excess).max(min.min(width)));
            }
        }
    }

    /// The least width of a column whose texts can be shortened.
    fn min_width(&self, at: usize) -> Option<usize> {
        (at == 0 || self.shortened.contains(&self.columns[at].heading())).then_some(MIN_KEY_WIDTH)
    }

    fn place(&self, heading: &str) -> Option<usize> {
        self.columns.iter().position(|column| column.heading() == heading)
    }
}

/// The width of a line with two spaces between its columns.
fn line_width(widths: &[Option<usize>]) -> usize {
    widths.iter().flatten().map(|width| width + 2).sum::<usize>().saturating_sub(2)
}

impl Column {
    fn heading(&self) -> &'static str {
        match self {
            Self::Left(heading) | Self::Right(heading) => heading,
        }
    }
}

/// Shows a spinner on a terminal, and nothing elsewhere.
pub(crate) fn progress(message: impl Into<String>) -> ProgressBar {
    let style = ProgressStyle::with_template("{spinner} {msg} {elapsed}").expect("a template that is tested by use");
    let bar = ProgressBar::new_spinner().with_style(style).with_message(message.into());
    // Draws at once, because the thread of the ticks may start after the work has ended.
    bar.tick();
    bar.enable_steady_tick(std::time::Duration::from_millis(100));
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_key_is_shortened_to_fit_the_terminal() {
        let mut table = Table::new([Column::Left("key"), Column::Right("available")]);
        for key in ["user:1", "tenant:7:project:12345:user:1234567890:upload"] {
            table.row([Cell::from(key), Cell::from("5")]);
        }
        let fitted = |width| table.lines(&mut Layout::within(width));
        assert!(fitted(None).contains("tenant:7:project:12345:user:1234567890:upload          5"));
        let lines = fitted(Some(40));
        assert!(lines.ends_with("\ntenant:7:proje…4567890:upload          5"), "{lines}");
        let lines = anstream::adapter::strip_str(&lines).to_string();
        assert_eq!(lines.lines().map(UnicodeWidthStr::width).collect::<Vec<_>>(), [40; 3]);
        assert!(fitted(Some(9)).ends_with("\ntenant:7…:upload          5"), "too narrow");
    }

    #[test]
    fn columns_are_left_out_in_order_to_fit_the_terminal() {
        let columns = ["key", "granted", "reason", "until"].map(Column::Left);
        let mut table = Table::new(columns).drops(&["granted", "until"]).shortens(&["reason"]);
        table.row(["user:1", "12", "a load test, ticket 7", "2026-01-31"].map(Cell::from));
        let fitted = |width, kept| {
            let lines = table.lines(&mut Layout::within(Some(width)).keeping(kept));
            let lines = anstream::adapter::strip_str(&lines).to_string();
            assert!(lines.lines().all(|line| line.width() <= width), "{lines}");
            lines.lines().nth(1).map(str::to_owned)
        };
        for (width, kept, row) in [
            (50, None, "user:1  12       a load test, ticket 7  2026-01-31"),
            (49, None, "user:1  12       a load test, ticket…  2026-01-31"),
            (41, None, "user:1  a load test, ticket 7  2026-01-31"),
            (40, Some("granted"), "user:1  12       a load test, ticket 7"),
            (29, None, "user:1  a load test, ticket 7"),
            (24, None, "user:1  a load test, ti…"),
        ] {
            assert_eq!(fitted(width, kept).as_deref(), Some(row), "{width} {kept:?}");
        }
    }

    #[test]
    fn json_escapes_invisible_characters() {
        let unseen = "\u{7}\u{85}\u{ad}\u{34f}\u{61c}\u{115f}\u{17b4}\u{180e}\u{200b}\u{2028}\u{202e}\u{2065}\u{3164}\u{fe0f}\
                      \u{feff}\u{ffa0}\u{fff9}\u{1d173}\u{e0041}\u{e0100}";
        for c in unseen.chars() {
            let key = format!("a{c}1");
            let json = pretty(&key);
            assert!(json.is_ascii() && serde_json::from_str::<String>(&json).is_ok_and(|read| read == key), "{json}");
        }
    }
}
