//! What a store answers page by page.

use tollgate::Error;

/// All of it: each page is what comes after the last one of the page before.
pub(crate) async fn every<T>(page: impl AsyncFn(Option<&T>) -> Result<Vec<T>, Error>) -> anyhow::Result<Vec<T>> {
    let mut all = Vec::new();
    loop {
        let more = page(all.last()).await?;
        let is_last = more.len() < PAGE as usize;
        all.extend(more);
        if is_last {
            return Ok(all);
        }
    }
}

/// How many are asked for at once.
pub(crate) const PAGE: u32 = 1000;
