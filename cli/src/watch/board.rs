//! What is shown: looks and keys go in, rows come out. Nothing here reads or draws.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use tollgate::{Key, admin::BucketLevel};

use super::denials::DenialRates;
use super::look::Snapshot;
use super::order::WatchOrder;
use super::tour::{ScanTotals, Totals};
use crate::output::plain;

/// The state of the screen.
#[derive(Debug)]
pub(crate) struct Board {
    rows: BTreeMap<Key, BoardRow>,
    seen_at: Option<Duration>,
    /// If there are more buckets than a look reads: what is known of all. Those that come first are shown.
    pub(crate) toured: Option<ScanTotals>,
    /// How many of them.
    pub(crate) most: usize,
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
    /// Why there is no newer look.
    pub(crate) trouble: Option<String>,
}

/// A bucket, and what is known of its past.
#[derive(Debug)]
pub(crate) struct BoardRow {
    pub(crate) level: BucketLevel,
    /// Requests denied in the last 24 hours, if the key is among the most denied.
    pub(crate) denied: Option<u64>,
    /// Requests denied per second, over the last looks.
    pub(crate) denied_rate: Option<f64>,
    /// Tokens granted per second between the last two looks.
    pub(crate) rate: Option<f64>,
    /// The rates until now, oldest first.
    pub(crate) past: VecDeque<f64>,
}

impl Board {
    pub(crate) fn new(order: WatchOrder) -> Self {
        Self {
            rows: BTreeMap::new(),
            seen_at: None,
            toured: None,
            most: MAX_ROWS,
            denials: DenialRates::default(),
            order,
            filter: String::new(),
            typing: false,
            paused: false,
            scrolled: 0,
            unreadable: 0,
            trouble: None,
        }
    }

    /// Takes a look in. Buckets that are gone are forgotten.
    pub(crate) fn see(&mut self, look: Snapshot) {
        let passed = self.seen_at.map(|before| look.at.saturating_sub(before)).filter(|passed| !passed.is_zero());
        let mut before = std::mem::take(&mut self.rows);
        self.denials.see(look.at, look.denied);
        for level in look.levels {
            let (denied, denied_rate) = (self.denials.now.get(&level.key), self.denials.of(&level.key));
            let mut row = BoardRow::new(denied, denied_rate, level);
            if let Some(known) = before.remove(&row.level.key) {
                row.past = known.past;
                row.rate = passed.map(|passed| row.level.granted_since(&known.level) / passed.as_secs_f64());
            }
            row.past.extend(row.rate);
            if row.past.len() > HISTORY {
                row.past.pop_front();
            }
            self.rows.insert(row.level.key.clone(), row);
        }
        // Each look reads another part of many buckets.
        let known = if look.toured.is_some() { self.unreadable } else { 0 };
        self.unreadable = look.unreadable.max(known);
        self.toured = look.toured;
        self.seen_at = Some(look.at);
        self.trouble = None;
    }

    /// The rows that pass the filter, in order.
    pub(crate) fn visible(&self) -> Vec<&BoardRow> {
        self.first(self.order)
    }

    /// What the next look is to read in any case: the first of the orders for which it does not know itself where to look.
    pub(crate) fn wanted(&self) -> Vec<Key> {
        let first = |order| self.first(order).into_iter().map(|row| row.level.key.clone());
        if self.toured.is_none() {
            Vec::new()
        } else {
            first(WatchOrder::Hottest).chain(first(WatchOrder::Emptiest)).collect()
        }
    }

    fn first(&self, order: WatchOrder) -> Vec<&BoardRow> {
        let wanted = self.filter.to_lowercase();
        let passes =
            |row: &&BoardRow| wanted.is_empty() || plain(row.level.key.as_str()).to_lowercase().contains(&wanted);
        let mut rows: Vec<&BoardRow> = self.rows.values().filter(passes).collect();
        rows.sort_by(|one, other| order.compare(one, other));
        if self.toured.is_some() {
            rows.truncate(self.most);
        }
        rows
    }

    /// Of all buckets, as far as they are known.
    pub(crate) fn totals(&self) -> Totals {
        let rows = || self.rows.values();
        let of_rows = || Totals {
            buckets: self.rows.len(),
            empty: rows().filter(|row| row.level.available < 1).count(),
            rate: rows().filter_map(|row| row.rate).reduce(|one, other| one + other),
        };
        self.toured.map_or_else(of_rows, |toured| toured.totals)
    }
}

impl BoardRow {
    /// Without a past.
    pub(crate) fn new(denied: Option<u64>, denied_rate: Option<f64>, level: BucketLevel) -> Self {
        Self { denied, denied_rate, rate: None, past: VecDeque::new(), level }
    }

    /// Of the capacity; below 0: promised to requests that wait.
    pub(crate) fn part_left(&self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "a part")]
        let (available, capacity) = (self.level.available as f64, self.level.quota.capacity() as f64);
        available / capacity
    }
}

/// What is asked of two looks at a bucket.
trait Rates {
    fn granted_since(&self, before: &Self) -> f64;
}

impl Rates for BucketLevel {
    /// Nothing if it has fewer grants than before: some were taken back, or the bucket was made anew.
    #[expect(clippy::cast_precision_loss, reason = "a difference")]
    fn granted_since(&self, before: &Self) -> f64 {
        self.granted.saturating_sub(before.granted) as f64
    }
}

/// How many are shown, of more buckets than a look reads: of these, too, two orders' first are read one by one.
pub(crate) const MAX_ROWS: usize = 50;

/// As many rates as a sparkline has columns.
pub(crate) const HISTORY: usize = 30;

#[cfg(test)]
pub(crate) mod tests {
    use tollgate::{Admin, MemoryStore, Rule, Take, admin::Filter, clock::ManualClock, store::Maintenance};

    use super::super::denials::DenialCounts;
    use super::*;

    /// A board over buckets in memory, at which one looks when a test says so.
    pub(crate) struct World {
        store: MemoryStore<ManualClock>,
        clock: ManualClock,
        passed: Duration,
        pub(crate) board: Board,
    }

    impl World {
        pub(crate) fn new() -> Self {
            let clock = ManualClock::default();
            let store = MemoryStore::with_clock(clock.clone());
            Self { store, clock, passed: Duration::ZERO, board: Board::new(WatchOrder::Hottest) }
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
            self.passed += Duration::from_secs(seconds);
            self.clock.advance(Duration::from_secs(seconds));
        }

        pub(crate) async fn look(&mut self) {
            let levels = self.store.list(&Filter::default(), None, 5000).await.expect("listed");
            let denied = self.store.most_denied(20).await.expect("counted");
            let denied = denied.into_iter().map(|denials| (denials.key, denials.denied)).collect();
            let (levels, denied) = (levels.into_vec(), DenialCounts::of(denied, false));
            self.board.see(Snapshot { at: self.passed, levels, toured: None, denied, unreadable: 0 });
        }

        fn shown(&self) -> Vec<&str> {
            self.board.visible().iter().map(|row| row.level.key.as_str()).collect()
        }

        fn rates(&self) -> Vec<Option<f64>> {
            self.board.visible().iter().map(|row| row.rate).collect()
        }
    }

    #[tokio::test]
    async fn rate_is_grants_between_two_snapshots() {
        let mut world = World::new();
        world.take("a", "100 per 1h", 60);
        world.look().await;
        assert_eq!((world.rates(), world.board.totals().rate), (vec![None], None));
        world.pass(2);
        world.take("a", "100 per 1h", 10);
        world.take("b", "100 per 1h", 1);
        world.look().await;
        assert_eq!(world.rates(), [Some(5.0), None]);
        world.pass(4);
        world.take("b", "100 per 1h", 2);
        world.look().await;
        assert_eq!((world.shown(), world.rates()), (vec!["b", "a"], vec![Some(0.5), Some(0.0)]));
        assert_eq!(world.board.totals().rate, Some(0.5));
        assert_eq!(world.board.visible()[1].past, [5.0, 0.0]);
    }

    #[tokio::test]
    async fn deleted_or_recreated_bucket_has_no_negative_rate() {
        let mut world = World::new();
        world.take("a", "10 once", 5);
        world.look().await;
        let key = Key::try_from("a").expect("a key");
        assert!(world.store.delete(&key).await.expect("deleted"));
        world.pass(1);
        world.take("a", "10 once", 1);
        world.look().await;
        assert_eq!(world.rates(), [Some(0.0)]);
        assert!(world.store.delete(&key).await.expect("deleted"));
        world.pass(1);
        world.look().await;
        assert_eq!(world.board.totals().buckets, 0);
    }

    #[tokio::test]
    async fn no_time_between_two_looks_makes_no_rate() {
        let mut world = World::new();
        world.take("a", "10 once", 5);
        world.look().await;
        world.take("a", "10 once", 1);
        world.look().await;
        assert_eq!(world.rates(), [None]);
    }

    #[tokio::test]
    async fn each_order_puts_its_own_first() {
        let mut world = World::new();
        world.take("a", "1000 once", 1);
        world.take("b", "10 once", 10);
        world.take("c", "100 once", 90);
        world.look().await;
        // Until there are rates, the most granted ever.
        assert_eq!(world.shown(), ["c", "b", "a"]);
        world.pass(1);
        world.take("a", "1000 once", 200);
        world.look().await;
        assert_eq!(world.shown(), ["a", "c", "b"]);
        world.board.order = WatchOrder::Emptiest;
        assert_eq!((world.shown(), world.board.totals().empty), (vec!["b", "c", "a"], 1));
        world.board.order = WatchOrder::Key;
        assert_eq!(world.shown(), ["a", "b", "c"]);
        world.deny("c", 2).await;
        world.deny("b", 5).await;
        world.look().await;
        world.board.order = WatchOrder::Denied;
        assert_eq!(world.shown(), ["b", "c", "a"]);
    }

    #[tokio::test]
    async fn the_past_is_as_long_as_a_sparkline() {
        let mut world = World::new();
        world.take("a", "1000 once", 1);
        for _ in 0..2 * HISTORY {
            world.look().await;
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
        world.look().await;
        assert_eq!((world.board.visible().len(), world.board.wanted()), (3 * MAX_ROWS, vec![]));
        let totals = Totals { buckets: 1_000_000, empty: 7, rate: Some(1.5) };
        world.board.toured = Some(ScanTotals { totals, all: true });
        world.pass(1);
        // The one that was granted least ever is the hottest now.
        world.take("149", "1000 once", 100);
        world.look().await;
        world.board.toured = Some(ScanTotals { totals, all: true });
        assert_eq!((world.board.visible().len(), world.shown()[0]), (MAX_ROWS, "149"));
        let wanted = world.board.wanted();
        let wants = |key: &str| wanted.iter().any(|wanted| wanted.as_str() == key);
        assert!(wants("149") && wants("000") && !wants("100"), "{wanted:?}");
        assert_eq!(world.board.totals(), totals);
    }

    #[tokio::test]
    async fn filter_shows_keys_that_contain_it() {
        let mut world = World::new();
        for key in ["user:Ann", "user:bob", "tenant:ann"] {
            world.take(key, "10 once", 1);
        }
        world.look().await;
        world.board.filter = "ANN".to_owned();
        assert_eq!(world.shown(), ["tenant:ann", "user:Ann"]);
        assert_eq!(world.board.totals().buckets, 3);
    }
}
