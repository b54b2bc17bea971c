use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::sleep;

use super::lender::Lender;
use crate::clock::Clock;
use crate::model::Adjustment;
use crate::store::Store;

/// The task that gives back what expires, and forgets leases that nobody uses. There is one while there are leases.
struct Keeper<S: Store, C: Clock> {
    lender: Weak<Lender<S, C>>,
    /// Whether it is the one that runs.
    runs: bool,
}

impl<S: Store, C: Clock> Lender<S, C> {
    /// Starts the task, if it does not run.
    pub(super) fn keep_house(self: &Arc<Self>, runtime: &Handle) {
        if self.keeping.begin() {
            runtime.spawn(Keeper { lender: Arc::downgrade(self), runs: true }.keep(self.options.lifetime() / 2));
        }
    }

    /// Forgets leases that are not used, and says what is to be given back of the others.
    fn tidy(&self) -> Vec<Adjustment> {
        let now = self.now();
        let since = self.since(now);
        let mut unused = Vec::new();
        self.table.retain(|held| {
            unused.extend(held.retire_expired(now, since));
            let idle = held.is_idle();
            // A debit begins while the lease is in the table: so none begins now.
            !(idle && held.debiting.is_over(|| held.tokens() == 0))
        });
        unused
    }
}

impl<S: Store, C: Clock> Keeper<S, C> {
    async fn keep(mut self, every: Duration) {
        loop {
            sleep(every).await;
            let Some(lender) = self.lender.upgrade() else { return };
            // Whoever closes waits for what is given back here; once somebody does, all is theirs to give back.
            let Ok(_open) = Arc::clone(&lender.debits).try_read_owned() else { continue };
            let unused = lender.tidy();
            lender.show();
            // What cannot be given back is used.
            drop(lender.give_back(unused).await);
            if lender.keeping.end(|| lender.table.len() == 0) {
                self.runs = false;
                return;
            }
        }
    }
}

impl<S: Store, C: Clock> Drop for Keeper<S, C> {
    /// If its runtime ends, another may start it.
    fn drop(&mut self) {
        if let Some(lender) = self.lender.upgrade().filter(|_| self.runs) {
            lender.keeping.break_off();
        }
    }
}
