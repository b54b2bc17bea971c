use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::books::Books;
use super::slot::{MOST, Slot};
use crate::concurrency::single_flight::SingleFlight;
use crate::model::quota::span::nanoseconds;
use crate::model::{Decision, Rule, Take};

/// What is held of a bucket, under one rule and keep. Instants are in nanoseconds since the lender began.
///
/// Two batches, so that the next one is there before the last is used up, and each keeps its own end and receipt.
#[derive(Debug)]
pub(super) struct Held {
    /// Asks for one more batch, but for its size.
    pub(super) ask: Take,
    pub(super) slots: [Slot; 2],
    /// Which slot to use first: a hint.
    front: AtomicUsize,
    /// When so few are left, it is time for more.
    pub(super) low: AtomicU64,
    /// What the store said last: the tokens left, and when it is full.
    pub(super) remaining: AtomicU64,
    pub(super) full_at: AtomicU64,
    /// And under which terms it decided: the capacity, 0 if it did not say, and the time of a refill.
    capacity: AtomicU64,
    refill: AtomicU64,
    /// The tokens of all requests that had theirs of the store. It wraps.
    pub(super) missed: AtomicU64,
    /// No more are asked for until then.
    paused_until: AtomicU64,
    /// Until then somebody waits for the store's tokens.
    queued_until: AtomicU64,
    /// Whether they are being asked for.
    pub(super) debiting: SingleFlight,
    pub(super) books: Mutex<Books>,
}

impl Held {
    /// For a request that was granted by the store, of a key that was asked for so often within a target's time.
    pub(super) fn new(take: &Take, often: u64, now: u64, target: u64) -> Self {
        let used = often * take.cost.min(MOST);
        Self {
            ask: take.clone().max_wait(Duration::ZERO),
            slots: Default::default(),
            front: AtomicUsize::new(0),
            low: AtomicU64::new(0),
            remaining: AtomicU64::new(0),
            full_at: AtomicU64::new(0),
            capacity: AtomicU64::new(0),
            refill: AtomicU64::new(0),
            missed: AtomicU64::new(used),
            paused_until: AtomicU64::new(0),
            queued_until: AtomicU64::new(0),
            debiting: SingleFlight::default(),
            books: Mutex::new(Books::new(used, now.saturating_sub(target))),
        }
    }

    /// Whether it is for requests under that rule and keep.
    #[inline]
    pub(super) fn is_for(&self, rule: &Rule, keep: u64) -> bool {
        self.ask.keep == keep && self.ask.limits[0].rule == *rule
    }

    /// Serves a request if enough is held, and says whether it is time for more.
    #[inline]
    pub(super) fn serve(&self, take: &Take, now: u64) -> Option<(Decision, bool)> {
        let left = self.spend(take, now)?;
        let reset_after = match self.full_at.load(Ordering::Relaxed) {
            u64::MAX => Duration::MAX,
            full_at => Duration::from_nanos(full_at.saturating_sub(now)),
        };
        let terms = match (self.capacity.load(Ordering::Relaxed), self.refill.load(Ordering::Relaxed)) {
            (0, _) => None,
            (capacity, u64::MAX) => Some((capacity, Duration::MAX)),
            (capacity, refill) => Some((capacity, Duration::from_nanos(refill))),
        };
        let remaining = self.remaining.load(Ordering::Relaxed).saturating_add(left);
        Some((Decision::lent(remaining, reset_after, terms), left <= self.low.load(Ordering::Relaxed)))
    }

    /// Takes down that a request had its tokens of the store.
    pub(super) fn miss(&self, take: &Take) {
        self.missed.fetch_add(take.cost.min(MOST), Ordering::Relaxed);
    }

    #[inline]
    fn spend(&self, take: &Take, now: u64) -> Option<u64> {
        if !take.max_wait.is_zero() && now < self.queued_until.load(Ordering::Relaxed) {
            return None;
        }
        let front = self.front.load(Ordering::Relaxed);
        let other = 1 - front;
        if let Some(left) = self.slots[front].spend(take.cost, now) {
            return Some(left + self.slots[other].left(now));
        }
        let left = self.slots[other].spend(take.cost, now)?;
        self.front.store(other, Ordering::Relaxed);
        Some(left + self.slots[front].left(now))
    }

    /// Somebody waits for the store's tokens until then.
    pub(super) fn queue_until(&self, until: u64) {
        self.queued_until.fetch_max(until, Ordering::Relaxed);
    }

    /// Takes down what the store answered to a request that was not served.
    pub(super) fn see(&self, decision: &Decision, now: u64) {
        let full_at = match decision.reset_after() {
            Duration::MAX => u64::MAX,
            reset_after => now.saturating_add(ns(reset_after)),
        };
        let ns = |span: Duration| if span == Duration::MAX { u64::MAX } else { ns(span) };
        self.capacity.store(decision.capacity().unwrap_or(0), Ordering::Relaxed);
        self.refill.store(decision.refill_time().map_or(0, ns), Ordering::Relaxed);
        self.remaining.store(decision.remaining(), Ordering::Relaxed);
        self.full_at.store(full_at, Ordering::Relaxed);
    }

    /// All tokens that are held, expired or not.
    pub(super) fn tokens(&self) -> u64 {
        self.slots.iter().map(Slot::tokens).sum()
    }

    /// Asks for no more until then.
    pub(super) fn pause(&self, until: u64) {
        self.paused_until.store(until, Ordering::Relaxed);
    }

    /// Whether the caller is the one to ask for more.
    #[inline]
    pub(super) fn begin_debit(&self, now: u64) -> bool {
        now >= self.paused_until.load(Ordering::Relaxed) && self.debiting.begin()
    }
}

pub(super) fn ns(span: Duration) -> u64 {
    nanoseconds(span).unsigned_abs()
}
