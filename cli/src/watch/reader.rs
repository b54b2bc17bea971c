//! How buckets are read: in bounded pages.

use std::collections::{BTreeMap, BTreeSet};

use tokio::time::Instant;
use tollgate::{
    Admin, Error, Key,
    admin::{BucketLevel, Filter},
};

use super::denials::DenialCounts;
use super::order::WatchOrder;
use super::row::{BoardRow, MAX_ROWS};
use super::scan::{FullScan, ScanTotals, Totals};
use super::snapshot::Snapshot;
use crate::paging::Skipped;

pub(crate) struct BoardReader<S> {
    store: S,
    filter: Filter,
    prefix: Option<Key>,
    max_rows: usize,
    started_at: Instant,
    scan: Option<FullScan>,
    skipped: Skipped,
}

impl<S: Admin> BoardReader<S> {
    pub(crate) fn new(store: S, prefix: Option<Key>, max_rows: u32) -> Self {
        let filter = prefix.iter().cloned().fold(Filter::default(), Filter::prefix);
        Self {
            store,
            filter,
            prefix,
            max_rows: max_rows as usize,
            started_at: Instant::now(),
            scan: None,
            skipped: Skipped::default(),
        }
    }

    /// Reads all buckets if they are at most `--limit`. Otherwise reads the next part of them, the last part again, and the wanted
    /// keys. Reads in pages, so that each statement is short.
    pub(crate) async fn read(&mut self, required_keys: &[Key]) -> Result<Snapshot, Error> {
        let half = self.max_rows.div_ceil(2);
        let (again, next, mut first) = match &self.scan {
            // One more than may be read tells whether there are more.
            None => (Vec::new(), self.read_range(None, None, self.max_rows + 1).await?, Vec::new()),
            Some(scan) => {
                let (after, end) = scan.again();
                // Some may have come since.
                let again = self.read_range(after, end, half + half.min(PAGE)).await?;
                let first = self.read_range(None, None, MAX_ROWS).await?;
                // They were counted when they were new.
                self.skipped.take();
                (again, self.read_range(scan.next(), None, half).await?, first)
            }
        };
        let at = self.started_at.elapsed();
        let (denied, most_denied) = self.denied().await?;
        let (mut levels, mut bucketless) = (BTreeMap::<Key, BucketLevel>::new(), Vec::new());
        let read = first.drain(..).chain(again.iter().cloned()).chain(next.iter().take(self.max_rows).cloned());
        levels.extend(read.map(|level| (level.key().clone(), level)));
        // Reads these few one by one, because the pages need not have an attacker's key.
        let required_keys = if self.scan.is_some() { required_keys } else { &[] };
        for key in most_denied.iter().chain(required_keys) {
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
        self.scan = match self.scan.take() {
            None => (next.len() > self.max_rows).then(|| FullScan::begin(&next[..half], at)),
            Some(mut scan) => {
                let is_complete = scan.step(&again, &next, next.len() < half, at);
                // Reads all buckets from now on if they have become few.
                is_complete.is_none_or(|buckets| buckets > self.max_rows).then_some(scan)
            }
        };
        let scan = self.scan.as_ref().map(FullScan::scan);
        bucketless.retain(|key| denied.get(key).is_some());
        let (levels, unreadable) = (levels.into_values().collect(), self.skipped.take());
        Ok(Snapshot { at, levels, bucketless, scan, denied, unreadable })
    }

    /// Reads every bucket once, page by page, tells how many it has read, and keeps no more than it may: those that come first.
    pub(crate) async fn read_all(&self, order: WatchOrder, report_progress: impl Fn(usize)) -> Result<Snapshot, Error> {
        let (denied, most_denied) = self.denied().await?;
        let mut bucketless: BTreeSet<Key> = most_denied.into_iter().collect();
        let (mut totals, mut first, mut after) = (Totals::default(), Vec::new(), None::<Key>);
        loop {
            let page = self.read_range(after.as_ref(), None, PAGE).await?;
            totals.add(&page);
            report_progress(totals.buckets);
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
            if is_last || first.len() > 2 * self.max_rows {
                first.sort_by(|one: &BoardRow, other| order.compare(one, other));
                first.truncate(self.max_rows);
            }
            if is_last {
                break;
            }
        }
        let scan = (totals.buckets > self.max_rows).then_some(ScanTotals { totals, all: true });
        let (with, without): (Vec<_>, Vec<_>) = first.into_iter().partition(|row| row.level.is_some());
        let levels = with.into_iter().filter_map(|row| row.level).collect();
        let bucketless = without.into_iter().map(|row| row.key).collect();
        let (at, unreadable) = (self.started_at.elapsed(), self.skipped.take());
        Ok(Snapshot { at, levels, bucketless, scan, denied, unreadable })
    }

    /// Those after a key, up to another, page by page, and no more than so many.
    async fn read_range(
        &self,
        after: Option<&Key>,
        end: Option<&Key>,
        max_rows: usize,
    ) -> Result<Vec<BucketLevel>, Error> {
        let mut levels: Vec<BucketLevel> = Vec::new();
        loop {
            let page_size = (max_rows - levels.len()).min(PAGE);
            let after = levels.last().map(|level| level.key().clone()).or_else(|| after.cloned());
            let limit = u32::try_from(page_size).unwrap_or(u32::MAX);
            let page = self.skipped.rows(self.store.list(&self.filter, after.as_ref(), limit).await?);
            let is_beyond = |level: &BucketLevel| end.is_some_and(|end| level.key() >= end);
            let is_last = page.len() < page_size || page.last().is_some_and(is_beyond);
            levels.extend(page.into_iter().filter(|level| end.is_none_or(|end| level.key() <= end)));
            if is_last || levels.len() >= max_rows {
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
                let listed = denied.iter().map(|(key, _)| key).filter(|key| self.has_prefix(key));
                let most_denied = listed.take(MAX_DENIED_SHOWN).cloned().collect();
                Ok((DenialCounts::of(denied, full).retain(|key| self.has_prefix(key)), most_denied))
            }
            // A role that may list need not be one that may see denials.
            Err(Error::NotPermitted(_)) => Ok((DenialCounts::not_permitted(), Vec::new())),
            Err(error) => Err(error),
        }
    }

    fn has_prefix(&self, key: &Key) -> bool {
        self.prefix.as_ref().is_none_or(|prefix| key.as_str().starts_with(prefix.as_str()))
    }
}

const PAGE: usize = 500;
/// Of whom it is known how often they were denied.
const MAX_DENIED_READ: u32 = 1000;
const MAX_DENIED_SHOWN: usize = 20;

#[cfg(test)]
mod tests {
    use std::time::Duration;

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
        for (keys, max_rows, read, is_scanning) in
            [(0, 10, 0, false), (499, 5000, 499, false), (1200, 5000, 1200, false), (1200, 1200, 1200, false)]
                .into_iter()
                .chain([(1200, 1199, 1199, true), (1200, 1, 1, true), (500, 500, 500, false), (501, 500, 500, true)])
        {
            let snapshot = BoardReader::new(store_of(keys).await, None, max_rows).read(&[]).await.expect("a snapshot");
            assert_eq!((snapshot.levels.len(), snapshot.scan.is_some()), (read, is_scanning), "{max_rows} of {keys}");
            assert!(snapshot.levels.is_sorted_by(|one, other| one.key() < other.key()));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn large_table_is_read_in_rotation() {
        let mut reader = BoardReader::new(store_of(1000).await, None, 200);
        let first = reader.read(&[]).await.expect("a snapshot");
        assert_eq!(first.scan.map(|scan| (scan.totals.buckets, scan.all)), Some((100, false)));
        let mut twice = BTreeSet::new();
        let mut before = first.levels;
        for round in 2..=12 {
            tokio::time::advance(Duration::from_secs(2)).await;
            take(&reader.store, "user:0999", 10);
            let snapshot = reader.read(&[]).await.expect("a snapshot");
            assert!(snapshot.levels.len() <= 200 + MAX_ROWS, "{}", snapshot.levels.len());
            let again = snapshot.levels.iter().filter(|level| before.iter().any(|before| before.key() == level.key()));
            twice.extend(again.map(|level| level.key().clone()));
            let scan = snapshot.scan.expect("there are more");
            // The eleventh finds that there are no more, and the twelfth has been through.
            let expected = ((100 * round).min(1000), round == 12);
            assert_eq!((scan.totals.buckets, scan.all), expected);
            before = snapshot.levels;
            if round == 12 {
                assert_eq!((scan.totals.empty, scan.totals.rate), (0, Some(5.0)), "of the last part");
            }
        }
        assert_eq!(twice.len(), 1000);
    }

    #[tokio::test(start_paused = true)]
    async fn wanted_keys_are_always_read_and_small_tables_fully() {
        let mut reader = BoardReader::new(store_of(300).await, None, 10);
        let required_keys = [key(250), key(299)];
        reader.read(&[]).await.expect("a snapshot");
        for _ in 0..3 {
            let snapshot = reader.read(&required_keys).await.expect("a snapshot");
            assert!(required_keys.iter().all(|key| snapshot.levels.iter().any(|level| level.key() == key)));
        }
        for n in 10..300 {
            assert!(reader.store.delete(&key(n)).await.expect("deleted"));
        }
        let mut is_scanning = true;
        for _ in 0..6 {
            is_scanning = reader.read(&required_keys).await.expect("a snapshot").scan.is_some();
        }
        assert!(!is_scanning);
        assert_eq!(reader.read(&required_keys).await.expect("a snapshot").levels.len(), 10);
    }

    #[tokio::test]
    async fn full_scan_keeps_the_first_of_each_order() {
        let store = store_of(1700).await;
        for n in [1601, 7, 900] {
            take(&store, &format!("user:{n:04}"), 10 + n);
        }
        let snapshot =
            BoardReader::new(store, None, 2).read_all(WatchOrder::Hottest, |_| {}).await.expect("a snapshot");
        let keys: Vec<_> = snapshot.levels.iter().map(|level| level.key().as_str()).collect();
        assert_eq!(keys, ["user:1601", "user:0900"]);
        assert_eq!(snapshot.scan.map(|scan| (scan.totals.buckets, scan.all)), Some((1700, true)));
        let snapshot =
            BoardReader::new(store_of(2).await, None, 2).read_all(WatchOrder::Key, |_| {}).await.expect("a snapshot");
        assert_eq!((snapshot.levels.len(), snapshot.scan), (2, None));
    }

    #[tokio::test]
    async fn prefix_selects_the_buckets_that_are_read() {
        let prefix = Key::try_from("user:01").expect("a key");
        let snapshot = BoardReader::new(store_of(300).await, Some(prefix), 5000).read(&[]).await.expect("a snapshot");
        assert_eq!((snapshot.levels.len(), snapshot.levels[0].key().as_str()), (100, "user:0100"));
    }

    #[tokio::test]
    async fn most_denied_keys_are_read_outside_the_page_too() {
        let store = store_of(300).await;
        let gone = Key::try_from("user:gone").expect("a key");
        store.count_denials(&[(key(1), 3), (key(250), 7), (gone, 9)]).await.expect("counted");
        let snapshot = BoardReader::new(store, Key::try_from("user:").ok(), 10).read(&[]).await.expect("a snapshot");
        let last = snapshot.levels.last().map(|level| level.key().clone());
        assert_eq!((snapshot.levels.len(), last, snapshot.scan.is_some()), (11, Some(key(250)), true));
        assert_eq!((snapshot.denied.get(&key(1)), snapshot.denied.get(&key(250))), (Some(3), Some(7)));
        assert_eq!(snapshot.bucketless.iter().map(Key::as_str).collect::<Vec<_>>(), ["user:gone"]);
    }

    #[tokio::test]
    async fn prefix_selects_denials_and_others_show_counting_is_on() {
        let mut reader = BoardReader::new(store_of(1).await, Key::try_from("tenant:").ok(), 10);
        assert!(reader.read(&[]).await.expect("a snapshot").denied.missing_reason.is_some());
        let user = Key::try_from("user:0000").expect("a key");
        reader.store.count_denials(&[(user.clone(), 3)]).await.expect("counted");
        let snapshot = reader.read(&[]).await.expect("a snapshot");
        assert_eq!(
            (snapshot.denied.get(&user), snapshot.denied.missing_reason, snapshot.levels.len()),
            (None, None, 0)
        );
    }
}
