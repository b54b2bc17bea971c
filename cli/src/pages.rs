//! Paged reads.

use tollgate::{Error, admin::Page};

use crate::output::Skipped;

/// Reads all pages, each after the last row of the previous page. Skips unreadable rows, and warns about them.
pub(crate) async fn every<T>(page: impl AsyncFn(Option<&T>) -> Result<Page<T>, Error>) -> anyhow::Result<Vec<T>> {
    let (mut all, skipped) = (Vec::new(), Skipped::default());
    loop {
        let more = skipped.rows(page(all.last()).await?);
        let is_last = more.len() < PAGE as usize;
        all.extend(more);
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
