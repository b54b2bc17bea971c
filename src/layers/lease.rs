//! The lease: serves requests from tokens that a background task prefetches.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;

use crate::clock::Clock;
use crate::model::{Adjusted, Adjustment, Checked, Error, Key, Outcome, Rule, Take, TakeError, Throttle};
use crate::store::{CallOptions, Capabilities, Maintenance, Store, sealed};

mod boot_clock;
mod entry;
mod keeper_flag;
mod lender;
mod table;

pub use boot_clock::BootClock;

use lender::Lender;

/// A store that prefetches tokens of busy buckets and serves requests from them in this process.
///
/// A background task takes tokens from the underlying store before the held tokens run out. When no token is held, a request
/// goes to the store at once. So every granted token was taken before. A batch is what the key uses in
/// [`LeaseOptions::target`], at most a quarter of the tokens left in the store. So when tokens are scarce, the batches shrink to
/// nothing and the store decides every request.
///
/// **The bound.** A process can use the tokens that it holds when a window begins within that window. So any window of length
/// `t` sees at most capacity + rate × t + the tokens that all processes held when it began. For each key, rule and minimum
/// remaining, a `Lease` holds at most [`LeaseOptions::max_tokens`], in two batches. A limiter has one `Lease`. The bound also
/// holds for a period of an interval quota.
///
/// Tokens expire after [`LeaseOptions::lifetime`], a second at most, on a clock that goes on while the host sleeps. A process
/// that was stopped uses no older tokens, except for a request that it was answering. Unused tokens are given back. If their
/// expiry is noticed too late, the refill replaces them. The held tokens of a process that dies count as used.
///
/// A reset, another plan or another mode takes effect when the held tokens are used or expired: within a second.
///
/// A request that can wait is served, without a wait, if enough tokens are held and no earlier request waits. Tokens of a lease
/// have no receipt, so cancelling or refunding a reservation gives none back. The store decides every request that is
/// [refundable](Take::refundable), has an id, names several buckets or is under a sliding window. No tokens are prefetched from a
/// [`Fallback`](crate::Fallback), or while a mode grants or denies every request. Answers from a lease have the source
/// [`Lease`](crate::model::Source::Lease). Their remaining tokens are the store's and the held ones.
///
/// Use it where a bucket gets thousands of requests a second, by [`LimiterBuilder::lease`](crate::LimiterBuilder::lease). That
/// method puts the lease above the [`Batcher`](crate::layers::Batcher), and [closing](crate::Limiter::close) the limiter gives the
/// tokens back. A lease that you build by hand lies below the limiter's batcher: build the limiter
/// [without batching](crate::LimiterBuilder::without_batching), and [`close`](Self::close) the lease before the process ends. A
/// lease needs a Tokio runtime.
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
    /// Creates a lease over a store, with the default options.
    pub fn new(store: S) -> Self {
        Self::with_options(store, LeaseOptions::default())
    }

    /// Creates a lease over a store, with these options.
    pub fn with_options(store: S, options: LeaseOptions) -> Self {
        Self::with_clock(store, options, BootClock)
    }
}

impl<S: Store, C: Clock> Lease<S, C> {
    /// Creates a lease on another clock, for tests.
    pub fn with_clock(store: S, options: LeaseOptions, clock: C) -> Self {
        Self { lender: Arc::new(Lender::new(store, options, clock)) }
    }

    /// Returns the number of tokens that the lease holds, of all keys.
    #[must_use]
    pub fn leased_tokens(&self) -> u64 {
        self.lender.table.tokens()
    }

    /// Returns the number of combinations of key, rule and minimum remaining for which the lease holds tokens.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lender.table.len()
    }

    /// Returns whether the lease holds tokens for no key.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the underlying store.
    #[must_use]
    pub fn store(&self) -> &S {
        &self.lender.store
    }

    /// Gives back all held tokens and those in flight, and returns how many. From now on every request goes to the store.
    ///
    /// Dropping a lease does the same in a task, provided that a Tokio runtime goes on.
    ///
    /// # Errors
    ///
    /// Returns an error if the store does not answer. The call is not retried: the tokens may have been given back, and
    /// otherwise count as used.
    ///
    /// # Cancel safety
    ///
    /// If dropped, the tokens are given back or count as used.
    pub async fn close(&self) -> Result<u64, Error> {
        self.lender.close().await
    }
}

impl<S: Store, C: Clock> Drop for Lease<S, C> {
    fn drop(&mut self) {
        self.lender.stop();
        // Without a runtime the process is ending, and the tokens count as used.
        if let Ok(runtime) = Handle::try_current() {
            let lender = Arc::clone(&self.lender);
            runtime.spawn(async move { drop(lender.close().await) });
        }
    }
}

impl<S: Store, C: Clock> sealed::Sealed for Lease<S, C> {}

impl<S: Store, C: Clock> Store for Lease<S, C> {
    fn capabilities(&self) -> Capabilities {
        self.lender.store.capabilities()
    }

    /// Serves requests from the held tokens, and calls the store once for the others, in their order.
    async fn take_checked(&self, takes: Checked<&[Take]>, options: CallOptions) -> Result<Vec<Outcome>, Error> {
        let mut rest: Checked<Vec<Take>> = Checked::default();
        let served: Vec<Option<Outcome>> = takes
            .iter()
            .map(|take| {
                // No request that can wait overtakes an earlier one of its key that the store decides.
                let waits = |other: &Take| !other.max_wait.is_zero() && other.key() == take.key();
                let is_behind = !take.max_wait.is_zero() && rest.iter().any(waits);
                let served = if is_behind { None } else { self.lender.serve(&take) };
                if served.is_none() {
                    self.lender.prefetch(&take);
                    rest.push(take.cloned());
                }
                served.map(Ok)
            })
            .collect();
        let has_served = served.iter().any(Option::is_some);
        let answers = if rest.is_empty() {
            Ok(Vec::new())
        } else {
            self.lender.store.take_checked(rest.as_slice(), options).await
        };
        let mut answers = answers.map_err(|error| error.unknown_if_partial(has_served))?;
        for (take, outcome) in rest.as_slice().iter().zip(&answers) {
            self.lender.note(take, outcome);
        }
        let mut answers = answers.drain(..);
        Ok(served.into_iter().filter_map(|served| served.or_else(|| answers.next())).collect())
    }

    async fn take_one_checked(&self, take: Checked<&Take>, options: CallOptions) -> Result<Outcome, Error> {
        if let Some(decision) = self.lender.serve(&take) {
            return Ok(Ok(decision));
        }
        self.lender.prefetch(&take);
        let outcome = self.lender.store.take_one_checked(take, options).await?;
        self.lender.note(take, &outcome);
        Ok(outcome)
    }

    fn try_take(&self, take: Checked<&Take>) -> Option<Outcome> {
        self.lender.serve(&take).map(Ok)
    }

    async fn adjust_with(
        &self,
        adjustments: &[Adjustment],
        options: CallOptions,
    ) -> Result<Vec<Result<Adjusted, TakeError>>, Error> {
        self.lender.store.adjust_with(adjustments, options).await
    }

    /// Gives back the held tokens of the key first, and serves no token that was taken before.
    async fn throttle(&self, key: &Key, rule: &Rule, throttle: Throttle) -> Result<bool, Error> {
        let _lowering = ThrottleGuard(&self.lender, key);
        self.lender.forget(key).await;
        self.lender.store.throttle(key, rule, throttle).await
    }

    fn maintenance(&self) -> Option<&dyn Maintenance> {
        self.lender.store.maintenance()
    }
}

/// A call that lowers a bucket. When it ends or is dropped, it discards the tokens that were taken meanwhile. They may have
/// been taken before the bucket was lowered, and a refund would raise it.
struct ThrottleGuard<'a, S: Store, C: Clock>(&'a Lender<S, C>, &'a Key);

impl<S: Store, C: Clock> Drop for ThrottleGuard<'_, S, C> {
    fn drop(&mut self) {
        self.0.discard(self.1);
    }
}

/// How many tokens a [`Lease`] prefetches.
///
/// ```
/// use std::time::Duration;
/// use tollgate::layers::LeaseOptions;
///
/// let options = LeaseOptions::default().target(Duration::from_millis(50)).max_tokens(1000);
/// assert_eq!(options.lifetime(), Duration::from_millis(250));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "give it to a lease"]
pub struct LeaseOptions {
    target: Duration,
    max_tokens: u64,
    max_keys: usize,
}

impl LeaseOptions {
    /// Sets how long a batch of tokens should last, from a millisecond to a second. Default: 100 ms.
    ///
    /// Each busy key costs about two calls of the store in that time, regardless of its rate. So the target should be
    /// several times the duration of a call.
    pub fn target(self, target: Duration) -> Self {
        Self { target: target.clamp(Duration::from_millis(1), MAX_LIFETIME), ..self }
    }

    /// Sets how many tokens the lease holds at most for each key, rule and minimum remaining, up to 16 million. Default: a
    /// million.
    pub fn max_tokens(self, max_tokens: u64) -> Self {
        Self { max_tokens: max_tokens.min(entry::MAX_SLOT_TOKENS), ..self }
    }

    /// Sets for how many combinations of key, rule and minimum remaining the lease holds tokens at most. Default: 1000.
    ///
    /// The first busy keys keep their places until they are idle.
    pub fn max_keys(self, max_keys: usize) -> Self {
        Self { max_keys, ..self }
    }

    /// Returns the time for which tokens can be used after the request for them: five times the target, at most a second.
    #[must_use]
    pub fn lifetime(&self) -> Duration {
        (self.target * 5).min(MAX_LIFETIME)
    }
}

impl Default for LeaseOptions {
    fn default() -> Self {
        Self { target: Duration::from_millis(100), max_tokens: 1_000_000, max_keys: 1000 }
    }
}

/// The time within which an operator's change takes effect.
const MAX_LIFETIME: Duration = Duration::from_secs(1);
