use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::model::answer::Word;
use crate::model::window::{Counted, Ring, Window};
use crate::model::{Key, Mode};

/// What is known of all windows.
#[derive(Debug, Default)]
pub(super) struct AllSeen {
    pub(super) windows: HashMap<Key, Seen>,
    /// None of them is empty before.
    none_empty_before: Option<Instant>,
    /// When those that are empty were looked for last.
    swept_at: Option<Instant>,
}

/// What is known of a window.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    ring: Ring,
    /// How many were granted here that no answer has counted yet.
    on_their_way: i64,
    mode: Mode,
    /// If blocked, until when.
    blocked_until: Option<i64>,
    /// When the store was asked last, by its clock and by ours; when that question was sent, and when it was answered.
    asked: i64,
    asked_at: Instant,
    sent: Instant,
    answered: Instant,
    /// When nothing counts any more, by the store's clock.
    empty_at: i64,
    /// Whether it is being asked, and when that failed last.
    asking: bool,
    failed_at: Option<Instant>,
}

impl AllSeen {
    /// Whether a key is known, or may become so.
    pub(super) fn has_room(&mut self, key: &Key, most_keys: usize) -> bool {
        if self.windows.len() >= most_keys && !self.windows.contains_key(key) {
            self.sweep();
        }
        self.windows.len() < most_keys
    }

    /// Replaces what is known of a window by a later answer.
    pub(super) fn learn(&mut self, key: &Key, window: &Window, mut answer: Seen) {
        let known = self.windows.get(key);
        if known.is_none_or(|known| answer.follows(known, window)) {
            answer.on_their_way = known.map_or(0, |known| known.on_their_way);
            let empty_from = answer.empty_from();
            self.none_empty_before = self.none_empty_before.map(|before| before.min(empty_from));
            self.windows.insert(key.clone(), answer);
        }
    }

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

impl Seen {
    /// What an answer tells.
    pub(super) fn new(window: &Window, counted: &Counted, sent: Instant, answered: Instant) -> Self {
        let ring = Ring { counts: counted.counts.clone(), resolution_ns: counted.resolution_ns, ..Ring::default() };
        Self {
            empty_at: ring.empty_at(window),
            ring,
            on_their_way: 0,
            mode: counted.mode,
            blocked_until: counted.acts_at.filter(|_| counted.mode == Mode::Block),
            asked: counted.now,
            // The store read its clock between the two; half-way is the best guess.
            asked_at: sent + (answered - sent) / 2,
            sent,
            answered,
            asking: false,
            failed_at: None,
        }
    }

    /// Whether a request passes by what is known here: then it is on its way at once, so that no other passes in its place
    /// while the store is asked. If so, whether there was room for it.
    pub(super) fn decide(&mut self, window: &Window, cost: i64) -> Result<bool, Counted> {
        let now = self.now();
        let counted = self.ring.estimate(window, now).saturating_add(self.on_their_way);
        let has_room = counted.saturating_add(cost) <= window.most();
        let granted = match self.mode {
            Mode::Enforce => has_room,
            Mode::Shadow => cost <= window.most(),
            Mode::Off => true,
            Mode::Block => false,
        };
        if granted {
            self.on_their_way = self.on_their_way.saturating_add(cost);
            return Ok(has_room);
        }
        let mut counted = Counted { mode: self.mode, ..Counted::new(Word::Denied, now, now, &self.ring) };
        if self.mode == Mode::Block {
            counted.acts_at = self.blocked_until;
        }
        if self.on_their_way > 0 {
            let mut ring = self.ring.clone();
            ring.count(window, now, now, self.on_their_way);
            counted.counts = ring.counts;
        }
        Err(counted)
    }

    /// Whether a sub-interval has ended since the store was asked, and nobody is asking; then the caller is to. A store that
    /// fails has not answered since, however often it is asked: it is given time.
    pub(super) fn is_due(&mut self, window: &Window, now: i64) -> bool {
        let ended = self.asked / window.resolution_ns() < now / window.resolution_ns();
        let failed = self.failed_at.is_some_and(|failed_at| failed_at.elapsed() < ASK_AGAIN);
        let due = !self.asking && !failed && (ended || self.asked_at.elapsed() >= ASK_AGAIN);
        self.asking |= due;
        due
    }

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

/// Somebody asks for a window behind those who are denied. Whatever becomes of that, another one may afterwards.
pub(super) struct Asked {
    pub(super) seen: Arc<Mutex<AllSeen>>,
    pub(super) key: Key,
    pub(super) failed: bool,
}

impl Drop for Asked {
    fn drop(&mut self) {
        if let Some(known) = self.seen.lock().windows.get_mut(&self.key) {
            known.asking = false;
            known.failed_at = self.failed.then(Instant::now);
        }
    }
}

/// A grant that is to be counted in the store. Where nobody hears of it any more, it is taken to have been.
pub(super) struct OnItsWay<'a> {
    pub(super) seen: &'a Mutex<AllSeen>,
    pub(super) key: &'a Key,
    pub(super) window: &'a Window,
    pub(super) cost: i64,
}

impl OnItsWay<'_> {
    /// An answer has it.
    pub(super) fn arrive(mut self, seen: &mut AllSeen) {
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

const SWEEP_EVERY: Duration = Duration::from_millis(100);

/// How often a window that denies is asked for at least: nobody else says that an operator has switched it, or reset it.
/// And at most, while that fails.
const ASK_AGAIN: Duration = Duration::from_secs(1);
