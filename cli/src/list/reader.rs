use indicatif::ProgressBar;
use tollgate::{Error, Key};

use super::level::Level;
use crate::output::progress;
use crate::paging::PAGE;

/// Whether one is asked for.
pub(super) type Admits<'a, L> = Box<dyn Fn(&L) -> bool + 'a>;

/// Reads what is listed in the order of the keys, page by page, and leaves out what is not asked for.
pub(super) struct PageReader<'a, L, P> {
    page: P,
    /// Those that are asked for; none: all are.
    admits: Option<Admits<'a, L>>,
    last: Option<Key>,
    read: usize,
    is_done: bool,
    bar: ProgressBar,
}

impl<'a, L: Level, P: AsyncFn(Option<&Key>, u32) -> Result<Vec<L>, Error>> PageReader<'a, L, P> {
    pub(super) fn new(page: P, admits: Option<Admits<'a, L>>) -> Self {
        Self { page, admits, last: None, read: 0, is_done: false, bar: progress("reading") }
    }

    /// Reads the next page, and returns the requested ones of it, which can be none. `None`: there are no more pages. Reads at most
    /// `wanted` without a filter.
    pub(super) async fn next(&mut self, wanted: usize) -> Result<Option<Vec<L>>, Error> {
        if self.is_done {
            return Ok(None);
        }
        let wanted = if self.admits.is_some() { PAGE } else { u32::try_from(wanted).unwrap_or(PAGE).min(PAGE) };
        let mut page = (self.page)(self.last.as_ref(), wanted).await?;
        self.is_done = page.len() < wanted as usize;
        self.read += page.len();
        self.bar.set_message(format!("{} {}", self.read, L::NAMES[usize::from(self.read != 1)]));
        self.last = page.last().map(|level| level.key().clone());
        if let Some(admits) = &self.admits {
            page.retain(admits);
        }
        Ok(Some(page))
    }
}

impl<L, P> PageReader<'_, L, P> {
    /// Does something while nothing is drawn where it might write, nor after it if nothing more is read.
    pub(super) fn aside<T>(&self, is_last: bool, act: impl FnOnce() -> T) -> T {
        if is_last || self.is_done {
            self.bar.finish_and_clear();
            return act();
        }
        self.bar.suspend(act)
    }
}

impl<L, P> Drop for PageReader<'_, L, P> {
    fn drop(&mut self) {
        if !self.bar.is_finished() {
            self.bar.finish_and_clear();
        }
    }
}
