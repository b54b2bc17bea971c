use std::io::Write;

use super::level::Level;
use crate::exit::CliError;
use crate::output::{Layout, is_read, pretty};

/// Writes a list part by part, so that a large one is neither kept nor delayed.
pub(super) struct Writer<W> {
    out: W,
    as_json: bool,
    has_begun: bool,
    layout: Layout,
}

impl<W: Write> Writer<W> {
    /// Writes JSON, or a table.
    pub(super) fn new(out: W, as_json: bool, layout: Layout) -> Self {
        Self { out, as_json, has_begun: false, layout }
    }

    /// Writes the next of them, and says whether anybody reads on.
    pub(super) fn write<L: Level>(&mut self, levels: &[L]) -> Result<bool, CliError> {
        if levels.is_empty() {
            return Ok(true);
        }
        let text = if self.as_json {
            let mut text = String::new();
            for level in levels {
                text += if std::mem::replace(&mut self.has_begun, true) { ",\n  " } else { "[\n  " };
                text += &pretty(&level.json()).replace('\n', "\n  ");
            }
            text
        } else {
            self.has_begun = true;
            L::lines(levels, &mut self.layout) + "\n"
        };
        self.put(&text)
    }

    /// Writes what comes after the last one, or `none` instead of any.
    pub(super) fn end(mut self, none: &str) -> Result<(), CliError> {
        match (self.as_json, self.has_begun) {
            (true, true) => self.put("\n]\n"),
            (true, false) => self.put("[]\n"),
            (false, true) => Ok(true),
            (false, false) => self.put(&format!("{none}\n")),
        }
        .map(drop)
    }

    fn put(&mut self, text: &str) -> Result<bool, CliError> {
        is_read(self.out.write_all(text.as_bytes()).and_then(|()| self.out.flush()))
    }
}
