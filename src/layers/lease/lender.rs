//! The tasks of a lease: prefetch tokens, give back expired tokens, and forget idle leases.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{OwnedRwLockReadGuard, RwLock};
use tokio::time::sleep;

use super::LeaseOptions;
use super::entry::{LeaseEntry, LeasedBatch, NoDebit, ns};
use super::keeper_flag::KeeperFlag;
use super::table::{KeyFrequency, LeaseTable};
use crate::clock::Clock;
use crate::model::{Adjusted, Adjustment, Checked, Decision, Error, Key, Mode, Outcome, Receipt, Source, Take};
use crate::store::{CallOptions, Store};
use crate::telemetry::{GaugeShare, LEASED};

/// The state that a lease shares with its tasks.
#[derive(Debug)]
pub(super) struct Lender<S, C> {
    pub(super) store: S,
    options: LeaseOptions,
    pub(super) table: LeaseTable,
    key_frequency: KeyFrequency,
    clock: C,
    began: i64,
    /// Held shared while tokens are requested or given back. Holding it alone means that no such task runs.
    debits: Arc<RwLock<()>>,
    closed: AtomicBool,
    /// Whether the housekeeping task runs.
    keeper_flag: KeeperFlag,
    /// The gauge of held tokens, set now and then and not at each use.
    gauge: Mutex<GaugeShare>,
}

impl<S: Store, C: Clock> Lender<S, C> {
    pub(super) fn new(store: S, options: LeaseOptions, clock: C) -> Self {
        Self {
            store,
            options,
            table: LeaseTable::new(),
            key_frequency: KeyFrequency::new(),
            began: clock.now(),
            clock,
            debits: Arc::default(),
            closed: AtomicBool::new(false),
            keeper_flag: KeeperFlag::default(),
            gauge: Mutex::new(GaugeShare::of(LEASED)),
        }
    }

    /// Nanoseconds since the lender began.
    #[inline]
    fn now(&self) -> u64 {
        self.clock.now().saturating_sub(self.began).max(0).unsigned_abs()
    }

    /// Tokens that were requested before this instant are not given back any more.
    fn refundable_since(&self, now: u64) -> u64 {
        now.saturating_sub(2 * ns(self.options.lifetime()))
    }

    /// Serves a request from the held tokens, and requests more in time.
    #[inline]
    pub(super) fn serve(self: &Arc<Self>, take: &Take) -> Option<Decision> {
        self.table.find(take, |entry| {
            let now = self.now();
            let (decision, is_low) = entry.serve(take, now)?;
            if is_low && entry.begin_debit(now) {
                self.debit(entry, take.cost, now);
            }
            Some(decision)
        })?
    }

    /// Requests more tokens after a request was not served.
    pub(super) fn prefetch(self: &Arc<Self>, take: &Take) {
        self.table.find(take, |entry| {
            let now = self.now();
            if entry.begin_debit(now) {
                self.debit(entry, take.cost, now);
            }
        });
    }

    /// Records the store's answer to a request that was not served.
    pub(super) fn note(self: &Arc<Self>, take: Checked<&Take>, outcome: &Outcome) {
        let Some(decision) = outcome.as_ref().ok().filter(|decision| decision.source() == Source::Store) else {
            return;
        };
        let now = self.now();
        let until = |decision: &Decision| {
            let wait = Some(decision.wait()).filter(|wait| decision.is_granted() && !wait.is_zero());
            wait.map(|wait| now.saturating_add(ns(wait)))
        };
        let queued_until = until(decision);
        // Records every wait, also of requests that no lease serves; with several buckets, only for those that cause it.
        for one in decision.each() {
            if let Some(until) = until(one) {
                self.table.each(take.limits[one.place()].key(), |entry| entry.queue_until(until));
            }
        }
        let noted = self.table.find(&take, |entry| {
            entry.update(decision, now);
            // A denied request can state any cost, so it does not count as demand.
            if decision.is_granted() {
                entry.count_store_grant(&take);
            }
        });
        if noted.is_some() || self.is_closed() {
            return;
        }
        let target = ns(self.options.target);
        // A request that took nothing needs no lease: its bucket is unlimited, or a mode decides.
        if take.lendable().is_some()
            && decision.grants().next().is_some()
            && let Some(frequency) = self.key_frequency.count(self.table.hash(take.key()), now / target)
        {
            let entry = Arc::new(LeaseEntry::new(take, frequency, now, target));
            entry.update(decision, now);
            if let Some(until) = queued_until {
                entry.queue_until(until);
            }
            // Begins the debit before other threads see the lease and could forget it.
            if entry.begin_debit(now) && self.table.add(&entry, self.options.max_keys) {
                // Housekeeping must also remove a lease that is never filled.
                if let Ok(runtime) = Handle::try_current() {
                    self.spawn_keeper(&runtime);
                }
                self.debit(&entry, take.cost, now);
            }
        }
    }

    /// Sets the gauge of held tokens.
    fn update_gauge(&self) {
        self.gauge.lock().set(usize::try_from(self.table.tokens()).unwrap_or(usize::MAX));
    }

    /// Takes no more tokens from now on.
    pub(super) fn stop(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Gives back the held tokens of a key and forgets its leases. An error is ignored.
    pub(super) async fn forget(&self, key: &Key) {
        drop(self.give_back(self.discard(key)).await);
    }

    /// Forgets the leases of a key, with the tokens in flight, and returns what could be given back.
    pub(super) fn discard(&self, key: &Key) -> Vec<Adjustment> {
        let since = self.refundable_since(self.now());
        self.table.remove(key).iter().flat_map(|entry| entry.retire(since)).collect()
    }

    pub(super) async fn close(&self) -> Result<u64, Error> {
        self.stop();
        let no_debit = self.debits.write().await;
        let since = self.refundable_since(self.now());
        let mut unused = Vec::new();
        self.table.retain(|entry| {
            unused.extend(entry.retire(since));
            false
        });
        drop(no_debit);
        self.update_gauge();
        self.give_back(unused).await
    }

    /// Gives tokens back, and returns how many. The call is never retried: on an error, the tokens count as used.
    async fn give_back(&self, unused: Vec<Adjustment>) -> Result<u64, Error> {
        if unused.is_empty() {
            return Ok(0);
        }
        let adjusted = self.store.adjust(&unused).await?;
        let tokens = adjusted.into_iter().map(|adjusted| match adjusted {
            Ok(Adjusted::Done(tokens)) => tokens.max(0).unsigned_abs(),
            _ => 0,
        });
        Ok(tokens.sum())
    }
}

/// A request for more tokens, one at a time for each lease. However it ends, the next one can begin.
struct DebitGuard {
    entry: Arc<LeaseEntry>,
}

impl<S: Store, C: Clock> Lender<S, C> {
    /// Requests more tokens in a task, if the lease should grow. The caller has begun the debit.
    fn debit(self: &Arc<Self>, entry: &Arc<LeaseEntry>, cost: u64, now: u64) {
        let size = entry.size(cost, now, &self.options);
        if size.is_ok_and(|size| self.try_debit(entry, size, now)) {
            return;
        }
        // Pauses unless the cost of this request was the reason, so that later requests do not compute the size again.
        if size != Err(NoDebit::TooLarge) {
            entry.pause(now.saturating_add(ns(self.options.target)));
        }
        entry.debiting.end();
    }

    fn try_debit(self: &Arc<Self>, entry: &Arc<LeaseEntry>, size: u64, now: u64) -> bool {
        let (Ok(runtime), Ok(open)) = (Handle::try_current(), Arc::clone(&self.debits).try_read_owned()) else {
            return false;
        };
        // Checked while holding `open`: a later `close` waits for it, and an earlier one has set the flag.
        if self.is_closed() {
            return false;
        }
        let debiting = DebitGuard { entry: Arc::clone(entry) };
        self.spawn_keeper(&runtime);
        runtime.spawn(Arc::clone(self).request(debiting, open, size, now));
        true
    }

    /// Holds `open` until the tokens have arrived and late ones are given back, so that `close` waits for both.
    async fn request(
        self: Arc<Self>,
        debiting: DebitGuard,
        open: OwnedRwLockReadGuard<()>,
        size: u64,
        requested_at: u64,
    ) {
        let debit = debiting.entry.debit.clone().costing(size);
        let outcome = self.store.take_one_checked(debit.as_ref(), CallOptions::default()).await;
        let unused = self.answered(&debiting.entry, outcome.ok(), requested_at);
        // The next debit need not wait for the refund.
        drop(debiting);
        drop(self.give_back(unused).await);
        drop(open);
    }

    /// Stores the tokens of an answer, and returns what to give back.
    fn answered(&self, entry: &LeaseEntry, outcome: Option<Outcome>, requested_at: u64) -> Vec<Adjustment> {
        let now = self.now();
        let since = self.refundable_since(now);
        let decision = outcome.and_then(Result::ok).filter(|decision| decision.source() == Source::Store);
        if let Some(decision) = &decision {
            entry.update(decision, now);
            if let Some(receipt) = Receipt::of(&entry.debit, decision).pop().filter(|_| decision.is_granted()) {
                let until = requested_at.saturating_add(ns(self.options.lifetime()));
                let unused = if now < until {
                    entry.fill(LeasedBatch { receipt, requested_at }, until, since)
                } else {
                    // The call took longer than the tokens' lifetime, as the next call would.
                    entry.shrink();
                    entry.pause(now.saturating_add(ns(self.options.target)));
                    let unused = receipt.cost();
                    (requested_at >= since).then(|| receipt.refund(unused))
                };
                return unused.into_iter().collect();
            }
        }
        entry.shrink();
        entry.pause(now.saturating_add(ns(self.options.target)));
        // In block mode no request passes, even by tokens that were taken before.
        let blocked = decision.is_some_and(|decision| decision.mode() == Mode::Block);
        if blocked { entry.retire(since).into_vec() } else { Vec::new() }
    }
}

impl Drop for DebitGuard {
    fn drop(&mut self) {
        self.entry.debiting.end();
    }
}

/// The task that gives back expired tokens and forgets idle leases. One runs while there are leases.
struct Keeper<S: Store, C: Clock> {
    lender: Weak<Lender<S, C>>,
    /// Whether the task still counts as running.
    runs: bool,
}

impl<S: Store, C: Clock> Lender<S, C> {
    /// Starts the housekeeping task, unless it runs.
    fn spawn_keeper(self: &Arc<Self>, runtime: &Handle) {
        if self.keeper_flag.begin() {
            runtime.spawn(Keeper { lender: Arc::downgrade(self), runs: true }.keep(self.options.lifetime() / 2));
        }
    }

    /// Forgets idle leases, and returns the expired tokens to give back.
    fn tidy(&self) -> Vec<Adjustment> {
        let now = self.now();
        let since = self.refundable_since(now);
        let mut unused = Vec::new();
        self.table.retain(|entry| {
            unused.extend(entry.retire_expired(now, since));
            let idle = entry.is_idle();
            // A debit begins only under the table's lock, so none begins now.
            !(idle && entry.debiting.is_over(|| entry.tokens() == 0))
        });
        unused
    }
}

impl<S: Store, C: Clock> Keeper<S, C> {
    async fn keep(mut self, every: Duration) {
        loop {
            sleep(every).await;
            let Some(lender) = self.lender.upgrade() else { return };
            // `close` waits for this refund. Once `close` has begun, it gives everything back itself.
            let Ok(_open) = Arc::clone(&lender.debits).try_read_owned() else { continue };
            let unused = lender.tidy();
            lender.update_gauge();
            // On an error, the tokens count as used.
            drop(lender.give_back(unused).await);
            if lender.keeper_flag.end(|| lender.table.len() == 0) {
                self.runs = false;
                return;
            }
        }
    }
}

impl<S: Store, C: Clock> Drop for Keeper<S, C> {
    /// If the runtime ends the task, another one can start.
    fn drop(&mut self) {
        if let Some(lender) = self.lender.upgrade().filter(|_| self.runs) {
            lender.keeper_flag.break_off();
        }
    }
}
