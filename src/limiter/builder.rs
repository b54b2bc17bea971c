use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;

use super::Limiter;
use super::policy::{Fallback, Policy};
use super::stack::{Layers, Stack};
use super::sweeper::Sweeper;
use super::wait::Lanes;
use crate::{Error, LeaseOptions, Rule, Store};

/// A [`Limiter`] to be, with what is not as usual: see [`Limiter::builder`].
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Fallback, Limiter, MemoryStore, Quota};
///
/// let jobs = Limiter::builder(MemoryStore::new())
///     .keep(20) // for people
///     .longest_wait(Duration::from_secs(5))
///     .fallback(Duration::from_millis(50), Fallback::Local(Quota::per_second(2).build()?))
///     .build(Quota::per_second(100))?;
/// # let _ = jobs;
/// # Ok::<(), tollgate::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "build it"]
pub struct LimiterBuilder<S: Store> {
    store: S,
    keep: u64,
    longest_wait: Duration,
    policy: Policy,
    layers: Layers,
    sweeper: Option<Arc<Sweeper>>,
}

impl<S: Store> LimiterBuilder<S> {
    pub(super) fn new(store: S) -> Self {
        Self {
            store,
            keep: 0,
            longest_wait: Duration::from_secs(30),
            policy: Policy::default(),
            layers: Layers::default(),
            sweeper: Some(Arc::default()),
        }
    }

    /// How many tokens must remain after each request: a limiter for batch jobs that keeps 20 leaves them for people.
    pub fn keep(self, keep: u64) -> Self {
        Self { keep, ..self }
    }

    /// How far ahead [`reserve`](Limiter::reserve) and [`wait`](Limiter::wait) may take tokens; 30 seconds if not said.
    /// Without a bound one caller could lock all others out.
    pub fn longest_wait(self, longest_wait: Duration) -> Self {
        Self { longest_wait, ..self }
    }

    /// Every call ends by then, and the store's failures are answered by `fallback`; if not said, a call ends when the
    /// store's does, and its failures are errors.
    pub fn fallback(self, deadline: Duration, fallback: Fallback) -> Self {
        Self { policy: Policy::new(deadline, fallback), ..self }
    }

    /// Makes a call for each request. If not said, requests that come while a call is under way go together in the next
    /// one: see [`Coalesce`](crate::Coalesce).
    pub fn without_coalescing(self) -> Self {
        Self { layers: Layers { coalesces: false, ..self.layers }, ..self }
    }

    /// Asks the store again after each denial. If not said, what was just denied is denied from memory for a second at
    /// most, and an attack costs the database next to nothing: see [`DenyCache`](crate::DenyCache).
    pub fn without_deny_cache(self) -> Self {
        Self { layers: Layers { denials: None, ..self.layers }, ..self }
    }

    /// Remembers the denials of so many keys at most; 65,536 if not said.
    pub fn most_denials(self, keys: usize) -> Self {
        Self { layers: Layers { denials: Some(keys), ..self.layers }, ..self }
    }

    /// Takes tokens of busy buckets ahead of time, and serves requests from them in this process: see
    /// [`Lease`](crate::Lease) for what that costs in exactness. [`close`](Limiter::close) the limiter before the process ends.
    pub fn lease(self, options: LeaseOptions) -> Self {
        Self { layers: Layers { lease: Some(options), ..self.layers }, ..self }
    }

    /// Leaves it to others to clear away what says nothing any more. A limiter does it by itself if not said: now and then
    /// a task of its own makes a few steps of [`Store::sweep`], and a failure of it disturbs nobody.
    pub fn without_sweep(self) -> Self {
        Self { sweeper: None, ..self }
    }

    /// The limiter. The rule is a [`Quota`](crate::Quota), the builder of one, a [`Window`](crate::Window), a text such as
    /// `10/s burst 20`, or a [`Rule`].
    ///
    /// # Errors
    ///
    /// If the figures make no quota.
    pub fn build<R>(self, rule: R) -> Result<Limiter<S>, Error>
    where
        R: TryInto<Rule>,
        Error: From<R::Error>,
    {
        let stack = Arc::new(Stack::new(self.store, self.layers, self.policy.deadline()));
        Ok(Limiter {
            lanes: Arc::new(Lanes::new(Arc::clone(&stack))),
            stack,
            rule: Arc::new(RwLock::new(rule.try_into()?)),
            keep: self.keep,
            longest_wait: self.longest_wait,
            policy: self.policy,
            sweeper: self.sweeper,
        })
    }
}
