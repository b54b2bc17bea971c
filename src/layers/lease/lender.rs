use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::RwLock;

use super::heat::Heat;
use super::held::{Held, ns};
use super::keeping::Keeping;
use super::options::LeaseOptions;
use super::table::Table;
use crate::clock::Clock;
use crate::model::{Adjusted, Adjustment, Decision, Error, Key, Outcome, Source, Take};
use crate::store::Store;
use crate::telemetry::{LEASED, Share};

/// What a lease and its tasks share.
#[derive(Debug)]
pub(super) struct Lender<S, C> {
    pub(super) store: S,
    pub(super) options: LeaseOptions,
    pub(super) table: Table,
    heat: Heat,
    clock: C,
    began: i64,
    /// Whoever asks for tokens shares it; whoever has it alone knows that nobody does.
    pub(super) debits: Arc<RwLock<()>>,
    closed: AtomicBool,
    /// Whether a task gives back what expires.
    pub(super) keeping: Keeping,
    /// The tokens that it holds, for those who watch: told now and then, not at each use.
    shown: Mutex<Share>,
}

impl<S: Store, C: Clock> Lender<S, C> {
    pub(super) fn new(store: S, options: LeaseOptions, clock: C) -> Self {
        Self {
            store,
            options,
            table: Table::new(),
            heat: Heat::new(),
            began: clock.now(),
            clock,
            debits: Arc::default(),
            closed: AtomicBool::new(false),
            keeping: Keeping::default(),
            shown: Mutex::new(Share::of(LEASED)),
        }
    }

    /// Nanoseconds since it began.
    #[inline]
    pub(super) fn now(&self) -> u64 {
        self.clock.now().saturating_sub(self.began).max(0).unsigned_abs()
    }

    /// What was asked for before that is not given back any more.
    pub(super) fn since(&self, now: u64) -> u64 {
        now.saturating_sub(2 * ns(self.options.lifetime()))
    }

    /// Serves a request from what is held, and asks for more in time.
    #[inline]
    pub(super) fn serve(self: &Arc<Self>, take: &Take) -> Option<Decision> {
        // The store says what is wrong with a request for nothing.
        if take.cost == 0 {
            return None;
        }
        self.table.find(take, |held| {
            let now = self.now();
            let (decision, low) = held.serve(take, now)?;
            if low && held.begin_debit(now) {
                self.debit(held, take.cost, now);
            }
            Some(decision)
        })?
    }

    /// Asks for more, as a request was not served.
    pub(super) fn miss(self: &Arc<Self>, take: &Take) {
        self.table.find(take, |held| {
            let now = self.now();
            if take.cost > 0 && held.begin_debit(now) {
                self.debit(held, take.cost, now);
            }
        });
    }

    /// Takes down what the store answered to a request that was not served.
    pub(super) fn note(self: &Arc<Self>, take: &Take, outcome: &Outcome) {
        let Some(decision) = outcome.as_ref().ok().filter(|decision| decision.source() == Source::Store) else {
            return;
        };
        let now = self.now();
        let until = |decision: &Decision| {
            let wait = Some(decision.wait()).filter(|wait| decision.is_granted() && !wait.is_zero());
            wait.map(|wait| now.saturating_add(ns(wait)))
        };
        let queued_until = until(decision);
        // Whoever waits, also those whom no lease serves; of several buckets, for those that it waits for.
        for one in decision.each() {
            if let Some(until) = until(one) {
                self.table.each(take.limits[one.limit()].key(), |held| held.queue_until(until));
            }
        }
        let noted = self.table.find(take, |held| {
            held.see(decision, now);
            // Of what was denied, as much as anybody likes could be asked for.
            if decision.is_granted() {
                held.miss(take);
            }
        });
        if noted.is_some() || self.is_closed() {
            return;
        }
        let target = ns(self.options.target);
        // What took nothing is not worth a lease: an unlimited bucket, or one whose mode decides.
        if take.lendable().is_some()
            && decision.taken().next().is_some()
            && let Some(often) = self.heat.count(self.table.hash(take.key()), now / target)
        {
            let held = Arc::new(Held::new(take, often, now, target));
            held.see(decision, now);
            if let Some(until) = queued_until {
                held.queue_until(until);
            }
            // Begun before others see it, who might forget it.
            if held.begin_debit(now) && self.table.add(&held, self.options.most_keys) {
                // Also of one that is never filled: else it would have its place for ever.
                if let Ok(runtime) = Handle::try_current() {
                    self.keep_house(&runtime);
                }
                self.debit(&held, take.cost, now);
            }
        }
    }

    /// Tells those who watch how many tokens it holds.
    pub(super) fn show(&self) {
        self.shown.lock().set(usize::try_from(self.table.held()).unwrap_or(usize::MAX));
    }

    /// From now on nothing more is taken.
    pub(super) fn stop(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Gives back what is held of a key, as far as there is an answer, and starts anew with it.
    pub(super) async fn forget(&self, key: &Key) {
        drop(self.give_back(self.discard(key)).await);
    }

    /// Forgets what is held of a key, and what is on its way, and says what could be given back of it.
    pub(super) fn discard(&self, key: &Key) -> Vec<Adjustment> {
        let since = self.since(self.now());
        self.table.remove(key).iter().flat_map(|held| held.retire(since)).collect()
    }

    pub(super) async fn close(&self) -> Result<u64, Error> {
        self.stop();
        let nobody_asks = self.debits.write().await;
        let since = self.since(self.now());
        let mut unused = Vec::new();
        self.table.retain(|held| {
            unused.extend(held.retire(since));
            false
        });
        drop(nobody_asks);
        self.show();
        self.give_back(unused).await
    }

    /// Gives tokens back, and says how many. It is never asked twice: what cannot be given back is used.
    pub(super) async fn give_back(&self, unused: Vec<Adjustment>) -> Result<u64, Error> {
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
