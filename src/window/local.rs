use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::{Counted, Ring, Window};
use crate::answer::Word;
use crate::decision::Source;
use crate::{
    Adjusted, Adjustment, BucketLevel, Capabilities, Decision, Error, HoldBack, Key, Mode, Outcome, Rule, Store,
    SweepCursor, Swept, Take, TakeError,
};

/// A store that counts requests in sliding windows for others to read.
pub trait SharedWindows: Store {
    /// Counts requests in a key's window now, whatever its maximum, and answers what has been counted by all; 0 only
    /// reads.
    ///
    /// # Errors
    ///
    /// If there is no answer; then nobody knows whether they were counted.
    fn count(&self, key: &Key, window: &Window, cost: u64) -> impl Future<Output = Result<Counted, Error>> + Send;
}

impl<S: SharedWindows> SharedWindows for Arc<S> {
    async fn count(&self, key: &Key, window: &Window, cost: u64) -> Result<Counted, Error> {
        (**self).count(key, window, cost).await
    }
}

/// A store that decides requests under sliding windows from what this process has seen of them.
///
/// A denial makes no call. A grant is counted in the store before it is answered, and brings back what all processes have
/// counted; after the end of each sub-interval the counts are read anew. The sub-interval that the window has in part is
/// weighed by that part. So between two grants of its own a process knows nothing of the others', and together they can
/// grant more than the maximum, or deny a little early: `docs/sliding-windows.md` has the measure of it. Sub-intervals
/// are those of the store's clock.
///
/// Requests that may wait, keep some for others, or have an id, and those under any other rule, are the store's to
/// decide: exactly.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Limiter, LocalReads, MemoryStore, Window};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tollgate::Error> {
/// // PgStore::from(pool), or MySqlStore or SqliteStore, where processes share a database.
/// let store = LocalReads::new(MemoryStore::new());
/// let limiter = Limiter::new(store, Window::new(100, Duration::from_secs(60), Duration::from_secs(5))?)?;
/// assert!(limiter.allow("/search").await?.is_granted());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct LocalReads<S> {
    store: Arc<S>,
    seen: Arc<Mutex<AllSeen>>,
    most_keys: usize,
}

/// What is known of all windows.
#[derive(Debug, Default)]
struct AllSeen {
    windows: HashMap<Key, Seen>,
    /// None of them is empty before.
    none_empty_before: Option<Instant>,
    /// When those that are empty were looked for last.
    swept_at: Option<Instant>,
}

/// What is known of a window.
#[derive(Clone, Debug)]
struct Seen {
    ring: Ring,
    /// How many were granted here that no answer has counted yet.
    on_their_way: i64,
    mode: Mode,
    /// When the store was asked last, by its clock and by ours; when that question was sent, and when it was answered.
    asked: i64,
    asked_at: Instant,
    sent: Instant,
    answered: Instant,
    /// When nothing counts any more, by the store's clock.
    empty_at: i64,
    /// Whether it is being asked.
    asking: bool,
}

impl<S: SharedWindows> LocalReads<S> {
    /// Over a store.
    pub fn new(store: S) -> Self {
        Self { store: Arc::new(store), seen: Arc::default(), most_keys: MOST_KEYS }
    }

    /// How many keys it remembers at most; 100,000 if not said. Beyond that, windows that are empty are forgotten, and if
    /// there are none, requests for other keys are the store's to decide.
    #[must_use]
    pub fn most_keys(self, most_keys: usize) -> Self {
        Self { most_keys, ..self }
    }

    /// The store beneath.
    #[must_use]
    pub fn store(&self) -> &S {
        &self.store
    }

    async fn take_locally(&self, take: &Take, window: &Window) -> Result<Outcome, Error> {
        let request = match take.request() {
            Ok(request) => request,
            Err(error) => return Ok(Err(error)),
        };
        let key = take.key();
        let known = self.decide(key, window, request.cost);
        let Some(decided) = known else {
            if !self.has_room(key) {
                return self.store.take_one(take).await;
            }
            self.ask(key, window, None).await?;
            return Box::pin(self.take_locally(take, window)).await;
        };
        if let Err(counted) = decided {
            if self.is_due(key, window, counted.now) {
                self.ask_behind(key.clone(), *window);
            }
            let word = if request.cost > window.most() { Word::Never } else { Word::Denied };
            let outcome = Counted { word, ..counted }.outcome(take, window, request);
            return Ok(outcome.map(|decision| decision.by(Source::LocalReads)));
        }
        let granted = OnItsWay { seen: &self.seen, key, window, cost: request.cost };
        let counted = self.ask(key, window, Some(granted)).await?;
        Ok(counted.outcome(take, window, request).map(|decision| decision.untaken().by(Source::LocalReads)))
    }

    /// What is known of a window, and whether a request passes: then it is on its way at once, so that no other passes in
    /// its place while the store is asked.
    fn decide(&self, key: &Key, window: &Window, cost: i64) -> Option<Result<(), Counted>> {
        let mut seen = self.seen.lock();
        let known = seen.windows.get_mut(key)?;
        let now = known.now();
        let granted = match known.mode {
            Mode::Enforce => known.ring.estimate(window, now) + known.on_their_way + cost <= window.most(),
            Mode::Shadow | Mode::Off => true,
            Mode::Block => false,
        };
        if granted {
            known.on_their_way += cost;
            return Some(Ok(()));
        }
        let mut counted = Counted { mode: known.mode, ..Counted::new(Word::Denied, now, now, &known.ring) };
        if known.on_their_way > 0 {
            let mut ring = known.ring.clone();
            ring.count(window, now, now, known.on_their_way);
            counted.counts = ring.counts;
        }
        Some(Err(counted))
    }

    /// Whether a sub-interval has ended since the store was asked, and nobody is asking; then the caller is to.
    fn is_due(&self, key: &Key, window: &Window, now: i64) -> bool {
        let mut seen = self.seen.lock();
        let Some(known) = seen.windows.get_mut(key) else { return false };
        let due = !known.asking && known.asked / window.resolution_ns() < now / window.resolution_ns();
        known.asking |= due;
        due
    }

    fn ask_behind(&self, key: Key, window: Window) {
        let asking = Self { store: Arc::clone(&self.store), seen: Arc::clone(&self.seen), ..*self };
        tokio::spawn(async move {
            if asking.ask(&key, &window, None).await.is_err()
                && let Some(known) = asking.seen.lock().windows.get_mut(&key)
            {
                known.asking = false;
            }
        });
    }

    /// Counts what was granted in the store, if anything was, and replaces what is known by what it answers.
    async fn ask(&self, key: &Key, window: &Window, granted: Option<OnItsWay<'_>>) -> Result<Counted, Error> {
        let cost = granted.as_ref().map_or(0, |granted| granted.cost.unsigned_abs());
        let sent = Instant::now();
        let counted = self.store.count(key, window, cost).await?;
        let answered = Instant::now();
        let ring = Ring { counts: counted.counts.clone(), resolution_ns: counted.resolution_ns, ..Ring::default() };
        // The store read its clock between the two; half-way is the best guess.
        let asked_at = sent + (answered - sent) / 2;
        let empty_at = ring.empty_at(window);
        let mut known = Seen {
            ring,
            on_their_way: 0,
            mode: counted.mode,
            asked: counted.now,
            asked_at,
            sent,
            answered,
            empty_at,
            asking: false,
        };
        let mut seen = self.seen.lock();
        if let Some(granted) = granted {
            granted.arrive(&mut seen);
        }
        let other = seen.windows.get(key);
        if other.is_none_or(|other| known.follows(other, window)) {
            known.on_their_way = other.map_or(0, |other| other.on_their_way);
            let empty_from = known.empty_from();
            seen.none_empty_before = seen.none_empty_before.map(|before| before.min(empty_from));
            seen.windows.insert(key.clone(), known);
        }
        Ok(counted)
    }

    fn has_room(&self, key: &Key) -> bool {
        let mut seen = self.seen.lock();
        if seen.windows.len() >= self.most_keys && !seen.windows.contains_key(key) {
            seen.sweep();
        }
        seen.windows.len() < self.most_keys
    }
}

impl AllSeen {
    /// Forgets windows that are empty, unless there are none, or that was done a moment ago: it looks at all of them.
    fn sweep(&mut self) {
        let now = Instant::now();
        let none_yet = self.none_empty_before.is_some_and(|before| now < before);
        if none_yet || self.swept_at.is_some_and(|swept| now < swept + SWEEP_EVERY) {
            return;
        }
        let mut earliest = None;
        self.windows.retain(|_, known| {
            let empty_from = known.empty_from();
            let stays = empty_from > now || known.on_their_way > 0;
            if stays {
                earliest = Some(earliest.map_or(empty_from, |earliest: Instant| earliest.min(empty_from)));
            }
            stays
        });
        (self.none_empty_before, self.swept_at) = (earliest, Some(now));
    }
}

/// A grant that is to be counted in the store. Where nobody hears of it any more, it is taken to have been.
struct OnItsWay<'a> {
    seen: &'a Mutex<AllSeen>,
    key: &'a Key,
    window: &'a Window,
    cost: i64,
}

impl OnItsWay<'_> {
    /// An answer has it.
    fn arrive(mut self, seen: &mut AllSeen) {
        let cost = std::mem::take(&mut self.cost);
        if let Some(known) = seen.windows.get_mut(self.key) {
            known.on_their_way = (known.on_their_way - cost).max(0);
        }
    }
}

impl Drop for OnItsWay<'_> {
    fn drop(&mut self) {
        if self.cost == 0 {
            return;
        }
        if let Some(known) = self.seen.lock().windows.get_mut(self.key) {
            known.on_their_way = (known.on_their_way - self.cost).max(0);
            let now = known.now();
            known.ring.count(self.window, now, now, self.cost);
        }
    }
}

impl Seen {
    /// Whether the store counted it after another one: by its clock, or as that was answered before this was asked.
    fn follows(&self, other: &Self, window: &Window) -> bool {
        let counted = |seen: &Self| (seen.asked, seen.ring.counted(window, seen.asked));
        counted(self) >= counted(other) || self.sent >= other.answered
    }

    /// When nothing counts any more, by our clock.
    fn empty_from(&self) -> Instant {
        self.asked_at + Duration::from_nanos(self.empty_at.saturating_sub(self.asked).max(0).unsigned_abs())
    }

    /// What the store's clock shows now.
    fn now(&self) -> i64 {
        self.asked.saturating_add(i64::try_from(self.asked_at.elapsed().as_nanos()).unwrap_or(i64::MAX))
    }
}

impl<S: SharedWindows> Store for LocalReads<S> {
    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    /// In one call of the store, unless a window is among them: those are decided one by one.
    async fn take(&self, takes: &[Take]) -> Result<Vec<Outcome>, Error> {
        if takes.iter().all(|take| local(take).is_none()) {
            return self.store.take(takes).await;
        }
        let mut outcomes = Vec::with_capacity(takes.len());
        for take in takes {
            match self.take_one(take).await {
                Ok(outcome) => outcomes.push(outcome),
                Err(error) => return Err(error.after(outcomes.iter().flatten().any(Decision::is_granted))),
            }
        }
        Ok(outcomes)
    }

    async fn take_one(&self, take: &Take) -> Result<Outcome, Error> {
        match local(take) {
            Some(window) => self.take_locally(take, window).await,
            None => self.store.take_one(take).await,
        }
    }

    async fn adjust(&self, adjustments: &[Adjustment]) -> Result<Vec<Result<Adjusted, TakeError>>, Error> {
        self.store.adjust(adjustments).await
    }

    async fn hold_back(&self, key: &Key, rule: &Rule, hold: HoldBack) -> Result<bool, Error> {
        self.store.hold_back(key, rule, hold).await
    }

    async fn level(&self, key: &Key, rule: &Rule) -> Result<BucketLevel, Error> {
        self.store.level(key, rule).await
    }

    async fn sweep(&self, after: Option<&SweepCursor>, limit: u32) -> Result<Swept, Error> {
        self.store.sweep(after, limit).await
    }

    async fn count_denials(&self, denials: &[(Key, u64)]) -> Result<(), Error> {
        self.store.count_denials(denials).await
    }
}

/// The window of a request that is decided from what was seen.
fn local(take: &Take) -> Option<&Window> {
    take.window().filter(|_| take.max_wait == Duration::ZERO && take.keep == 0 && take.id.is_none())
}

const MOST_KEYS: usize = 100_000;

const SWEEP_EVERY: Duration = Duration::from_millis(100);
