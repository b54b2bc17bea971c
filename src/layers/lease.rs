use std::sync::Arc;

use tokio::runtime::Handle;

use crate::clock::Clock;
use crate::model::{Adjusted, Adjustment, Error, HoldBack, Key, Outcome, Rule, Take, TakeError};
use crate::store::{Capabilities, Maintenance, Store};

mod books;
mod boot_clock;
mod debit;
mod heat;
mod held;
mod keeper;
mod keeping;
mod lender;
mod options;
mod slot;
mod table;

pub use boot_clock::BootClock;
pub use options::LeaseOptions;

use lender::Lender;

/// A store that takes tokens of busy buckets ahead of time, many at once, and serves requests from them in this process.
///
/// Tokens are taken from the store beneath before anybody uses them, in a task of its own and before those at hand run out.
/// When none are at hand, a request goes to the store by itself, and waits for nobody. So nothing is granted that was not
/// taken, and when tokens are scarce everything is decided in the store: the amount taken ahead is what the key uses in
/// [`LeaseOptions::target`], at most a quarter of what the store has left, and falls to nothing as that does.
///
/// **The bound.** What a process holds when a window begins, it may use within it. So any window of length `t` sees at most
/// capacity + rate × t + what all processes held when it began: for each key, rule and keep at most
/// [`LeaseOptions::most_tokens`] for each `Lease` (a limiter has one), in two batches as above. A period of an interval
/// quota likewise. Tokens are used within [`LeaseOptions::lifetime`], a second at most, on a clock that goes on while the
/// host sleeps: a process that was stopped uses none from before, but for a request that was being answered. What is not
/// used is given back, and if that is noticed too late, left to the refill. A process that dies has used what it held.
///
/// A reset, another plan or mode is seen when the tokens at hand have been used or have expired: within a second.
///
/// Requests that may wait are served if enough is held and nobody waits before them; they act at once. What was served from
/// a lease cannot be given back: it has no receipt, so cancelling or refunding its reservation gives back nothing. Requests
/// that are [refundable](Take::refundable), that have an id, that name several buckets, or that are under a sliding window are
/// the store's to decide. Nothing is taken
/// ahead from a [`Fallback`](crate::Fallback), or while a mode grants or denies whatever the tokens. Answers from a lease
/// have the source [`Lease`](crate::model::Source::Lease); what they say remains is what the store had left, and what is held here.
///
/// It is opt-in: hosts choose it where a bucket is asked thousands of times a second, by
/// [`LimiterBuilder::lease`](crate::LimiterBuilder::lease), which puts it above the [`Batcher`](crate::layers::Batcher), and whose
/// limiter gives back what it holds when it is [closed](crate::Limiter::close). A lease that is put together by hand lies below
/// the limiter's batcher: build that limiter [without batching](crate::LimiterBuilder::without_batching) and
/// [`close`](Self::close) the lease before the process ends. It needs a Tokio runtime.
///
/// ```
/// use tollgate::{layers::LeaseOptions, Limiter, MemoryStore};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tollgate::Error> {
/// // PgStore::from(pool), or another that processes share.
/// let limiter = Limiter::builder(MemoryStore::new()).lease(LeaseOptions::default()).build("100000/s")?;
/// assert!(limiter.allow("everybody").await?.is_granted());
/// limiter.close().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Lease<S: Store, C: Clock = BootClock> {
    lender: Arc<Lender<S, C>>,
}

impl<S: Store> Lease<S> {
    /// Over a store.
    pub fn new(store: S) -> Self {
        Self::with(store, LeaseOptions::default())
    }

    /// Over a store, with what is not as usual.
    pub fn with(store: S, options: LeaseOptions) -> Self {
        Self::with_clock(store, options, BootClock)
    }
}

impl<S: Store, C: Clock> Lease<S, C> {
    /// The same on a clock of the caller's: for tests.
    pub fn with_clock(store: S, options: LeaseOptions, clock: C) -> Self {
        Self { lender: Arc::new(Lender::new(store, options, clock)) }
    }

    /// How many tokens it holds, of all keys.
    #[must_use]
    pub fn held(&self) -> u64 {
        self.lender.table.held()
    }

    /// How many leases it has: one for each key, rule and keep that is busy.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lender.table.len()
    }

    /// Whether it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The store beneath.
    #[must_use]
    pub fn store(&self) -> &S {
        &self.lender.store
    }

    /// Gives back what it holds and what is on its way, and says how many tokens that is. From now on every request goes to
    /// the store.
    ///
    /// A lease that is dropped does the same in a task, if it is dropped within a runtime that goes on.
    ///
    /// # Errors
    ///
    /// If there is no answer. It is not asked again then: they may have been given back, and if not, they are used.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the tokens are given back or used.
    pub async fn close(&self) -> Result<u64, Error> {
        self.lender.close().await
    }
}

impl<S: Store, C: Clock> Drop for Lease<S, C> {
    fn drop(&mut self) {
        self.lender.stop();
        // No runtime any more: the process is ending, and the tokens are used.
        if let Ok(runtime) = Handle::try_current() {
            let lender = Arc::clone(&self.lender);
            runtime.spawn(async move { drop(lender.close().await) });
        }
    }
}

impl<S: Store, C: Clock> Store for Lease<S, C> {
    fn capabilities(&self) -> Capabilities {
        self.lender.store.capabilities()
    }

    /// Serves what it can, and asks the store for the rest in one call, in their order.
    async fn take(&self, takes: &[Take]) -> Result<Vec<Outcome>, Error> {
        let mut rest: Vec<Take> = Vec::new();
        let served: Vec<Option<Outcome>> = takes
            .iter()
            .map(|take| {
                // Nobody who would wait is served before another who has to.
                let waits = |other: &Take| !other.max_wait.is_zero() && other.key() == take.key();
                let behind = !take.max_wait.is_zero() && rest.iter().any(waits);
                let served = if behind { None } else { self.lender.serve(take) };
                if served.is_none() {
                    self.lender.miss(take);
                    rest.push(take.clone());
                }
                served.map(Ok)
            })
            .collect();
        let has_served = served.iter().any(Option::is_some);
        let answers = if rest.is_empty() { Ok(Vec::new()) } else { self.lender.store.take(&rest).await };
        let mut answers = answers.map_err(|error| error.after(has_served))?;
        for (take, outcome) in rest.iter().zip(&answers) {
            self.lender.note(take, outcome);
        }
        let mut answers = answers.drain(..);
        Ok(served.into_iter().filter_map(|served| served.or_else(|| answers.next())).collect())
    }

    fn try_take(&self, take: &Take) -> Option<Outcome> {
        self.lender.serve(take).map(Ok)
    }

    async fn adjust(&self, adjustments: &[Adjustment]) -> Result<Vec<Result<Adjusted, TakeError>>, Error> {
        self.lender.store.adjust(adjustments).await
    }

    /// Gives back what it holds of the key first, and serves nothing of it that was taken before.
    async fn hold_back(&self, key: &Key, rule: &Rule, hold: HoldBack) -> Result<bool, Error> {
        let _lowering = Lowering(&self.lender, key);
        self.lender.forget(key).await;
        self.lender.store.hold_back(key, rule, hold).await
    }

    fn maintenance(&self) -> Option<&dyn Maintenance> {
        self.lender.store.maintenance()
    }
}

/// A call that lowers a bucket. However it ends, dropped too, what was taken meanwhile may have been taken before: it serves
/// nobody, and is not given back, which would raise the bucket.
struct Lowering<'a, S: Store, C: Clock>(&'a Lender<S, C>, &'a Key);

impl<S: Store, C: Clock> Drop for Lowering<'_, S, C> {
    fn drop(&mut self) {
        self.0.discard(self.1);
    }
}
