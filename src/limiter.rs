//! Limits by key over any store: the limiter, its builder, and reservations.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use crate::admin::{AdminError, BucketLevel, fixed_level};
use crate::model::{
    Adjusted, Adjustment, Checked, Error, Key, Limit, Mode, Rule, Take, TakeError, Throttle, ThrottleError, WindowLevel,
};
use crate::store::interface::expand;
use crate::store::{AnyStore, Maintenance, Store};
use crate::telemetry::Decisions;

pub(crate) mod bound;
pub(crate) mod builder;
mod circuit_breaker;
mod denial_reporter;
pub mod middleware;
pub(crate) mod policy;
pub(crate) mod reservation;
mod settings;
mod stack;
#[cfg(feature = "stream")]
pub mod stream;
mod sweeper;
mod take;
mod usage_recorder;

use bound::Bound;
use builder::LimiterBuilder;
use denial_reporter::DenialReporter;
use policy::{Fallback, Policy};
use reservation::adjust_each;
use settings::{CurrentMode, CurrentRule};
use stack::Stack;
use sweeper::Sweeper;
use usage_recorder::UsageRecorder;

/// Limits by key over any store, with three methods: [`allow`](Self::allow), [`reserve`](Self::reserve) and [`wait`](Self::wait).
///
/// When a bucket is empty, `allow` denies, `reserve` returns how long to wait, and `wait` waits. Each takes all tokens in one call
/// of the store, or none.
///
/// All limiters over one store, in all processes, share the bucket of a key. Limiters with different rules would keep changing
/// its limits, so let keys name what they limit (`mail:42`). Clones are the same limiter. A `Limiter` type without a store
/// parameter is over [`AnyStore`].
///
/// ```
/// use tollgate::{Limiter, MemoryStore, Quota};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tollgate::Error> {
/// let limiter = Limiter::new(MemoryStore::new(), Quota::per_second(1000).burst(10))?;
/// if limiter.allow("user:42").await?.is_granted() {
///     // serve the request
/// }
/// if limiter.wait("user:42").await?.is_granted() {
///     // it is this request's turn
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Limiter<S: Store = AnyStore> {
    stack: Arc<Stack<S>>,
    rule: Arc<CurrentRule>,
    min_remaining: u64,
    max_wait: Duration,
    policy: Policy,
    mode: Arc<CurrentMode>,
    decisions: Arc<Decisions>,
    denials: Option<Arc<DenialReporter>>,
    sweeper: Option<Arc<Sweeper>>,
    usage: Option<Arc<UsageRecorder>>,
}

impl<S: Store> Limiter<S> {
    /// Creates a limiter over a store. The rule is a [`Quota`](crate::Quota), a [`QuotaBuilder`](crate::model::QuotaBuilder), a
    /// [`Window`](crate::Window), a text such as `10/s burst 20`, or a [`Rule`].
    ///
    /// The limiter has no fallback: while the database does not answer, each call waits for the store's deadline (default: 5 s) and
    /// then fails. [`LimiterBuilder::fallback`] answers sooner.
    ///
    /// # Errors
    ///
    /// Returns an error if the rule is not valid.
    pub fn new<R>(store: S, rule: R) -> Result<Self, Error>
    where
        R: TryInto<Rule>,
        Error: From<R::Error>,
    {
        Self::builder(store).build(rule)
    }

    /// Returns a builder for a limiter with non-default settings, such as a [fallback](LimiterBuilder::fallback).
    pub fn builder(store: S) -> LimiterBuilder<S> {
        LimiterBuilder::new(store)
    }

    /// Returns the deadline of each call, if the limiter has one.
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        self.policy.deadline()
    }

    /// Returns a limiter that differs from this one in its [deadline](LimiterBuilder::deadline). Both share everything else: calls,
    /// caches, the circuit breaker, the rule and the mode.
    ///
    /// It costs no more than a clone, so a server can have one for each request: the caller's deadline.
    #[must_use]
    pub fn with_deadline(&self, deadline: Duration) -> Self {
        Self { policy: self.policy.with_deadline(deadline), ..self.clone() }
    }

    /// Returns a limiter that differs from this one in its [fallback](LimiterBuilder::fallback), and counts its answers by itself.
    /// Both share everything else: calls, caches, the circuit breaker, the rule and the mode. `None`: failures are errors.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Fallback, Limiter, MemoryStore};
    ///
    /// let strict = Limiter::new(MemoryStore::new(), "10/s")?; // or a store in a database
    /// let lenient = strict.with_fallback(Fallback::Open);
    /// # let _ = lenient;
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    #[must_use]
    pub fn with_fallback(&self, fallback: impl Into<Option<Fallback>>) -> Self {
        Self { policy: self.policy.with_fallback(fallback.into()), ..self.clone() }
    }

    /// Returns whether the [circuit breaker](LimiterBuilder::without_circuit_breaker) is open while a request tests the store. Reads and
    /// adjustments call the store all the same: skip those that can wait.
    #[must_use]
    pub fn is_circuit_open(&self) -> bool {
        self.policy.is_circuit_open()
    }

    /// Returns how many times the fallback answered.
    #[must_use]
    pub fn fallback_count(&self) -> u64 {
        self.policy.count()
    }

    /// Returns the current rule.
    #[must_use]
    pub fn rule(&self) -> Rule {
        self.rule.get()
    }

    /// Changes the rule for this limiter and its clones, from the next request on. Buckets keep their tokens, up to the new
    /// capacity.
    ///
    /// Limiters of other processes keep their rules. A [`Rule::Plan`] changes for all of them at once.
    ///
    /// # Errors
    ///
    /// Returns an error if the rule is not valid.
    pub fn set_rule<R>(&self, rule: R) -> Result<(), Error>
    where
        R: TryInto<Rule>,
        Error: From<R::Error>,
    {
        self.rule.set(rule.try_into()?);
        Ok(())
    }

    /// Returns the mode of this limiter itself.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.mode.get()
    }

    /// Sets the mode of this limiter and its clones, from the next request on, in addition to the mode in the store. Works
    /// without a database.
    ///
    /// [`Off`](Mode::Off) grants every request and [`Block`](Mode::Block) denies every request, both without a call of the store. In
    /// [`Shadow`](Mode::Shadow) the store decides, denied requests pass, and no request waits. Limiters of other processes keep
    /// their modes: [`Admin::set_mode`](crate::Admin::set_mode) sets the mode of all processes.
    pub fn set_mode(&self, mode: Mode) {
        self.mode.set(mode);
    }

    /// Returns this limiter, bound to one key.
    ///
    /// # Errors
    ///
    /// Returns an error if the text is not a valid [`Key`].
    pub fn bind<K>(&self, key: K) -> Result<Bound<S>, Error>
    where
        K: TryInto<Key>,
        Error: From<K::Error>,
    {
        Ok(Bound { limiter: self.clone(), key: key.try_into()? })
    }

    /// Lowers a key's bucket to the level that an upstream states, such as one that answers 429. Returns whether the bucket
    /// held more. Applies to every process that shares the bucket.
    ///
    /// The bucket is never raised, so repeated calls are safe. Granted requests keep their scheduled times, and tokens that they
    /// give back by a cancellation, refund or settlement are available again. Tokens that this process has
    /// [prefetched](LimiterBuilder::lease) are given back first. Other processes use theirs within a second.
    ///
    /// # Errors
    ///
    /// Returns an error if the rule is a sliding window or unlimited, or if a bucket that never refills is throttled for a time
    /// alone. Also if there is no answer; then a [local fallback](crate::Fallback::Local) of this process is throttled.
    pub async fn throttle<K>(&self, key: K, throttle: Throttle) -> Result<bool, Error>
    where
        K: TryInto<Key>,
        Error: From<K::Error>,
    {
        self.throttle_under(&Limit::new(key.try_into()?, self.rule()), true, throttle).await
    }

    /// Lowers a bucket under another limit than the limiter's, such as an additional limit of a request. See
    /// [`throttle`](Self::throttle).
    ///
    /// Changes nothing if the limiter's own [mode](Self::set_mode) is [`Off`](Mode::Off) or [`Block`](Mode::Block).
    ///
    /// # Errors
    ///
    /// As for [`throttle`](Self::throttle).
    pub async fn throttle_limit(&self, limit: &Limit, throttle: Throttle) -> Result<bool, Error> {
        let own = limit.local_quota().is_none() && *limit.rule() == self.rule();
        self.throttle_under(limit, own, throttle).await
    }

    /// Lowers the bucket of a limit.
    async fn throttle_under(
        &self,
        limit: &Limit,
        is_limiters_rule: bool,
        mut throttle: Throttle,
    ) -> Result<bool, Error> {
        let limit = &limit.first();
        let (key, rule) = (limit.key(), limit.rule());
        if CurrentMode::answer(self.mode()).is_some() {
            return Ok(false);
        }
        let lowering = async {
            let lowered = self.stack.throttle(key, rule, throttle).await;
            // The bucket cannot be lowered for a time, but to a number of tokens.
            let (Err(Error::Throttle(ThrottleError::NeverRefills(_))), Some(remaining)) =
                (&lowered, throttle.get_remaining())
            else {
                return lowered;
            };
            throttle = Throttle::remaining(remaining);
            self.stack.throttle(key, rule, throttle).await
        };
        let lowered = self.policy.within_deadline(pin!(lowering)).await;
        self.decisions.throttled(key, throttle, lowered.as_ref().copied());
        if let Some(fallback) = lowered.as_ref().err().and_then(|error| self.policy.fallback_for(error)) {
            fallback.throttle(limit, is_limiters_rule, throttle);
        }
        lowered
    }

    /// Takes `tokens` that were used already, also if the bucket holds fewer. The bucket then owes tokens, and denies requests until
    /// it has refilled.
    ///
    /// Use it where the cost is known only afterwards, such as the tokens of a stream: take one token before, and charge the others
    /// at the end. A charge is never denied, regardless of the store's modes. It does nothing if the limiter's own
    /// [mode](Self::set_mode) is off or block, or if the bucket does not exist and its mode is off. With several limits in the plan or rule, charges those without a
    /// [cost of their own](crate::model::NamedLimit::cost). The debt ends after 366 days at most. A quota that never refills owes
    /// nothing: its bucket is empty then. The [count of grants](BucketLevel::granted) includes all tokens.
    ///
    /// ```
    /// use tollgate::{Limiter, MemoryStore, Quota};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tollgate::Error> {
    /// let limiter = Limiter::new(MemoryStore::new(), Quota::per_minute(1000))?;
    /// assert!(limiter.allow("user:42").await?.is_granted());
    /// limiter.charge("user:42", 1200).await?; // the stream had 1201 tokens
    /// assert!(!limiter.allow("user:42").await?.is_granted());
    /// assert_eq!(limiter.peek("user:42").await?.available(), -201);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an error if the text is not a valid [`Key`], `tokens` is 0, or the key is under a sliding window or unlimited. Also if
    /// there is no answer: then the tokens may have been charged, unless the error rules that out. The fallback does not apply.
    ///
    /// # Cancel safety
    ///
    /// If dropped, the charge goes on in a task, which [`close`](Self::close) waits for.
    pub async fn charge<K>(&self, key: K, tokens: u64) -> Result<(), Error>
    where
        K: TryInto<Key>,
        Error: From<K::Error>,
    {
        self.charge_request(&self.take(key.try_into()?, tokens)).await.map(drop)
    }

    /// Charges the cost of a request that you build, for instance with an [id](Take::id). Returns whether it was charged: false if a
    /// charge with this id was made within a day, or if the limiter's own mode is off or block. A request that states
    /// [costs with names](Take::cost_of) charges the limits that count them, and no others.
    ///
    /// # Errors
    ///
    /// As for [`charge`](Self::charge). Also if the id is that of a granted request. After an unknown outcome, repeat a charge with
    /// an id.
    ///
    /// # Cancel safety
    ///
    /// As for [`charge`](Self::charge).
    pub async fn charge_request(&self, take: &Take) -> Result<bool, Error> {
        if CurrentMode::answer(self.mode()).is_some() {
            return Ok(false);
        }
        let expanded = self.policy.within_deadline(pin!(expand(self.store(), take))).await?;
        let take = expanded.as_ref().unwrap_or(take).chargeable()?;
        Checked::try_from(&take)?;
        let is_charged_to = |limit: &&Limit| !matches!(limit.mode, Mode::Off | Mode::Block);
        let mut left: Vec<&Limit> = take.limits().filter(is_charged_to).collect();
        let mut is_charged = !left.is_empty();
        // A missing bucket is full. The sweep can delete it once more before the charge.
        for _ in 0..MAX_CHARGES {
            let charges = left.iter().map(|limit| Adjustment::charge_of(limit, take.get_id()));
            let results = adjust_each(&self.stack, charges.collect::<Result<Vec<_>, _>>()?).await?;
            let mut missing = Vec::new();
            for (limit, result) in left.into_iter().zip(results) {
                match result {
                    Err(TakeError::UnknownBucket(_)) if *limit.rule() != Rule::Provisioned => missing.push(limit),
                    result => is_charged &= !matches!(result?, Adjusted::Repeated),
                }
            }
            for limit in &missing {
                // Creates the bucket: it holds no more than this already.
                let full = Throttle::remaining(u64::MAX);
                self.policy.within_deadline(pin!(self.stack.throttle(limit.key(), limit.rule(), full))).await?;
            }
            left = missing;
            if left.is_empty() {
                return Ok(is_charged);
            }
        }
        // The mode is off, in which requests create no bucket.
        Ok(is_charged)
    }

    /// Reads a key's tokens without taking any: see [`BucketLevel::available`], which is negative if requests wait for them.
    ///
    /// With several limits, reads the bucket with the fewest tokens: see [`peek_each`](Self::peek_each) for all.
    ///
    /// An unused bucket is full. After [`set_rule`](Self::set_rule) or a change of the plan, the level is what the next request
    /// would find: until then the tokens come as before, up to the new capacity. Tokens that this process has
    /// [prefetched](LimiterBuilder::lease) are not in the level. Makes two calls of the store.
    ///
    /// ```
    /// use tollgate::{Limiter, MemoryStore, Quota};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tollgate::Error> {
    /// let limiter = Limiter::new(MemoryStore::new(), Quota::per_hour(10))?;
    /// assert_eq!(limiter.peek("user:42").await?.available(), 10);
    /// let _ = limiter.allow_n("user:42", 3).await?;
    /// assert_eq!(limiter.peek("user:42").await?.available(), 7);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an error if the text is not a valid [`Key`], or if the rule is a sliding window (see
    /// [`peek_window`](Self::peek_window)). Also if the plan or the provisioned bucket does not exist, the store cannot report
    /// levels, the role may not read, or there is no answer. The fallback does not apply.
    pub async fn peek<K>(&self, key: K) -> Result<BucketLevel, AdminError>
    where
        K: TryInto<Key>,
        Error: From<K::Error>,
    {
        self.peek_limit(&Limit::new(key.try_into().map_err(Error::from)?, self.rule())).await
    }

    /// Reads a bucket under another limit than the limiter's, such as a client's plan or an additional limit of a request. See
    /// [`peek`](Self::peek).
    ///
    /// # Errors
    ///
    /// As for [`peek`](Self::peek).
    #[expect(clippy::missing_panics_doc, reason = "a limit has a bucket")]
    pub async fn peek_limit(&self, limit: &Limit) -> Result<BucketLevel, AdminError> {
        let tightest = self.peek_each(limit).await?.into_iter().min_by_key(BucketLevel::available);
        Ok(tightest.expect("a limit has a bucket"))
    }

    /// Reads the bucket of each limit of a plan, or of a rule with several limits. See [`peek`](Self::peek).
    ///
    /// # Errors
    ///
    /// As for [`peek`](Self::peek).
    pub async fn peek_each(&self, limit: &Limit) -> Result<Vec<BucketLevel>, AdminError> {
        let take = Take::from(limit.clone());
        let expanded =
            self.policy.within_deadline(pin!(expand(self.store(), &take))).await.map_err(AdminError::from)?;
        let mut levels = Vec::new();
        for limit in expanded.as_ref().unwrap_or(&take).limits() {
            let (key, rule) = (limit.key(), limit.rule());
            levels.push(match fixed_level(key, rule) {
                Some(level) => level?,
                None => self.policy.within_deadline(pin!(self.maintenance()?.level(key, rule))).await?,
            });
        }
        Ok(levels)
    }

    /// Reads the counts of a key's sliding window without counting: see [`WindowLevel::available`], which is negative if requests
    /// wait.
    ///
    /// An unused window has no counts. The level has the limits that the store knows: another rule of the limiter shows after the
    /// first request under it.
    ///
    /// ```
    /// use tollgate::{Limiter, MemoryStore};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tollgate::Error> {
    /// let limiter = Limiter::new(MemoryStore::new(), "10 in 60s at 5s")?;
    /// let _ = limiter.allow_n("user:42", 3).await?;
    /// assert_eq!(limiter.peek_window("user:42").await?.available(), 7);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an error if the text is not a valid [`Key`], or if the rule is not a sliding window. Also if the store cannot
    /// report levels, the role may not read, or there is no answer. The fallback does not apply.
    pub async fn peek_window<K>(&self, key: K) -> Result<WindowLevel, AdminError>
    where
        K: TryInto<Key>,
        Error: From<K::Error>,
    {
        let key = key.try_into().map_err(Error::from)?;
        let Rule::Window(window) = self.rule() else { return Err(AdminError::NoWindow(key)) };
        self.policy.within_deadline(pin!(self.maintenance()?.window_level(&key, &window))).await
    }

    fn maintenance(&self) -> Result<&dyn Maintenance, AdminError> {
        self.store().maintenance().ok_or(AdminError::Unsupported)
    }

    /// Gives back [prefetched](LimiterBuilder::lease) tokens, and returns how many. From then on every request goes to the store.
    /// Reports the [counted](LimiterBuilder::count_denials) denials to the store.
    ///
    /// Ends when the tokens of cancelled requests are given back, answers are delivered and the limiter's tasks have ended. If
    /// requests go on, ends after ten seconds. So stop taking requests first, then close the limiters, and then the pool.
    ///
    /// [Without batching](LimiterBuilder::without_batching), calls run in the tasks of their callers, and `close` does not wait
    /// for these calls.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no answer. The call is not retried: the tokens have been given back, or
    /// count as used.
    pub async fn close(&self) -> Result<u64, Error> {
        let report = async {
            if let Some(denials) = &self.denials {
                // On an error, the counts are lost.
                drop(denials.report(&*self.stack.store).await);
            }
        };
        self.stack.close(report).await
    }

    /// Returns the underlying store.
    #[must_use]
    pub fn store(&self) -> &S {
        &self.stack.store
    }

    /// Builds a request for a token under the limiter's rule and [minimum remaining](LimiterBuilder::min_remaining), without a
    /// wait. Add another limit, an id or a wait, and [decide](Self::decide) the request.
    ///
    /// ```
    /// use tollgate::{Limiter, MemoryStore, Quota, Rule};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tollgate::Error> {
    /// let limiter = Limiter::builder(MemoryStore::new()).min_remaining(20).build(Quota::per_second(100))?;
    /// let request = limiter.request("user:42")?.cost(5).and("tenant:7".try_into()?, Rule::try_from("1000/s")?);
    /// assert!(limiter.decide(&request).await?.is_granted());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an error if the text is not a valid [`Key`].
    pub fn request<K>(&self, key: K) -> Result<Take, Error>
    where
        K: TryInto<Key>,
        Error: From<K::Error>,
    {
        Ok(self.take(key.try_into()?, 1))
    }

    /// Builds a request for tokens of `limit` instead of the limiter's own.
    ///
    /// The request has the limiter's [minimum remaining](LimiterBuilder::min_remaining), unless the limit states its own cost
    /// or minimum. A [local fallback](crate::Fallback::Local) uses the limit's quota, not the limiter's.
    ///
    /// ```
    /// use tollgate::{Key, Limit, Limiter, MemoryStore, Rule};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tollgate::Error> {
    /// let limiter = Limiter::new(MemoryStore::new(), "5000/h")?;
    /// let searches = Limit::new(Key::try_from("searches")?, Rule::try_from("30/min")?);
    /// assert!(limiter.decide(&limiter.request_for(searches)).await?.is_granted());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn request_for(&self, mut limit: Limit) -> Take {
        limit.follow(1, self.min_remaining);
        Take { is_limiters_rule: false, ..Take::of(limit) }
    }

    pub(crate) fn take(&self, key: Key, cost: u64) -> Take {
        Take::under(key, self.rule(), cost, self.min_remaining)
    }

    /// Cancels, refunds or settles grants by their receipts, and returns the result of each.
    ///
    /// The receipts can come from several requests and from other processes.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no answer, or none by the [`deadline`](LimiterBuilder::deadline). The call is not retried,
    /// and the changes may have been made.
    ///
    /// # Cancel safety
    ///
    /// If dropped, the call goes on in a task, which [`close`](Self::close) waits for.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{Adjusted, Limiter, MemoryStore, Receipt};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tollgate::Error> {
    /// let limiter = Limiter::new(MemoryStore::new(), "10/h")?;
    /// let reservation = limiter.reserve_request(&limiter.request("user:42")?.cost(5).refundable()).await?;
    /// let refunds = reservation.receipts().iter().cloned().map(|receipt| receipt.refund(2));
    /// assert_eq!(limiter.adjust(refunds.collect()).await?, [Ok(Adjusted::Done(2))]);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn adjust(&self, adjustments: Vec<Adjustment>) -> Result<Vec<Result<Adjusted, TakeError>>, Error> {
        self.policy.within_deadline(pin!(adjust_each(&self.stack, adjustments))).await
    }
}

impl<S: Store> Clone for Limiter<S> {
    fn clone(&self) -> Self {
        Self {
            stack: Arc::clone(&self.stack),
            rule: Arc::clone(&self.rule),
            policy: self.policy.clone(),
            mode: Arc::clone(&self.mode),
            decisions: Arc::clone(&self.decisions),
            denials: self.denials.clone(),
            sweeper: self.sweeper.clone(),
            usage: self.usage.clone(),
            ..*self
        }
    }
}

/// How often a charge is tried while its bucket is swept.
const MAX_CHARGES: usize = 3;
