//! How buckets are read: in bounded pages.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;
use tollgate::{
    Admin, Error, Key,
    admin::{BucketLevel, Filter},
};

use super::board::{BoardRow, MAX_ROWS};
use super::denials::DenialCounts;
use super::order::WatchOrder;
use super::tour::{FullScan, ScanTotals, Totals};
use crate::output::Skipped;

/// The buckets at one time.
#[derive(Debug)]
pub(crate) struct Snapshot {
    /// Time since the reader began.
    pub(crate) at: Duration,
    pub(crate) levels: Vec<BucketLevel>,
    /// Denied keys that have no bucket.
    pub(crate) bucketless: Vec<Key>,
    /// Totals of all buckets, if there are more than `--limit`.
    pub(crate) toured: Option<ScanTotals>,
    /// How often the keys were denied that were denied most, as far as services count that.
    pub(crate) denied: DenialCounts,
    /// How many rows of the part that was new could not be read.
    pub(crate) unreadable: u64,
}

pub(crate) struct BoardReader<S> {
    store: S,
    filter: Filter,
    prefix: Option<Key>,
    most: usize,
    began: Instant,
    tour: Option<FullScan>,
    skipped: Skipped,
}

impl<S: Admin> BoardReader<S> {
    pub(crate) fn new(store: S, prefix: Option<Key>, most: u32) -> Self {
        let filter = prefix.iter().cloned().fold(Filter::default(), Filter::prefix);
        Self {
            store,
            filter,
            prefix,
            most: most as usize,
            began: Instant::now(),
            tour: None,
            skipped: Skipped::default(),
        }
    }

    /// Reads all buckets if they are at most `--limit`. Otherwise reads the next part of them, the last part again, and the wanted
    /// keys. Reads in pages, so that each statement is short.
    pub(crate) async fn look(&mut self, wanted: &[Key]) -> Result<Snapshot, Error> {
        let half = self.most.div_ceil(2);
        let (again, next, mut few) = match &self.tour {
            // One more than may be read tells whether there are more.
            None => (Vec::new(), self.read(None, None, self.most + 1).await?, Vec::new()),
            Some(tour) => {
                let (after, end) = tour.again();
                // Some may have come since.
                let again = self.read(after, end, half + half.min(PAGE)).await?;
                let few = self.read(None, None, MAX_ROWS).await?;
                // They were counted when they were new.
                self.skipped.take();
                (again, self.read(tour.next(), None, half).await?, few)
            }
        };
        let at = self.began.elapsed();
        let (denied, most_denied) = self.denied().await?;
        let (mut levels, mut bucketless) = (BTreeMap::<Key, BucketLevel>::new(), Vec::new());
        let read = few.drain(..).chain(again.iter().cloned()).chain(next.iter().take(self.most).cloned());
        levels.extend(read.map(|level| (level.key().clone(), level)));
        // Reads these few one by one, because the pages need not have an attacker's key.
        let wanted = if self.tour.is_some() { wanted } else { &[] };
        for key in most_denied.iter().chain(wanted) {
            if levels.contains_key(key) {
                continue;
            }
            match self.store.peek(key).await {
                Ok(Some(level)) => drop(levels.insert(key.clone(), level)),
                Ok(None) => bucketless.push(key.clone()),
                // It was skipped, and counted, where pages were read.
                Err(Error::Unreadable { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        self.tour = match self.tour.take() {
            None => (next.len() > self.most).then(|| FullScan::begin(&next[..half], at)),
            Some(mut tour) => {
                let through = tour.step(&again, &next, next.len() < half, at);
                // Reads all buckets from now on if they have become few.
                through.is_none_or(|buckets| buckets > self.most).then_some(tour)
            }
        };
        let toured = self.tour.as_ref().map(FullScan::toured);
        bucketless.retain(|key| denied.get(key).is_some());
        let (levels, unreadable) = (levels.into_values().collect(), self.skipped.take());
        Ok(Snapshot { at, levels, bucketless, toured, denied, unreadable })
    }

    /// Reads every bucket once, page by page, tells how many it has read, and keeps no more than it may: those that come first.
    pub(crate) async fn survey(&self, order: WatchOrder, told: impl Fn(usize)) -> Result<Snapshot, Error> {
        let (denied, most_denied) = self.denied().await?;
        let mut bucketless: BTreeSet<Key> = most_denied.into_iter().collect();
        let (mut totals, mut first, mut after) = (Totals::default(), Vec::new(), None::<Key>);
        loop {
            let page = self.read(after.as_ref(), None, PAGE).await?;
            totals.add(&page);
            told(totals.buckets);
            after = page.last().map(|level| level.key().clone());
            let is_last = page.len() < PAGE;
            for level in page {
                bucketless.remove(level.key());
                first.push(BoardRow::new(level.key().clone(), denied.get(level.key()), Some(level)));
            }
            if is_last && order == WatchOrder::Denied {
                let keys = std::mem::take(&mut bucketless).into_iter();
                first.extend(
                    keys.map(|key| (denied.get(&key), key)).map(|(denied, key)| BoardRow::new(key, denied, None)),
                );
            }
            if is_last || first.len() > 2 * self.most {
                first.sort_by(|one: &BoardRow, other| order.compare(one, other));
                first.truncate(self.most);
            }
            if is_last {
                break;
            }
        }
        let toured = (totals.buckets > self.most).then_some(ScanTotals { totals, all: true });
        let (with, without): (Vec<_>, Vec<_>) = first.into_iter().partition(|row| row.level.is_some());
        let levels = with.into_iter().filter_map(|row| row.level).collect();
        let bucketless = without.into_iter().map(|row| row.key).collect();
        let (at, unreadable) = (self.began.elapsed(), self.skipped.take());
        Ok(Snapshot { at, levels, bucketless, toured, denied, unreadable })
    }

    /// Those after a key, up to another, page by page, and no more than so many.
    async fn read(&self, after: Option<&Key>, end: Option<&Key>, most: usize) -> Result<Vec<BucketLevel>, Error> {
        let mut levels: Vec<BucketLevel> = Vec::new();
        loop {
            let wanted = (most - levels.len()).min(PAGE);
            let after = levels.last().map(|level| level.key().clone()).or_else(|| after.cloned());
            let limit = u32::try_from(wanted).unwrap_or(u32::MAX);
            let page = self.skipped.rows(self.store.list(&self.filter, after.as_ref(), limit).await?);
            let beyond = |level: &BucketLevel| end.is_some_and(|end| level.key() >= end);
            let is_last = page.len() < wanted || page.last().is_some_and(beyond);
            levels.extend(page.into_iter().filter(|level| end.is_none_or(|end| level.key() <= end)));
            if is_last || levels.len() >= most {
                return Ok(levels);
            }
        }
    }

    /// How often keys were denied, and those whose buckets are shown in any case.
    async fn denied(&self) -> Result<(DenialCounts, Vec<Key>), Error> {
        match self.store.most_denied(MAX_DENIED_READ).await {
            Ok(denials) => {
                let denials = self.skipped.rows(denials);
                let full = denials.len() == MAX_DENIED_READ as usize;
                let denied: Vec<_> = denials.into_iter().map(|denials| (denials.key, denials.denied)).collect();
                let begin = denied.iter().map(|(key, _)| key).filter(|key| self.begins(key));
                let most = begin.take(MAX_DENIED_SHOWN).cloned().collect();
                Ok((DenialCounts::of(denied, full).only(|key| self.begins(key)), most))
            }
            // A role that may list need not be one that may see denials.
            Err(Error::NotPermitted(_)) => Ok((DenialCounts::not_permitted(), Vec::new())),
            Err(error) => Err(error),
        }
    }

    fn begins(&self, key: &Key) -> bool {
        self.prefix.as_ref().is_none_or(|prefix| key.as_str().starts_with(prefix.as_str()))
    }
}

const PAGE: usize = 500;
/// Of whom it is known how often they were denied.
const MAX_DENIED_READ: u32 = 1000;
const MAX_DENIED_SHOWN: usize = 20;

#[cfg(test)]
mod tests {
    use tollgate::{MemoryStore, Quota, Take, store::Maintenance};

    use super::*;

    async fn store_of(keys: usize) -> MemoryStore {
        let store = MemoryStore::new();
        for n in 0..keys {
            store.create_bucket(&key(n), Quota::once(100_000).expect("a quota")).await.expect("made");
        }
        store
    }

    fn key(n: usize) -> Key {
        Key::try_from(format!("user:{n:04}")).expect("a key")
    }

    fn take(store: &MemoryStore, key: &str, tokens: u64) {
        let key = Key::try_from(key).expect("a key");
        assert!(store.decide(&Take::from(key).cost(tokens)).expect("decided").is_granted());
    }

    #[tokio::test]
    async fn snapshot_reads_pages_up_to_its_limit() {
        for (keys, most, read, toured) in
            [(0, 10, 0, false), (499, 5000, 499, false), (1200, 5000, 1200, false), (1200, 1200, 1200, false)]
                .into_iter()
                .chain([(1200, 1199, 1199, true), (1200, 1, 1, true), (500, 500, 500, false), (501, 500, 500, true)])
        {
            let look = BoardReader::new(store_of(keys).await, None, most).look(&[]).await.expect("a look");
            assert_eq!((look.levels.len(), look.toured.is_some()), (read, toured), "{most} of {keys}");
            assert!(look.levels.is_sorted_by(|one, other| one.key() < other.key()));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn large_table_is_read_in_rotation() {
        let mut reader = BoardReader::new(store_of(1000).await, None, 200);
        let first = reader.look(&[]).await.expect("a look");
        assert_eq!(first.toured.map(|toured| (toured.totals.buckets, toured.all)), Some((100, false)));
        let mut twice = BTreeSet::new();
        let mut before = first.levels;
        for look in 2..=12 {
            tokio::time::advance(Duration::from_secs(2)).await;
            take(&reader.store, "user:0999", 10);
            let looked = reader.look(&[]).await.expect("a look");
            assert!(looked.levels.len() <= 200 + MAX_ROWS, "{}", looked.levels.len());
            let again = looked.levels.iter().filter(|level| before.iter().any(|before| before.key() == level.key()));
            twice.extend(again.map(|level| level.key().clone()));
            let toured = looked.toured.expect("there are more");
            // The eleventh finds that there are no more, and the twelfth has been through.
            let expected = ((100 * look).min(1000), look == 12);
            assert_eq!((toured.totals.buckets, toured.all), expected);
            before = looked.levels;
            if look == 12 {
                assert_eq!((toured.totals.empty, toured.totals.rate), (0, Some(5.0)), "of the last part");
            }
        }
        assert_eq!(twice.len(), 1000);
    }

    #[tokio::test(start_paused = true)]
    async fn wanted_keys_are_always_read_and_small_tables_fully() {
        let mut reader = BoardReader::new(store_of(300).await, None, 10);
        let wanted = [key(250), key(299)];
        reader.look(&[]).await.expect("a look");
        for _ in 0..3 {
            let look = reader.look(&wanted).await.expect("a look");
            assert!(wanted.iter().all(|key| look.levels.iter().any(|level| level.key() == key)));
        }
        for n in 10..300 {
            assert!(reader.store.delete(&key(n)).await.expect("deleted"));
        }
        let mut toured = true;
        for _ in 0..6 {
            toured = reader.look(&wanted).await.expect("a look").toured.is_some();
        }
        assert!(!toured);
        assert_eq!(reader.look(&wanted).await.expect("a look").levels.len(), 10);
    }

    #[tokio::test]
    async fn full_scan_keeps_the_first_of_each_order() {
        let store = store_of(1700).await;
        for n in [1601, 7, 900] {
            take(&store, &format!("user:{n:04}"), 10 + n);
        }
        let look = BoardReader::new(store, None, 2).survey(WatchOrder::Hottest, |_| {}).await.expect("a survey");
        let keys: Vec<_> = look.levels.iter().map(|level| level.key().as_str()).collect();
        assert_eq!(keys, ["user:1601", "user:0900"]);
        assert_eq!(look.toured.map(|toured| (toured.totals.buckets, toured.all)), Some((1700, true)));
        let look =
            BoardReader::new(store_of(2).await, None, 2).survey(WatchOrder::Key, |_| {}).await.expect("a survey");
        assert_eq!((look.levels.len(), look.toured), (2, None));
    }

    #[tokio::test]
    async fn prefix_selects_the_buckets_that_are_read() {
        let prefix = Key::try_from("user:01").expect("a key");
        let look = BoardReader::new(store_of(300).await, Some(prefix), 5000).look(&[]).await.expect("a look");
        assert_eq!((look.levels.len(), look.levels[0].key().as_str()), (100, "user:0100"));
    }

    #[tokio::test]
    async fn most_denied_keys_are_read_outside_the_page_too() {
        let store = store_of(300).await;
        let gone = Key::try_from("user:gone").expect("a key");
        store.count_denials(&[(key(1), 3), (key(250), 7), (gone, 9)]).await.expect("counted");
        let look = BoardReader::new(store, Key::try_from("user:").ok(), 10).look(&[]).await.expect("a look");
        let last = look.levels.last().map(|level| level.key().clone());
        assert_eq!((look.levels.len(), last, look.toured.is_some()), (11, Some(key(250)), true));
        assert_eq!((look.denied.get(&key(1)), look.denied.get(&key(250))), (Some(3), Some(7)));
        assert_eq!(look.bucketless.iter().map(Key::as_str).collect::<Vec<_>>(), ["user:gone"]);
    }

    #[tokio::test]
    async fn prefix_selects_denials_and_others_show_counting_is_on() {
        let mut reader = BoardReader::new(store_of(1).await, Key::try_from("tenant:").ok(), 10);
        assert!(reader.look(&[]).await.expect("a look").denied.none.is_some());
        let user = Key::try_from("user:0000").expect("a key");
        reader.store.count_denials(&[(user.clone(), 3)]).await.expect("counted");
        let look = reader.look(&[]).await.expect("a look");
        assert_eq!((look.denied.get(&user), look.denied.none, look.levels.len()), (None, None, 0));
    }
}
