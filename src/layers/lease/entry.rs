//! The held tokens of one bucket: two batches, their accounting, and the size of the next batch.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use smallvec::SmallVec;

use super::LeaseOptions;
use crate::concurrency::single_flight::SingleFlight;
use crate::model::quota::nanoseconds;
use crate::model::{Adjustment, Checked, Decision, Receipt, Rule, Take};

/// The held tokens of a bucket, under one rule and minimum remaining. Instants are in nanoseconds since the lender began.
///
/// Two batches, so that the next batch arrives before the last one is used up. Each has its own expiry and receipt.
#[derive(Debug)]
pub(super) struct LeaseEntry {
    /// The request for one more batch, without its size.
    pub(super) debit: Checked<Take>,
    slots: [Slot; 2],
    /// Which slot to use first: a hint.
    front: AtomicUsize,
    /// At this number of tokens, more are requested.
    prefetch_threshold: AtomicU64,
    /// The store's last answer: the tokens left, and when the bucket is full.
    remaining: AtomicU64,
    full_at: AtomicU64,
    /// The limits in that answer: the capacity, 0 if it stated none, and the refill time.
    capacity: AtomicU64,
    refill: AtomicU64,
    /// The tokens of all requests that the store granted. It wraps.
    store_granted: AtomicU64,
    /// No tokens are requested until this instant.
    paused_until: AtomicU64,
    /// Until this instant, a request waits for the store's tokens.
    queued_until: AtomicU64,
    /// Whether a request for tokens is in flight.
    pub(super) debiting: SingleFlight,
    accounting: Mutex<LeaseAccounting>,
}

impl LeaseEntry {
    /// A lease for a request that the store granted. `frequency`: the requests for its key within the target time.
    pub(super) fn new(take: Checked<&Take>, frequency: u64, now: u64, target: u64) -> Self {
        let used = frequency * take.cost.min(MAX_SLOT_TOKENS);
        Self {
            debit: take.cloned().max_wait(Duration::ZERO),
            slots: Default::default(),
            front: AtomicUsize::new(0),
            prefetch_threshold: AtomicU64::new(0),
            remaining: AtomicU64::new(0),
            full_at: AtomicU64::new(0),
            capacity: AtomicU64::new(0),
            refill: AtomicU64::new(0),
            store_granted: AtomicU64::new(used),
            paused_until: AtomicU64::new(0),
            queued_until: AtomicU64::new(0),
            debiting: SingleFlight::default(),
            accounting: Mutex::new(LeaseAccounting::new(used, now.saturating_sub(target))),
        }
    }

    /// Whether the lease serves requests under this rule and minimum remaining.
    #[inline]
    pub(super) fn is_for(&self, rule: &Rule, min_remaining: u64) -> bool {
        self.debit.min_remaining == min_remaining && self.debit.limits[0].rule == *rule
    }

    /// Serves a request if enough tokens are held, and returns whether to request more.
    #[inline]
    pub(super) fn serve(&self, take: &Take, now: u64) -> Option<(Decision, bool)> {
        let left = self.spend(take, now)?;
        let reset_after = match self.full_at.load(Ordering::Relaxed) {
            u64::MAX => None,
            full_at => Some(Duration::from_nanos(full_at.saturating_sub(now))),
        };
        let limits = match (self.capacity.load(Ordering::Relaxed), self.refill.load(Ordering::Relaxed)) {
            (0, _) => None,
            (capacity, u64::MAX) => Some((capacity, None)),
            (capacity, refill) => Some((capacity, Some(Duration::from_nanos(refill)))),
        };
        let remaining = self.remaining.load(Ordering::Relaxed).saturating_add(left);
        Some((Decision::lent(remaining, reset_after, limits), left <= self.prefetch_threshold.load(Ordering::Relaxed)))
    }

    /// Counts a request that the store granted.
    pub(super) fn count_store_grant(&self, take: &Take) {
        self.store_granted.fetch_add(take.cost.min(MAX_SLOT_TOKENS), Ordering::Relaxed);
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

    /// Records that a request waits for the store's tokens until an instant.
    pub(super) fn queue_until(&self, until: u64) {
        self.queued_until.fetch_max(until, Ordering::Relaxed);
    }

    /// Records the store's answer.
    pub(super) fn update(&self, decision: &Decision, now: u64) {
        let full_at = decision.reset_after().map_or(u64::MAX, |reset_after| now.saturating_add(ns(reset_after)));
        self.capacity.store(decision.capacity().unwrap_or(0), Ordering::Relaxed);
        self.refill.store(decision.refill_time().map_or(u64::MAX, ns), Ordering::Relaxed);
        self.remaining.store(decision.remaining().unwrap_or(u64::MAX), Ordering::Relaxed);
        self.full_at.store(full_at, Ordering::Relaxed);
    }

    /// All held tokens, expired or not.
    pub(super) fn tokens(&self) -> u64 {
        self.slots.iter().map(Slot::tokens).sum()
    }

    /// Requests no tokens until an instant.
    pub(super) fn pause(&self, until: u64) {
        self.paused_until.store(until, Ordering::Relaxed);
    }

    /// Whether the caller must request more tokens.
    #[inline]
    pub(super) fn begin_debit(&self, now: u64) -> bool {
        now >= self.paused_until.load(Ordering::Relaxed) && self.debiting.begin()
    }
}

pub(super) fn ns(span: Duration) -> u64 {
    nanoseconds(span).unsigned_abs()
}

/// The accounting of a lease: debited = used + given back + held, always.
#[derive(Debug)]
struct LeaseAccounting {
    batches: [Option<LeasedBatch>; 2],
    debited: u64,
    given_back: u64,
    /// The size of the last batch, when it was computed, and the demand until then.
    size: u64,
    sized_at: u64,
    demand: u64,
    /// The demand at the last idle check.
    checked: u64,
}

/// The tokens of one request to the store.
#[derive(Debug)]
pub(super) struct LeasedBatch {
    pub(super) receipt: Receipt,
    pub(super) requested_at: u64,
}

/// Why no tokens are requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoDebit {
    /// Hardly any tokens are left, or the demand is too low.
    TooFew,
    /// A batch would not serve two requests like this one.
    TooLarge,
}

impl LeaseEntry {
    /// How many tokens to request: the demand of the target time, at most twice the last batch, and at most a quarter of the
    /// tokens left in the store.
    pub(super) fn size(&self, cost: u64, now: u64, options: &LeaseOptions) -> Result<u64, NoDebit> {
        let mut accounting = self.accounting.lock();
        let (leased, demand) = (self.tokens(), self.demand(&accounting));
        let elapsed = now.saturating_sub(accounting.sized_at).max(1);
        let rate =
            u128::from(demand.wrapping_sub(accounting.demand)) * u128::from(ns(options.target)) / u128::from(elapsed);
        let size = u64::try_from(rate)
            .unwrap_or(u64::MAX)
            // At least twice the cost, so that a small batch can grow to serve two requests like this one.
            .min(accounting.size.max(cost).saturating_mul(2))
            .min(self.remaining.load(Ordering::Relaxed) / REMAINING_DIVISOR)
            .min(options.max_tokens.saturating_sub(leased));
        let serves = size >= 2 && size / 2 >= cost;
        // A request with a large cost must not reset the measurement of the others.
        if serves || size < 2 || elapsed > ns(options.target) {
            (accounting.sized_at, accounting.demand) = (now, demand);
        }
        if serves {
            accounting.size = size;
            Ok(size)
        } else {
            Err(if size < 2 { NoDebit::TooFew } else { NoDebit::TooLarge })
        }
    }

    /// Halves the next batch: a quarter now, which `size` can double.
    pub(super) fn shrink(&self) {
        let mut accounting = self.accounting.lock();
        accounting.size = (accounting.size / 4).max(1);
    }

    /// Puts a batch into the emptier slot, and returns what to give back of the slot's old batch.
    pub(super) fn fill(&self, batch: LeasedBatch, until: u64, refundable_since: u64) -> Option<Adjustment> {
        let mut accounting = self.accounting.lock();
        let [one, other] = [0, 1].map(|place: usize| self.slots[place].left(batch.requested_at));
        let place = usize::from(one > other);
        let unused = accounting.retire(self, place, refundable_since);
        let tokens = batch.receipt.cost();
        accounting.debited += tokens;
        self.prefetch_threshold.store(tokens / 2, Ordering::Relaxed);
        accounting.batches[place] = Some(batch);
        self.slots[place].fill(tokens, until);
        unused
    }

    /// Empties both slots, and returns what to give back.
    pub(super) fn retire(&self, refundable_since: u64) -> SmallVec<[Adjustment; 2]> {
        let mut accounting = self.accounting.lock();
        [0, 1].into_iter().filter_map(|place| accounting.retire(self, place, refundable_since)).collect()
    }

    /// Empties expired slots, and returns what to give back.
    pub(super) fn retire_expired(&self, now: u64, refundable_since: u64) -> SmallVec<[Adjustment; 2]> {
        let mut accounting = self.accounting.lock();
        let expired = [0, 1].into_iter().filter(|place| self.slots[*place].is_expired(now));
        expired.filter_map(|place| accounting.retire(self, place, refundable_since)).collect()
    }

    /// Whether no request came since the last call.
    pub(super) fn is_idle(&self) -> bool {
        let mut accounting = self.accounting.lock();
        let demand = self.demand(&accounting);
        std::mem::replace(&mut accounting.checked, demand) == demand
    }

    /// The demand: the tokens of all granted requests. It wraps.
    fn demand(&self, accounting: &LeaseAccounting) -> u64 {
        let used = accounting.debited - accounting.given_back - self.tokens();
        used.wrapping_add(self.store_granted.load(Ordering::Relaxed))
    }
}

impl LeaseAccounting {
    fn new(size: u64, sized_at: u64) -> Self {
        Self { batches: [None, None], debited: 0, given_back: 0, size, sized_at, demand: 0, checked: 0 }
    }

    /// Removes a batch, and returns what to give back of it, so that it is given back once. A batch that was requested before
    /// `refundable_since` is not given back, because the refill has replaced it.
    fn retire(&mut self, entry: &LeaseEntry, place: usize, refundable_since: u64) -> Option<Adjustment> {
        let unused = entry.slots[place].empty();
        self.given_back += unused;
        let batch = self.batches[place].take()?;
        (unused > 0 && batch.requested_at >= refundable_since).then(|| batch.receipt.refund(unused))
    }
}

/// A batch is at most one part in `REMAINING_DIVISOR` of the tokens left in the store.
const REMAINING_DIVISOR: u64 = 4;

/// Tokens and their expiry in one word, so that each use checks the expiry and is one exchange of the word.
///
/// The word publishes nothing else: the thread that exchanges it owns the tokens by which it changed. So `Relaxed` is enough,
/// and there are no two atomics whose order a model checker could explore.
#[derive(Debug, Default)]
struct Slot(AtomicU64);

impl Slot {
    /// Uses all `cost` tokens at an instant in nanoseconds, or none. Returns how many are left.
    #[inline]
    fn spend(&self, cost: u64, now: u64) -> Option<u64> {
        let spent = |word: u64| {
            if now / MS < word >> BITS && cost <= word & MAX_SLOT_TOKENS { Some(word - cost) } else { None }
        };
        self.0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, spent)
            .ok()
            .map(|before| (before & MAX_SLOT_TOKENS) - cost)
    }

    /// Puts tokens into an empty slot. Callers must take turns.
    fn fill(&self, tokens: u64, until: u64) {
        self.0.store(((until / MS).min(u64::MAX >> BITS) << BITS) | tokens.min(MAX_SLOT_TOKENS), Ordering::Relaxed);
    }

    /// Removes all tokens, and returns how many.
    fn empty(&self) -> u64 {
        self.0.swap(0, Ordering::Relaxed) & MAX_SLOT_TOKENS
    }

    /// The tokens, expired or not.
    #[inline]
    fn tokens(&self) -> u64 {
        self.0.load(Ordering::Relaxed) & MAX_SLOT_TOKENS
    }

    /// The tokens that have not expired.
    #[inline]
    fn left(&self, now: u64) -> u64 {
        let word = self.0.load(Ordering::Relaxed);
        if now / MS < word >> BITS { word & MAX_SLOT_TOKENS } else { 0 }
    }

    fn is_expired(&self, now: u64) -> bool {
        now / MS >= self.0.load(Ordering::Relaxed) >> BITS
    }
}

/// A slot holds 24 bits of tokens. The other 40 bits are milliseconds, enough for 34 years.
pub(super) const MAX_SLOT_TOKENS: u64 = (1 << BITS) - 1;
const BITS: u32 = 24;
const MS: u64 = 1_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_used_once_and_until_they_expire() {
        let slot = Slot::default();
        assert_eq!(slot.spend(1, 0), None);
        slot.fill(5, 3 * MS);
        assert_eq!([slot.spend(2, 0), slot.spend(4, 0), slot.spend(3, 3 * MS)], [Some(3), None, None]);
        assert_eq!([slot.left(0), slot.left(3 * MS), slot.tokens()], [3, 0, 3]);
        assert_eq!([slot.spend(3, 3 * MS - 1), slot.spend(1, 0)], [Some(0), None]);
        slot.fill(u64::MAX, u64::MAX);
        assert_eq!((slot.spend(1, 1 << 59), slot.is_expired(1 << 59)), (Some(MAX_SLOT_TOKENS - 1), false));
        assert_eq!((slot.empty(), slot.tokens()), (MAX_SLOT_TOKENS - 1, 0));
    }

    #[test]
    fn threads_use_each_token_once() {
        let slot = Slot::default();
        slot.fill(100_000, MS);
        let spend = || (0..40_000).filter(|_| slot.spend(1, 0).is_some()).count();
        let used: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(spend)).collect();
            threads.into_iter().map(|thread| thread.join().expect("a thread counts")).sum()
        });
        assert_eq!((used, slot.tokens()), (100_000, 0));
    }
}
