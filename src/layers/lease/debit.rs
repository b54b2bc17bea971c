use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::sync::OwnedRwLockReadGuard;

use super::books::{Batch, Unsized};
use super::held::{Held, ns};
use super::lender::Lender;
use crate::clock::Clock;
use crate::model::{Adjustment, Mode, Outcome, Receipt, Source};
use crate::store::Store;

/// Somebody who asks for more tokens: of each lease, one at a time, however it ends.
struct Debiting {
    held: Arc<Held>,
}

impl<S: Store, C: Clock> Lender<S, C> {
    /// Asks for more tokens in a task of its own, if there is reason to; the caller has begun the debit.
    pub(super) fn debit(self: &Arc<Self>, held: &Arc<Held>, cost: u64, now: u64) {
        let size = held.size(cost, now, &self.options);
        if size.is_ok_and(|size| self.try_debit(held, size, now)) {
            return;
        }
        // Whoever comes next need not find that out again, if it is true of them.
        if size != Err(Unsized::TooLarge) {
            held.pause(now.saturating_add(ns(self.options.target)));
        }
        held.debiting.end();
    }

    fn try_debit(self: &Arc<Self>, held: &Arc<Held>, size: u64, now: u64) -> bool {
        let (Ok(runtime), Ok(open)) = (Handle::try_current(), Arc::clone(&self.debits).try_read_owned()) else {
            return false;
        };
        // Looked at with that in hand: whoever closes after this waits, and whoever closed before had it alone.
        if self.is_closed() {
            return false;
        }
        let debiting = Debiting { held: Arc::clone(held) };
        self.keep_house(&runtime);
        runtime.spawn(Arc::clone(self).ask(debiting, open, size, now));
        true
    }

    /// Until the tokens have arrived, and those that are too late are given back, it is `open`: whoever closes waits for that.
    async fn ask(self: Arc<Self>, debiting: Debiting, open: OwnedRwLockReadGuard<()>, size: u64, asked_at: u64) {
        let outcome = self.store.take_one(&debiting.held.ask.clone().costing(size)).await;
        let unused = self.answered(&debiting.held, outcome.ok(), asked_at);
        // The next debit need not wait for what is given back.
        drop(debiting);
        drop(self.give_back(unused).await);
        drop(open);
    }

    /// Takes in what the store answered, and says what is to be given back.
    fn answered(&self, held: &Held, outcome: Option<Outcome>, asked_at: u64) -> Vec<Adjustment> {
        let now = self.now();
        let since = self.since(now);
        let decision = outcome.and_then(Result::ok).filter(|decision| decision.source() == Source::Store);
        if let Some(decision) = &decision {
            held.see(decision, now);
            if let Some(receipt) = Receipt::of(&held.ask, decision).pop().filter(|_| decision.is_granted()) {
                let until = asked_at.saturating_add(ns(self.options.lifetime()));
                let unused = if now < until {
                    held.fill(Batch { receipt, asked_at }, until, since)
                } else {
                    // It was longer on its way than it may be used, as the next one would be.
                    held.shrink();
                    held.pause(now.saturating_add(ns(self.options.target)));
                    let unused = receipt.cost();
                    (asked_at >= since).then(|| receipt.refund(unused))
                };
                return unused.into_iter().collect();
            }
        }
        held.shrink();
        held.pause(now.saturating_add(ns(self.options.target)));
        // Nobody is to pass any more, by tokens that were taken before either.
        let blocked = decision.is_some_and(|decision| decision.mode() == Mode::Block);
        if blocked { held.retire(since).into_vec() } else { Vec::new() }
    }
}

impl Drop for Debiting {
    fn drop(&mut self) {
        self.held.debiting.end();
    }
}
