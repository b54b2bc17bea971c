//! The state of the screen: reads and keys change it, and rows come out. The board neither reads nor draws.

use std::collections::BTreeMap;
use std::time::Duration;

use tollgate::{Key, admin::BucketLevel};

use super::denials::DenialRates;
use super::order::WatchOrder;
use super::row::{BoardRow, HISTORY, MAX_ROWS};
use super::scan::{ScanTotals, Totals};
use super::snapshot::Snapshot;
use crate::text::plain;

/// The state of the screen.
#[derive(Debug)]
pub(crate) struct Board {
    /// The database, without secrets.
    pub(crate) database: String,
    rows: BTreeMap<Key, BoardRow>,
    read_at: Option<Duration>,
    /// Totals of all buckets, if there are more than `--limit`. Then the board shows the first of the order.
    pub(crate) scan: Option<ScanTotals>,
    /// How many of them.
    pub(crate) max_rows: usize,
    pub(crate) denials: DenialRates,
    pub(crate) order: WatchOrder,
    pub(crate) filter: String,
    /// Whether keys go into the filter.
    pub(crate) typing: bool,
    pub(crate) paused: bool,
    /// How many of the rows are scrolled past.
    pub(crate) scrolled: usize,
    /// How many rows could not be read.
    pub(crate) unreadable: u64,
    /// The sentence to show if there are no buckets.
    pub(crate) empty_text: String,
    /// Why there is no newer look.
    pub(crate) read_error: Option<String>,
}

impl Board {
    pub(crate) fn new(order: WatchOrder) -> Self {
        Self {
            database: String::new(),
            rows: BTreeMap::new(),
            read_at: None,
            scan: None,
            max_rows: MAX_ROWS,
            denials: DenialRates::default(),
            order,
            filter: String::new(),
            typing: false,
            paused: false,
            scrolled: 0,
            unreadable: 0,
            empty_text: "no buckets; make one: tollgate create KEY --capacity 2 --per 1h".to_owned(),
            read_error: None,
        }
    }

    /// Takes in a snapshot. Forgets buckets that it lacks.
    pub(crate) fn apply(&mut self, snapshot: Snapshot) {
        let elapsed =
            self.read_at.map(|before| snapshot.at.saturating_sub(before)).filter(|elapsed| !elapsed.is_zero());
        let mut before = std::mem::take(&mut self.rows);
        self.denials.apply(snapshot.at, snapshot.denied);
        for level in snapshot.levels {
            let (denied, denied_rate) = (self.denials.now.get(level.key()), self.denials.of(level.key()));
            let known = before.remove(level.key());
            let granted = known.as_ref().and_then(|known| Some(level.granted_since(known.level.as_ref()?)));
            let before = known.as_ref().and_then(|known| known.rate);
            let mut row = BoardRow::new(level.key().clone(), denied, Some(level));
            row.denied_rate = denied_rate;
            row.past = known.map(|known| known.past).unwrap_or_default();
            if let (Some(granted), Some(elapsed)) = (granted, elapsed) {
                let rate = granted / elapsed.as_secs_f64();
                row.past.push_back(rate);
                row.rate = Some(smoothed(before, rate, elapsed));
            }
            if row.past.len() > HISTORY {
                row.past.pop_front();
            }
            self.rows.insert(row.key.clone(), row);
        }
        for key in snapshot.bucketless {
            let denied = self.denials.now.get(&key);
            let mut row = BoardRow::new(key, denied, None);
            row.denied_rate = self.denials.of(&row.key);
            self.rows.insert(row.key.clone(), row);
        }
        // Each read takes another part of many buckets.
        let known = if snapshot.scan.is_some() { self.unreadable } else { 0 };
        self.unreadable = snapshot.unreadable.max(known);
        self.scan = snapshot.scan;
        self.read_at = Some(snapshot.at);
        self.read_error = None;
    }

    /// The rows that pass the filter, in order.
    pub(crate) fn visible(&self) -> Vec<&BoardRow> {
        self.first(self.order)
    }

    /// The sentence to show instead of rows, if there are none.
    pub(crate) fn empty_note(&self) -> Option<String> {
        let filter = plain(&self.filter);
        let note = if filter.is_empty() { self.empty_text.clone() } else { format!("no key contains '{filter}'") };
        self.visible().is_empty().then_some(note)
    }

    /// The keys that the next read must include: the first of each order that the reader cannot find itself.
    pub(crate) fn required_keys(&self) -> Vec<Key> {
        let first = |order| self.first(order).into_iter().map(|row| row.key.clone());
        if self.scan.is_none() {
            Vec::new()
        } else {
            first(WatchOrder::Hottest).chain(first(WatchOrder::Emptiest)).collect()
        }
    }

    /// The first rows of an order. Only the most denied ones include keys without a bucket.
    pub(crate) fn first(&self, order: WatchOrder) -> Vec<&BoardRow> {
        let wanted = self.filter.to_lowercase();
        let passes = |row: &&BoardRow| {
            let is_found = wanted.is_empty() || plain(row.key.as_str()).to_lowercase().contains(&wanted);
            is_found && (row.level.is_some() || order == WatchOrder::Denied)
        };
        let mut rows: Vec<&BoardRow> = self.rows.values().filter(passes).collect();
        rows.sort_by(|one, other| order.compare(one, other));
        if self.scan.is_some() {
            rows.truncate(self.max_rows);
        }
        rows
    }

    /// Of all buckets, as far as they are known.
    pub(crate) fn totals(&self) -> Totals {
        self.scan.map_or_else(|| Totals::of(self.rows.values()), |scan| scan.totals)
    }
}

/// Compares two levels of a bucket.
trait Rates {
    fn granted_since(&self, before: &Self) -> f64;
}

impl Rates for BucketLevel {
    /// Returns 0 if the bucket has fewer grants than before: grants were taken back, or the bucket is a new one.
    #[expect(clippy::cast_precision_loss, reason = "a difference")]
    fn granted_since(&self, before: &Self) -> f64 {
        self.granted().saturating_sub(before.granted()) as f64
    }
}

/// A rate in which what was before counts the less, the longer ago it was. Else the order would change with each read.
fn smoothed(before: Option<f64>, rate: f64, elapsed: Duration) -> f64 {
    let weight = (-elapsed.as_secs_f64() / SMOOTHING.as_secs_f64()).exp();
    before.map_or(rate, |before| rate + (before - rate) * weight)
}

const SMOOTHING: Duration = Duration::from_secs(10);

#[cfg(test)]
pub(crate) mod tests {
    use tollgate::{Admin, MemoryStore, Rule, Take, admin::Filter, clock::ManualClock, store::Maintenance};

    use super::super::denials::DenialCounts;
    use super::*;

    /// A board over buckets in memory, at which one looks when a test says so.
    pub(crate) struct World {
        store: MemoryStore<ManualClock>,
        clock: ManualClock,
        elapsed: Duration,
        pub(crate) board: Board,
    }

    impl World {
        pub(crate) fn new() -> Self {
            let clock = ManualClock::default();
            let store = MemoryStore::with_clock(clock.clone());
            Self { store, clock, elapsed: Duration::ZERO, board: Board::new(WatchOrder::Hottest) }
        }

        pub(crate) fn take(&self, key: &str, quota: &str, tokens: u64) {
            let key = Key::try_from(key).expect("a key");
            let take = Take::from(key).rule(Rule::try_from(quota).expect("a quota")).cost(tokens);
            assert!(self.store.decide(&take).expect("decided").is_granted());
        }

        pub(crate) async fn deny(&self, key: &str, requests: u64) {
            let key = Key::try_from(key).expect("a key");
            self.store.count_denials(&[(key, requests)]).await.expect("counted");
        }

        pub(crate) fn pass(&mut self, seconds: u64) {
            self.elapsed += Duration::from_secs(seconds);
            self.clock.advance(Duration::from_secs(seconds));
        }

        pub(crate) async fn snapshot(&mut self) {
            let levels = self.store.list(&Filter::default(), None, 5000).await.expect("listed");
            let denied = self.store.most_denied(20).await.expect("counted");
            let denied = denied.into_iter().map(|denials| (denials.key, denials.denied)).collect();
            let (levels, denied) = (levels.into_vec(), DenialCounts::of(denied, false));
            let bucketless = denied.keys().filter(|key| !levels.iter().any(|level| level.key() == *key));
            let bucketless = bucketless.cloned().collect();
            self.board.apply(Snapshot { at: self.elapsed, levels, bucketless, scan: None, denied, unreadable: 0 });
        }

        fn shown(&self) -> Vec<&str> {
            self.board.visible().iter().map(|row| row.key.as_str()).collect()
        }

        fn rates(&self) -> Vec<Option<f64>> {
            self.board.visible().iter().map(|row| row.rate).collect()
        }
    }

    #[tokio::test]
    async fn rate_is_grants_between_reads_smoothed() {
        let mut world = World::new();
        world.take("a", "100 per 1h", 60);
        world.snapshot().await;
        assert_eq!((world.rates(), world.board.totals().rate), (vec![None], None));
        world.pass(2);
        world.take("a", "100 per 1h", 10);
        world.take("b", "100 per 1h", 1);
        world.snapshot().await;
        assert_eq!(world.rates(), [Some(5.0), None]);
        world.pass(4);
        world.take("b", "100 per 1h", 2);
        world.snapshot().await;
        // One quiet read does not make a bucket cold.
        let after = |seconds: f64| 5.0 * (-seconds / 10.0).exp();
        assert_eq!((world.shown(), world.rates()), (vec!["a", "b"], vec![Some(after(4.0)), Some(0.5)]));
        assert_eq!(world.board.totals().rate, Some(after(4.0) + 0.5));
        assert_eq!(world.board.visible()[0].past, [5.0, 0.0]);
        for _ in 0..20 {
            world.pass(1);
            world.take("b", "100 per 1h", 1);
            world.snapshot().await;
        }
        assert_eq!(world.shown(), ["b", "a"]);
    }

    #[tokio::test]
    async fn deleted_or_recreated_bucket_has_no_negative_rate() {
        let mut world = World::new();
        world.take("a", "10 once", 5);
        world.snapshot().await;
        let key = Key::try_from("a").expect("a key");
        assert!(world.store.delete(&key).await.expect("deleted"));
        world.pass(1);
        world.take("a", "10 once", 1);
        world.snapshot().await;
        assert_eq!(world.rates(), [Some(0.0)]);
        assert!(world.store.delete(&key).await.expect("deleted"));
        world.pass(1);
        world.snapshot().await;
        assert_eq!(world.board.totals().buckets, 0);
    }

    #[tokio::test]
    async fn no_time_between_two_looks_makes_no_rate() {
        let mut world = World::new();
        world.take("a", "10 once", 5);
        world.snapshot().await;
        world.take("a", "10 once", 1);
        world.snapshot().await;
        assert_eq!(world.rates(), [None]);
    }

    #[tokio::test]
    async fn each_order_puts_its_own_first() {
        let mut world = World::new();
        world.take("a", "1000 once", 1);
        world.take("b", "10 once", 10);
        world.take("c", "100 once", 90);
        world.snapshot().await;
        // Until there are rates, the most granted ever.
        assert_eq!(world.shown(), ["c", "b", "a"]);
        world.pass(1);
        world.take("a", "1000 once", 200);
        world.snapshot().await;
        assert_eq!(world.shown(), ["a", "c", "b"]);
        world.board.order = WatchOrder::Emptiest;
        assert_eq!((world.shown(), world.board.totals().empty), (vec!["b", "c", "a"], 1));
        world.board.order = WatchOrder::Key;
        assert_eq!(world.shown(), ["a", "b", "c"]);
        world.deny("c", 2).await;
        world.deny("b", 5).await;
        world.snapshot().await;
        world.board.order = WatchOrder::Denied;
        assert_eq!(world.shown(), ["b", "c", "a"]);
    }

    #[tokio::test]
    async fn the_past_is_as_long_as_a_sparkline() {
        let mut world = World::new();
        world.take("a", "1000 once", 1);
        for _ in 0..2 * HISTORY {
            world.snapshot().await;
            world.pass(1);
        }
        assert_eq!(world.board.visible()[0].past.len(), HISTORY);
    }

    #[tokio::test]
    async fn board_keeps_top_buckets_of_each_order() {
        let mut world = World::new();
        for n in 0..3 * MAX_ROWS {
            world.take(&format!("{n:03}"), "1000 once", 1000 - 2 * n as u64);
        }
        world.snapshot().await;
        assert_eq!((world.board.visible().len(), world.board.required_keys()), (3 * MAX_ROWS, vec![]));
        let totals = Totals { buckets: 1_000_000, empty: 7, rate: Some(1.5) };
        world.board.scan = Some(ScanTotals { totals, all: true });
        world.pass(1);
        // The one that was granted least ever is the hottest now.
        world.take("149", "1000 once", 100);
        world.snapshot().await;
        world.board.scan = Some(ScanTotals { totals, all: true });
        assert_eq!((world.board.visible().len(), world.shown()[0]), (MAX_ROWS, "149"));
        let required_keys = world.board.required_keys();
        let wants = |key: &str| required_keys.iter().any(|required| required.as_str() == key);
        assert!(wants("149") && wants("000") && !wants("100"), "{required_keys:?}");
        assert_eq!(world.board.totals(), totals);
    }

    #[tokio::test]
    async fn filter_shows_keys_that_contain_it() {
        let mut world = World::new();
        for key in ["user:Ann", "user:bob", "tenant:ann"] {
            world.take(key, "10 once", 1);
        }
        world.snapshot().await;
        world.board.filter = "ANN".to_owned();
        assert_eq!(world.shown(), ["tenant:ann", "user:Ann"]);
        assert_eq!(world.board.totals().buckets, 3);
    }
}
