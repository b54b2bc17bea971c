//! Paged reads.

use std::sync::atomic::{AtomicU64, Ordering};

use anstyle::Style;
use tollgate::{Error, admin::Page};

use crate::exit::UNREADABLE_ROWS;
use crate::output::say_error;
use crate::text::{YELLOW, counted};

/// Reads all pages, each after the last row of the previous page. Skips unreadable rows, and warns about them.
pub(crate) async fn read_all<T>(page: impl AsyncFn(Option<&T>) -> Result<Page<T>, Error>) -> anyhow::Result<Vec<T>> {
    let (mut all, skipped) = (Vec::new(), Skipped::default());
    loop {
        let next = skipped.rows(page(all.last()).await?);
        let is_last = next.len() < PAGE as usize;
        all.extend(next);
        if is_last {
            skipped.warn();
            return Ok(all);
        }
    }
}

/// Returns `None` for a row that cannot be decoded, so that a command can still replace it.
pub(crate) fn readable<T>(read: Result<T, Error>) -> Result<Option<T>, Error> {
    match read {
        Err(Error::Unreadable { .. }) => Ok(None),
        read => read.map(Some),
    }
}

/// The number of rows per page.
pub(crate) const PAGE: u32 = 1000;

/// The number of rows that a command could not read and skipped.
#[derive(Debug, Default)]
pub(crate) struct Skipped(AtomicU64);

impl Skipped {
    /// The rows of a page. Counts the skipped rows.
    pub(crate) fn rows<T>(&self, page: Page<T>) -> Vec<T> {
        self.0.fetch_add(page.unreadable(), Ordering::Relaxed);
        page.into_vec()
    }

    /// Returns the count, and resets it.
    pub(crate) fn take(&self) -> u64 {
        self.0.swap(0, Ordering::Relaxed)
    }

    /// Warns on standard error if rows were skipped.
    pub(crate) fn warn(&self) {
        warn_unreadable(self.take());
    }
}

/// Warns on standard error if rows cannot be read.
pub(crate) fn warn_unreadable(rows: u64) {
    if rows > 0 {
        let (number, are) = (counted(rows, "row"), if rows == 1 { "is" } else { "are" });
        say_error("warning", YELLOW, &format!("{number} cannot be read and {are} not listed"));
        say_error("hint", Style::new(), UNREADABLE_ROWS);
    }
}
