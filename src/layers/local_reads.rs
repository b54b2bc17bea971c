//! Local reads: decide requests under sliding windows from the counts that this process has read.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::time::Instant;

use crate::model::answer::OutcomeCode;
use crate::model::window::Ring;
use crate::model::{
    Adjusted, Adjustment, Checked, Decision, Error, Key, Mode, Outcome, Rule, Source, Take, TakeError, Throttle,
    Window, WindowUsage,
};
use crate::store::{CallOptions, Capabilities, Maintenance, SharedWindows, Store, sealed};

/// A store that decides requests under sliding windows from the counts that this process has read.
///
/// A denial makes no call. A grant is counted in the store before it is answered, and returns the counts of all processes. While
/// a window denies, this process reads its counts again after the end of each sub-interval and each second. The sub-interval
/// that is partly in the window counts by that part, on the store's clock.
///
/// Between two grants of its own, a process does not see the grants of others. Together, processes can grant more than the
/// maximum, or deny a little early: `docs/sliding-windows.md` states how much.
///
/// The store decides exactly every request that can wait, has a minimum remaining or an id, or is under another rule.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{layers::LocalReads, Limiter, MemoryStore, Window};
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
    seen: Arc<Mutex<LocalWindows>>,
    max_keys: usize,
}

impl<S: SharedWindows> LocalReads<S> {
    /// Creates local reads of at most 100,000 keys over a store.
    pub fn new(store: S) -> Self {
        Self { store: Arc::new(store), seen: Arc::default(), max_keys: MAX_KEYS }
    }

    /// Sets how many keys this process remembers at most. Default: 100,000.
    ///
    /// Beyond the limit, it forgets empty windows. If no window is empty, the store decides the requests for other keys.
    #[must_use]
    pub fn max_keys(self, max_keys: usize) -> Self {
        Self { max_keys, ..self }
    }

    /// Returns the underlying store.
    #[must_use]
    pub fn store(&self) -> &S {
        &self.store
    }

    /// Decides a request. `is_fresh`: the counts have just been read, so a denial is not marked as aged.
    async fn take_locally(&self, take: Checked<&Take>, window: &Window, is_fresh: bool) -> Result<Outcome, Error> {
        let request = take.request_at(0);
        let key = take.key();
        let known = self.seen.lock().windows.get_mut(key).map(|known| {
            known.decide(window, request.cost).map_err(|counted| (known.is_due(window, counted.now), counted))
        });
        let Some(decided) = known else {
            if !self.seen.lock().has_room(key, self.max_keys) {
                return self.store.take_one_checked(take, CallOptions::default()).await;
            }
            self.count(key, window, None).await?;
            return Box::pin(self.take_locally(take, window, true)).await;
        };
        let had_room = match decided {
            Ok(had_room) => had_room,
            Err((due, counted)) => {
                if due {
                    self.refresh_in_background(key.clone(), *window);
                }
                let code =
                    if request.cost > window.signed_max_requests() { OutcomeCode::Never } else { OutcomeCode::Denied };
                let outcome = WindowUsage { code, ..counted }.outcome(&take, window, request);
                let decision = |decision: Decision| if is_fresh { decision } else { decision.aged_by(Duration::ZERO) };
                return Ok(outcome.map(|denied| decision(denied).with_source(Source::LocalReads)));
            }
        };
        let granted = InFlightGrant { seen: &self.seen, key, window, cost: request.cost };
        let mut counted = self.count(key, window, Some(granted)).await?;
        if had_room && counted.mode == Mode::Shadow {
            // The window had room, so the request would have passed in enforce mode, too.
            counted.mode = Mode::Enforce;
        }
        Ok(counted
            .outcome(&take, window, request)
            .map(|decision| decision.without_grants().with_source(Source::LocalReads)))
    }

    fn refresh_in_background(&self, key: Key, window: Window) {
        let reader = Self { store: Arc::clone(&self.store), seen: Arc::clone(&self.seen), ..*self };
        let read = BackgroundRead { seen: Arc::clone(&self.seen), key, failed: false };
        // Without a runtime, the next denial may have one.
        let Ok(runtime) = Handle::try_current() else { return };
        runtime.spawn(async move {
            let mut read = read;
            // A later denial retries the read.
            read.failed = reader.count(&read.key, &window, None).await.is_err();
        });
    }

    /// Counts a grant in the store, if one is given, and replaces the known counts by the answer.
    async fn count(
        &self,
        key: &Key,
        window: &Window,
        granted: Option<InFlightGrant<'_>>,
    ) -> Result<WindowUsage, Error> {
        let cost = granted.as_ref().map_or(0, |granted| granted.cost.unsigned_abs());
        let sent = Instant::now();
        let counted = self.store.count(key, window, cost).await?;
        let answer = LocalWindow::new(window, &counted, sent, Instant::now());
        let mut seen = self.seen.lock();
        if let Some(granted) = granted {
            granted.arrive(&mut seen);
        }
        seen.learn(key, window, answer);
        Ok(counted)
    }
}

impl<S: SharedWindows> sealed::Sealed for LocalReads<S> {}

impl<S: SharedWindows> Store for LocalReads<S> {
    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    /// Makes one call of the store, unless a request is under a local window: then the requests are decided one by one.
    async fn take_checked(&self, takes: Checked<&[Take]>, options: CallOptions) -> Result<Vec<Outcome>, Error> {
        if takes.iter().all(|take| local(take).is_none()) {
            return self.store.take_checked(takes, options).await;
        }
        let mut outcomes = Vec::with_capacity(takes.len());
        for take in takes.iter() {
            let outcome = match local(take) {
                Some(window) => self.take_locally(take, window, false).await,
                None => self.store.take_one_checked(take, options).await,
            };
            match outcome {
                Ok(outcome) => outcomes.push(outcome),
                Err(error) => return Err(error.unknown_if_partial(outcomes.iter().flatten().any(Decision::is_granted))),
            }
        }
        Ok(outcomes)
    }

    async fn adjust_with(
        &self,
        adjustments: &[Adjustment],
        options: CallOptions,
    ) -> Result<Vec<Result<Adjusted, TakeError>>, Error> {
        self.store.adjust_with(adjustments, options).await
    }

    async fn throttle(&self, key: &Key, rule: &Rule, throttle: Throttle) -> Result<bool, Error> {
        self.store.throttle(key, rule, throttle).await
    }

    fn maintenance(&self) -> Option<&dyn Maintenance> {
        self.store.maintenance()
    }
}

/// The window of a request that this process decides.
fn local(take: Checked<&Take>) -> Option<&Window> {
    take.get().window().filter(|_| take.max_wait == Duration::ZERO && take.min_remaining == 0 && take.id.is_none())
}

const MAX_KEYS: usize = 100_000;

/// The windows that this process knows.
#[derive(Debug, Default)]
struct LocalWindows {
    windows: HashMap<Key, LocalWindow>,
    /// No window is empty before this instant.
    none_empty_before: Option<Instant>,
    /// When empty windows were last swept.
    swept_at: Option<Instant>,
}

/// The known state of a window.
#[derive(Clone, Debug)]
struct LocalWindow {
    ring: Ring,
    /// The requests that were granted here and are not in an answer yet.
    in_flight: i64,
    mode: Mode,
    /// Under `Block`: when the mode ends.
    blocked_until: Option<i64>,
    /// When the store last read the window, by the store's clock and by this process's. When that call was sent, and when it
    /// was answered.
    read_at: i64,
    read_at_instant: Instant,
    sent: Instant,
    answered: Instant,
    /// When no request counts any more, by the store's clock.
    empty_at: i64,
    /// Whether a read is in flight, and when a read last failed.
    is_reading: bool,
    failed_at: Option<Instant>,
}

impl LocalWindows {
    /// Whether there is room for one more key, after a sweep if necessary.
    fn has_room(&mut self, key: &Key, max_keys: usize) -> bool {
        if self.windows.len() >= max_keys && !self.windows.contains_key(key) {
            self.sweep();
        }
        self.windows.len() < max_keys
    }

    /// Replaces the state of a window by a later answer.
    fn learn(&mut self, key: &Key, window: &Window, mut answer: LocalWindow) {
        let known = self.windows.get(key);
        if known.is_none_or(|known| answer.follows(known, window)) {
            answer.in_flight = known.map_or(0, |known| known.in_flight);
            let empty_from = answer.empty_from();
            self.none_empty_before = self.none_empty_before.map(|before| before.min(empty_from));
            self.windows.insert(key.clone(), answer);
        }
    }

    /// Forgets empty windows. Scans all windows, so it does nothing if none can be empty or the last sweep was a moment ago.
    fn sweep(&mut self) {
        let now = Instant::now();
        let none_yet = self.none_empty_before.is_some_and(|before| now < before);
        if none_yet || self.swept_at.is_some_and(|swept| now < swept + SWEEP_INTERVAL) {
            return;
        }
        let mut earliest = None;
        self.windows.retain(|_, known| {
            let empty_from = known.empty_from();
            let stays = empty_from > now || known.in_flight > 0;
            if stays {
                earliest = Some(earliest.map_or(empty_from, |earliest: Instant| earliest.min(empty_from)));
            }
            stays
        });
        (self.none_empty_before, self.swept_at) = (earliest, Some(now));
    }
}

impl LocalWindow {
    /// The state in an answer.
    fn new(window: &Window, counted: &WindowUsage, sent: Instant, answered: Instant) -> Self {
        let ring = Ring { counts: counted.counts.clone(), resolution_ns: counted.resolution_ns, ..Ring::default() };
        Self {
            empty_at: ring.empty_at(window),
            ring,
            in_flight: 0,
            mode: counted.mode,
            blocked_until: counted.scheduled_at.filter(|_| counted.mode == Mode::Block),
            read_at: counted.now,
            // The store read its clock between the two instants; half-way is the best estimate.
            read_at_instant: sent + (answered - sent) / 2,
            sent,
            answered,
            is_reading: false,
            failed_at: None,
        }
    }

    /// Decides a request by the known counts. A grant counts as on its way at once, so that no other request takes its place
    /// during the call of the store. Returns whether a granted request had room, or the answer of a denial.
    fn decide(&mut self, window: &Window, cost: i64) -> Result<bool, WindowUsage> {
        let now = self.now();
        let counted = self.ring.estimate(window, now).saturating_add(self.in_flight);
        let has_room = counted.saturating_add(cost) <= window.signed_max_requests();
        let granted = match self.mode {
            Mode::Enforce => has_room,
            Mode::Shadow => cost <= window.signed_max_requests(),
            Mode::Off => true,
            Mode::Block => false,
        };
        if granted {
            self.in_flight = self.in_flight.saturating_add(cost);
            return Ok(has_room);
        }
        let mut counted =
            WindowUsage { mode: self.mode, ..WindowUsage::new(OutcomeCode::Denied, now, now, &self.ring) };
        if self.mode == Mode::Block {
            counted.scheduled_at = self.blocked_until;
        }
        if self.in_flight > 0 {
            let mut ring = self.ring.clone();
            ring.count(window, now, now, self.in_flight);
            counted.counts = ring.counts;
        }
        Err(counted)
    }

    /// Whether the caller must read the counts: a sub-interval has ended or [`REFRESH_INTERVAL`] has passed since the last answer, no
    /// read is in flight, and none has failed within [`REFRESH_INTERVAL`].
    fn is_due(&mut self, window: &Window, now: i64) -> bool {
        let ended = self.read_at / window.resolution_ns() < now / window.resolution_ns();
        let failed = self.failed_at.is_some_and(|failed_at| failed_at.elapsed() < REFRESH_INTERVAL);
        let due = !self.is_reading && !failed && (ended || self.read_at_instant.elapsed() >= REFRESH_INTERVAL);
        self.is_reading |= due;
        due
    }

    /// Whether the store read this state after the other one: by its clock, or because the other was answered before this was sent.
    fn follows(&self, other: &Self, window: &Window) -> bool {
        let counted = |seen: &Self| (seen.read_at, seen.ring.counted(window, seen.read_at));
        counted(self) >= counted(other) || self.sent >= other.answered
    }

    /// When no request counts any more, by this process's clock.
    fn empty_from(&self) -> Instant {
        self.read_at_instant + Duration::from_nanos(self.empty_at.saturating_sub(self.read_at).max(0).unsigned_abs())
    }

    /// The store's clock now.
    fn now(&self) -> i64 {
        self.read_at.saturating_add(i64::try_from(self.read_at_instant.elapsed().as_nanos()).unwrap_or(i64::MAX))
    }
}

/// A background read of a window. However it ends, the next read can begin.
struct BackgroundRead {
    seen: Arc<Mutex<LocalWindows>>,
    key: Key,
    failed: bool,
}

impl Drop for BackgroundRead {
    fn drop(&mut self) {
        if let Some(known) = self.seen.lock().windows.get_mut(&self.key) {
            known.is_reading = false;
            known.failed_at = self.failed.then(Instant::now);
        }
    }
}

/// A grant that a call is counting in the store. If the call is dropped or fails, the grant is assumed to be counted.
struct InFlightGrant<'a> {
    seen: &'a Mutex<LocalWindows>,
    key: &'a Key,
    window: &'a Window,
    cost: i64,
}

impl InFlightGrant<'_> {
    /// An answer includes the grant.
    fn arrive(mut self, seen: &mut LocalWindows) {
        let cost = std::mem::take(&mut self.cost);
        if let Some(known) = seen.windows.get_mut(self.key) {
            known.in_flight = (known.in_flight - cost).max(0);
        }
    }
}

impl Drop for InFlightGrant<'_> {
    fn drop(&mut self) {
        if self.cost == 0 {
            return;
        }
        if let Some(known) = self.seen.lock().windows.get_mut(self.key) {
            known.in_flight = (known.in_flight - self.cost).max(0);
            let now = known.now();
            known.ring.count(self.window, now, now, self.cost);
        }
    }
}

const SWEEP_INTERVAL: Duration = Duration::from_millis(100);

/// A window that denies is read at least this often, to see a new mode or a reset. While reads fail, at most this often.
const REFRESH_INTERVAL: Duration = Duration::from_secs(1);
