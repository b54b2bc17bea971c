//! Output for people and scripts: tables, lines and JSON on standard output.

use std::cell;
use std::fmt::{Display, Write as _};
use std::io::{self, Write as _};

use anstyle::{AnsiColor, Style};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;
use tollgate::admin::Page;
use unicode_width::UnicodeWidthStr;

use crate::exit::CliError;

pub(crate) const GREEN: Style = Style::new().fg_color(Some(anstyle::Color::Ansi(AnsiColor::Green)));
pub(crate) const YELLOW: Style = Style::new().fg_color(Some(anstyle::Color::Ansi(AnsiColor::Yellow)));
pub(crate) const RED: Style = Style::new().fg_color(Some(anstyle::Color::Ansi(AnsiColor::Red)));
const FAINT: Style = Style::new().dimmed();

/// Prints a text. Uses colours only on a terminal, and none if `NO_COLOR` is set.
///
/// A reader that closes the pipe early, such as `head`, does not change the exit code.
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
        Err(error) => Err(CliError::unwritable(format!("cannot write the output: {error}"), "")),
    }
}

/// Prints one JSON document.
pub(crate) fn say_json(value: &Value) -> Result<(), CliError> {
    say(pretty(value))
}

/// JSON with escapes for characters that would steer a terminal.
pub(crate) fn pretty(value: &Value) -> String {
    let mut json = String::new();
    for c in format!("{value:#}").chars() {
        if c != '\n' && is_unseen(c) {
            let _ = write!(json, "\\u{:04x}", u32::from(c));
        } else {
            json.push(c);
        }
    }
    json
}

/// Escapes control characters in foreign text such as keys, so that the text cannot steer the terminal.
pub(crate) fn plain(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if is_unseen(c) { shown.extend(c.escape_default()) } else { shown.push(c) }
    }
    shown
}

/// Characters that steer a terminal, reorder other characters or are invisible.
fn is_unseen(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

/// Like [`plain`], but keeps line breaks.
pub(crate) fn lines(text: &str) -> String {
    text.trim_end().split('\n').map(plain).collect::<Vec<_>>().join("\n      ")
}

/// A number with its noun: `1 row`, `2 rows`.
pub(crate) fn counted<N: Copy + Display + PartialEq + From<u8>>(number: N, one: &str) -> String {
    if number == N::from(1) { format!("1 {one}") } else { format!("{number} {one}s") }
}

/// The number of rows that a command could not read and skipped.
#[derive(Debug, Default)]
pub(crate) struct Skipped(cell::Cell<u64>);

impl Skipped {
    /// The rows of a page. Counts the skipped rows.
    pub(crate) fn rows<T>(&self, page: Page<T>) -> Vec<T> {
        self.0.set(self.0.get() + page.unreadable());
        page.into_vec()
    }

    /// Returns the count, and resets it.
    pub(crate) fn take(&self) -> u64 {
        self.0.take()
    }

    /// Warns on standard error if rows were skipped.
    pub(crate) fn warn(&self) {
        warn_unreadable(self.take());
    }
}

/// Warns on standard error if rows cannot be read.
pub(crate) fn warn_unreadable(rows: u64) {
    if rows > 0 {
        let (many, are) = (counted(rows, "row"), if rows == 1 { "is" } else { "are" });
        let warning = format!("{YELLOW}warning:{YELLOW:#} {many} cannot be read and {are} not listed");
        // Ignores a failed write: a warning must not stop the command.
        let _ = writeln!(anstream::stderr().lock(), "{warning}\nhint: {UNREADABLE_ROWS}");
    }
}

/// The hint for rows that cannot be read.
pub(crate) const UNREADABLE_ROWS: &str = "run `tollgate doctor`: it names the tables that hold such rows";

/// Quotes a word for a shell.
pub(crate) fn quoted(word: &str) -> String {
    let safe = |c: char| c.is_ascii_alphanumeric() || "_-./:@%+=,".contains(c);
    if !word.is_empty() && word.chars().all(safe) {
        word.to_owned()
    } else if word.chars().any(is_unseen) {
        escaped(word)
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// Quotes text with invisible characters for bash, zsh and ksh. Writes bytes as three octal digits, so that a following digit is
/// not read as part of them.
fn escaped(word: &str) -> String {
    let mut text = "$'".to_owned();
    for c in word.chars() {
        match c {
            '\n' => text.push_str(r"\n"),
            '\t' => text.push_str(r"\t"),
            '\'' | '\\' => text.extend(['\\', c]),
            c if is_unseen(c) => {
                for byte in c.encode_utf8(&mut [0; 4]).bytes() {
                    let _ = write!(text, r"\{byte:03o}");
                }
            }
            c => text.push(c),
        }
    }
    text + "'"
}

/// Quotes the last argument of a command, so that a shell and clap do not read it as an option.
pub(crate) fn operand(word: &str) -> String {
    let dashes = if word.starts_with('-') { "-- " } else { "" };
    format!("{dashes}{}", quoted(word))
}

/// A table with columns as wide as their widest cell.
pub(crate) struct Table<const N: usize> {
    columns: [Column; N],
    rows: Vec<[Cell; N]>,
}

/// A heading, and the alignment of its cells.
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
        Self { columns, rows: Vec::new() }
    }

    pub(crate) fn row(&mut self, cells: [Cell; N]) {
        self.rows.push(cells);
    }

    /// The lines, without a final line break.
    pub(crate) fn render(&self) -> String {
        self.lines(&mut Vec::new())
    }

    /// The lines below others of the same columns, which were so wide: no narrower, and without the headings again. Without
    /// widths they are the first.
    pub(crate) fn lines(&self, above: &mut Vec<usize>) -> String {
        let headings: [Cell; N] = std::array::from_fn(|at| Cell::styled(self.columns[at].heading(), FAINT));
        let widths: [usize; N] = std::array::from_fn(|at| {
            let cells = self.rows.iter().map(|row| row[at].0.width());
            cells.chain([headings[at].0.width()]).chain(above.get(at).copied()).max().unwrap_or(0)
        });
        let headings = above.is_empty().then_some(&headings);
        *above = widths.to_vec();
        let mut text = String::new();
        for row in headings.into_iter().chain(&self.rows) {
            let mut line = String::new();
            for ((Cell(cell, style), column), width) in row.iter().zip(&self.columns).zip(widths) {
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
