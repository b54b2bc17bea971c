//! How buckets are read: in bounded pages.

use std::time::Duration;

use tokio::time::Instant;
use tollgate::{Admin, BucketLevel, Error, Filter, Key};

/// The buckets at one time.
#[derive(Debug)]
pub(crate) struct Look {
    /// Since the first look.
    pub(crate) at: Duration,
    pub(crate) levels: Vec<BucketLevel>,
    /// Whether there are more than were read.
    pub(crate) more: bool,
}

pub(crate) struct Reader<S> {
    store: S,
    filter: Filter,
    most: usize,
    began: Instant,
}

impl<S: Admin> Reader<S> {
    pub(crate) fn new(store: S, filter: Filter, most: u32) -> Self {
        Self { store, filter, most: most as usize, began: Instant::now() }
    }

    /// Reads the first buckets, page by page, so that no statement is long.
    pub(crate) async fn look(&self) -> Result<Look, Error> {
        let mut levels: Vec<BucketLevel> = Vec::new();
        loop {
            // One more than is shown tells whether there are more.
            let wanted = (self.most + 1 - levels.len()).min(PAGE);
            let after: Option<Key> = levels.last().map(|level| level.key.clone());
            let page = self.store.list(&self.filter, after.as_ref(), u32::try_from(wanted).unwrap_or(u32::MAX)).await?;
            let last = page.len() < wanted;
            levels.extend(page);
            if last || levels.len() > self.most {
                break;
            }
        }
        let more = levels.len() > self.most;
        levels.truncate(self.most);
        Ok(Look { at: self.began.elapsed(), levels, more })
    }
}

const PAGE: usize = 500;

#[cfg(test)]
mod tests {
    use tollgate::{MemoryStore, Quota};

    use super::*;

    async fn store_of(keys: usize) -> MemoryStore {
        let store = MemoryStore::new();
        for n in 0..keys {
            let key = Key::try_from(format!("user:{n:04}")).expect("a key");
            store.create_bucket(&key, Quota::per_second(1).build().expect("a quota")).await.expect("made");
        }
        store
    }

    #[tokio::test]
    async fn a_look_reads_page_after_page_and_no_more_than_it_may() {
        for (keys, most, read, more) in
            [(0, 10, 0, false), (499, 5000, 499, false), (1200, 5000, 1200, false), (1200, 1200, 1200, false)]
                .into_iter()
                .chain([(1200, 1199, 1199, true), (1200, 1, 1, true), (500, 500, 500, false), (501, 500, 500, true)])
        {
            let look = Reader::new(store_of(keys).await, Filter::default(), most).look().await.expect("a look");
            assert_eq!((look.levels.len(), look.more), (read, more), "{most} of {keys}");
            assert!(look.levels.is_sorted_by(|one, other| one.key < other.key));
        }
    }

    #[tokio::test]
    async fn a_prefix_chooses_what_is_read() {
        let filter = Filter::default().prefix(Key::try_from("user:01").expect("a key"));
        let look = Reader::new(store_of(300).await, filter, 5000).look().await.expect("a look");
        assert_eq!((look.levels.len(), look.levels[0].key.as_str()), (100, "user:0100"));
    }
}
