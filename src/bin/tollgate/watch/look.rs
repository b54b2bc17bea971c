//! How buckets are read: in bounded pages.

use std::time::Duration;

use tokio::time::Instant;
use tollgate::{Admin, BucketLevel, Error, Filter, Key};

use super::denials::Counts;

/// The buckets at one time.
#[derive(Debug)]
pub(crate) struct Look {
    /// Since the first look.
    pub(crate) at: Duration,
    pub(crate) levels: Vec<BucketLevel>,
    /// Whether there are more than were read.
    pub(crate) more: bool,
    /// How often the keys were denied that were denied most, as far as services count that.
    pub(crate) denied: Counts,
}

pub(crate) struct Reader<S> {
    store: S,
    filter: Filter,
    prefix: Option<Key>,
    most: usize,
    began: Instant,
}

impl<S: Admin> Reader<S> {
    pub(crate) fn new(store: S, prefix: Option<Key>, most: u32) -> Self {
        let filter = prefix.iter().cloned().fold(Filter::default(), Filter::prefix);
        Self { store, filter, prefix, most: most as usize, began: Instant::now() }
    }

    /// Reads the first buckets, page by page, so that no statement is long.
    pub(crate) async fn look(&self) -> Result<Look, Error> {
        let (mut levels, mut strangers): (Vec<BucketLevel>, Vec<BucketLevel>) = Default::default();
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
        let (denied, most_denied) = self.denied().await?;
        // An attacker's key need not be among the first: these few are read one by one.
        for key in most_denied.iter().filter(|key| levels.binary_search_by(|level| level.key.cmp(key)).is_err()) {
            strangers.extend(self.store.peek(key).await?);
        }
        levels.extend(strangers);
        Ok(Look { at: self.began.elapsed(), levels, more, denied })
    }

    /// How often keys were denied, and those whose buckets are shown in any case.
    async fn denied(&self) -> Result<(Counts, Vec<Key>), Error> {
        match self.store.most_denied(COUNTED).await {
            Ok(denials) => {
                let full = denials.len() == COUNTED as usize;
                let denied: Vec<_> = denials.into_iter().map(|denials| (denials.key, denials.denied)).collect();
                let begin = denied.iter().map(|(key, _)| key).filter(|key| self.begins(key));
                let most = begin.take(MOST_DENIED).cloned().collect();
                Ok((Counts::of(denied, full).only(|key| self.begins(key)), most))
            }
            // A role that may list need not be one that may see denials.
            Err(Error::NotPermitted(_)) => Ok((Counts::not_permitted(), Vec::new())),
            Err(error) => Err(error),
        }
    }

    fn begins(&self, key: &Key) -> bool {
        self.prefix.as_ref().is_none_or(|prefix| key.as_str().starts_with(prefix.as_str()))
    }
}

const PAGE: usize = 500;
/// Of whom it is known how often they were denied.
const COUNTED: u32 = 1000;
const MOST_DENIED: usize = 20;

#[cfg(test)]
mod tests {
    use tollgate::{MemoryStore, Quota, Store};

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
            let look = Reader::new(store_of(keys).await, None, most).look().await.expect("a look");
            assert_eq!((look.levels.len(), look.more), (read, more), "{most} of {keys}");
            assert!(look.levels.is_sorted_by(|one, other| one.key < other.key));
        }
    }

    #[tokio::test]
    async fn a_prefix_chooses_what_is_read() {
        let prefix = Key::try_from("user:01").expect("a key");
        let look = Reader::new(store_of(300).await, Some(prefix), 5000).look().await.expect("a look");
        assert_eq!((look.levels.len(), look.levels[0].key.as_str()), (100, "user:0100"));
    }

    #[tokio::test]
    async fn what_is_denied_most_is_read_wherever_it_is() {
        let store = store_of(300).await;
        let key = |n| Key::try_from(format!("user:{n:04}")).expect("a key");
        let gone = Key::try_from("user:gone").expect("a key");
        store.count_denials(&[(key(1), 3), (key(250), 7), (gone, 9)]).await.expect("counted");
        let look = Reader::new(store, Key::try_from("user:").ok(), 10).look().await.expect("a look");
        let last = look.levels.last().map(|level| level.key.clone());
        assert_eq!((look.levels.len(), last, look.more), (11, Some(key(250)), true));
        assert_eq!((look.denied.get(&key(1)), look.denied.get(&key(250))), (Some(3), Some(7)));
    }

    #[tokio::test]
    async fn a_prefix_chooses_whose_denials_are_read_and_others_tell_that_they_are_counted() {
        let reader = Reader::new(store_of(1).await, Key::try_from("tenant:").ok(), 10);
        assert!(reader.look().await.expect("a look").denied.none.is_some());
        let user = Key::try_from("user:0000").expect("a key");
        reader.store.count_denials(&[(user.clone(), 3)]).await.expect("counted");
        let look = reader.look().await.expect("a look");
        assert_eq!((look.denied.get(&user), look.denied.none, look.levels.len()), (None, None, 0));
    }
}
