use std::sync::atomic::Ordering;

use smallvec::SmallVec;

use super::held::{Held, ns};
use super::options::LeaseOptions;
use crate::model::{Adjustment, Receipt};

/// Where the tokens of a lease came from and went to: debited = used + given back + held, always.
#[derive(Debug)]
pub(super) struct Books {
    batches: [Option<Batch>; 2],
    debited: u64,
    given_back: u64,
    /// How much was asked for last, when, and what had been wanted by then.
    size: u64,
    sized_at: u64,
    wanted: u64,
    /// What had been wanted when it was looked at last.
    looked: u64,
}

/// Tokens that were taken by one request.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) receipt: Receipt,
    pub(super) asked_at: u64,
}

/// Why no tokens are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unsized {
    /// There are hardly any, or they are hardly wanted.
    TooFew,
    /// They would not serve two requests like this one.
    TooLarge,
}

impl Books {
    pub(super) fn new(size: u64, sized_at: u64) -> Self {
        Self { batches: [None, None], debited: 0, given_back: 0, size, sized_at, wanted: 0, looked: 0 }
    }
}

impl Held {
    /// How many tokens to ask for: what was wanted in as long as they should last, at most twice as many as before, and a
    /// quarter of what the store has left.
    pub(super) fn size(&self, cost: u64, now: u64, options: &LeaseOptions) -> Result<u64, Unsized> {
        let mut books = self.books.lock();
        let (held, wanted) = (self.tokens(), self.wanted(&books));
        let elapsed = now.saturating_sub(books.sized_at).max(1);
        let rate = u128::from(wanted.wrapping_sub(books.wanted)) * u128::from(ns(options.target)) / u128::from(elapsed);
        let size = u64::try_from(rate)
            .unwrap_or(u64::MAX)
            // However small it has become: it need serve two requests like this one.
            .min(books.size.max(cost).saturating_mul(2))
            .min(self.remaining.load(Ordering::Relaxed) / SHARE)
            .min(options.most_tokens.saturating_sub(held));
        let serves = size >= 2 && size / 2 >= cost;
        // What is too large says nothing of the others: they go on as they were.
        if serves || size < 2 || elapsed > ns(options.target) {
            (books.sized_at, books.wanted) = (now, wanted);
        }
        if serves {
            books.size = size;
            Ok(size)
        } else {
            Err(if size < 2 { Unsized::TooFew } else { Unsized::TooLarge })
        }
    }

    /// Asks for half as many the next time.
    pub(super) fn shrink(&self) {
        let mut books = self.books.lock();
        books.size = (books.size / 4).max(1);
    }

    /// Puts a batch where least is left, and says what is to be given back of what was there.
    pub(super) fn fill(&self, batch: Batch, until: u64, since: u64) -> Option<Adjustment> {
        let mut books = self.books.lock();
        let [one, other] = [0, 1].map(|place: usize| self.slots[place].left(batch.asked_at));
        let place = usize::from(one > other);
        let unused = books.retire(self, place, since);
        let tokens = batch.receipt.cost();
        books.debited += tokens;
        self.low.store(tokens / 2, Ordering::Relaxed);
        books.batches[place] = Some(batch);
        self.slots[place].fill(tokens, until);
        unused
    }

    /// What is to be given back of all that is held.
    pub(super) fn retire(&self, since: u64) -> SmallVec<[Adjustment; 2]> {
        let mut books = self.books.lock();
        [0, 1].into_iter().filter_map(|place| books.retire(self, place, since)).collect()
    }

    /// What is to be given back of what has expired.
    pub(super) fn retire_expired(&self, now: u64, since: u64) -> SmallVec<[Adjustment; 2]> {
        let mut books = self.books.lock();
        let expired = [0, 1].into_iter().filter(|place| self.slots[*place].is_expired(now));
        expired.filter_map(|place| books.retire(self, place, since)).collect()
    }

    /// Whether nobody has asked since this was called last.
    pub(super) fn is_idle(&self) -> bool {
        let mut books = self.books.lock();
        let wanted = self.wanted(&books);
        std::mem::replace(&mut books.looked, wanted) == wanted
    }

    /// The tokens of all requests that were ever granted. It wraps.
    fn wanted(&self, books: &Books) -> u64 {
        let used = books.debited - books.given_back - self.tokens();
        used.wrapping_add(self.missed.load(Ordering::Relaxed))
    }
}

impl Books {
    /// Takes a batch out, and says what is to be given back of it, so that nobody else says so. What was asked for before
    /// `since` is left to the refill, which has replaced it.
    fn retire(&mut self, held: &Held, place: usize, since: u64) -> Option<Adjustment> {
        let unused = held.slots[place].empty();
        self.given_back += unused;
        let batch = self.batches[place].take()?;
        (unused > 0 && batch.asked_at >= since).then(|| batch.receipt.refund(unused))
    }
}

/// Of what the store has left, one part in so many is asked for at once.
const SHARE: u64 = 4;
