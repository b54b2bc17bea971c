//! Limits by key over any store: the limiter, its builder, and reservations.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;

use crate::admin::{BucketLevel, level_of_itself};
use crate::model::{
    Adjusted, Adjustment, AdminError, Decision, Error, HoldBack, HoldBackError, Key, Limit, Mode, Quota, Rule, Take,
    TakeError, WindowLevel,
};
use crate::store::{AnyStore, Maintenance, Store};
use crate::telemetry::{Decisions, MiddlewareEvent};

mod bound;
mod breaker;
mod builder;
mod denied;
mod policy;
mod requests;
mod reservation;
mod settings;
mod stack;
mod sweeper;

pub use bound::Bound;
pub use builder::LimiterBuilder;
pub use policy::Fallback;
pub use reservation::Reservation;

use denied::Denied;
use policy::Policy;
use reservation::adjust_each;
use settings::{CurrentMode, CurrentRule};
use stack::Stack;
use sweeper::Sweeper;

/// Limits by key, over any store, with three verbs: [`allow`](Self::allow), [`reserve`](Self::reserve) and
/// [`wait`](Self::wait).
///
/// When a bucket is empty, `allow` denies, `reserve` says how long to wait, and `wait` waits. All of them take the
/// tokens in one call of the store, or take nothing. A key's bucket is one, whatever limiter over the same store asks for it, in
/// whatever process: those with other rules would change its terms in turns, so let keys say what is limited
/// (`mail:42`). Clones are the same limiter. A type that does not name the store is over [`AnyStore`].
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
    keep: u64,
    longest_wait: Duration,
    policy: Policy,
    mode: Arc<CurrentMode>,
    decisions: Arc<Decisions>,
    denied: Option<Arc<Denied>>,
    sweeper: Option<Arc<Sweeper>>,
}

impl<S: Store> Limiter<S> {
    /// A limiter over a store. The rule is a [`Quota`](crate::Quota), the builder of one, a [`Window`](crate::Window), a text
    /// such as `10/s burst 20`, or a [`Rule`].
    ///
    /// It has no fallback: while the database does not answer, each call waits for the store's deadline, 5 seconds by default, and
    /// is an error then. [`LimiterBuilder::fallback`] answers sooner.
    ///
    /// # Errors
    ///
    /// If the figures make no quota.
    pub fn new<R>(store: S, rule: R) -> Result<Self, Error>
    where
        R: TryInto<Rule>,
        Error: From<R::Error>,
    {
        Self::builder(store).build(rule)
    }

    /// A limiter over a store, with what is not as usual: a [fallback](LimiterBuilder::fallback), say, without which calls wait
    /// for the store's deadline, 5 seconds by default, while the database does not answer.
    pub fn builder(store: S) -> LimiterBuilder<S> {
        LimiterBuilder::new(store)
    }

    /// How many answers were the fallback's.
    #[must_use]
    pub fn fallbacks(&self) -> u64 {
        self.policy.count()
    }

    /// The rule that holds now.
    #[must_use]
    pub fn rule(&self) -> Rule {
        self.rule.get()
    }

    /// Changes the rule for this limiter and its clones, from the next request on. Tokens that are there stay, up to the
    /// new capacity.
    ///
    /// Limiters of other processes keep theirs; a [`Rule::Plan`] changes for all of them at once.
    ///
    /// # Errors
    ///
    /// If the builder's figures make no quota.
    pub fn set_rule<R>(&self, rule: R) -> Result<(), Error>
    where
        R: TryInto<Rule>,
        Error: From<R::Error>,
    {
        self.rule.set(rule.try_into()?);
        Ok(())
    }

    /// The mode of this limiter itself.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.mode.get()
    }

    /// Switches this limiter and its clones, from the next request on, whatever the store says: the switch that works without
    /// a database.
    ///
    /// [`Off`](Mode::Off) lets everything pass and [`Block`](Mode::Block) denies everything, both without asking the store;
    /// in [`Shadow`](Mode::Shadow) the store is asked, what it denies passes, and nobody waits. Limiters of other processes keep their
    /// modes: [`Admin::set_mode`](crate::Admin::set_mode) is for all of them.
    pub fn set_mode(&self, mode: Mode) {
        self.mode.set(mode);
    }

    /// The same limiter, bound to one key.
    ///
    /// # Errors
    ///
    /// If the text is no [`Key`].
    pub fn bind<K>(&self, key: K) -> Result<Bound<S>, Error>
    where
        K: TryInto<Key>,
        Error: From<K::Error>,
    {
        Ok(Bound { limiter: self.clone(), key: key.try_into()? })
    }

    /// Takes a token now, or not at all.
    ///
    /// # Errors
    ///
    /// If there is no answer, or none is possible: see [`allow_n`](Self::allow_n).
    pub async fn allow<K>(&self, key: K) -> Result<Decision, Error>
    where
        K: TryInto<Key>,
        Error: From<K::Error>,
    {
        self.decide(&self.take(key.try_into()?, 1)).await
    }

    /// Takes `cost` tokens now, or none.
    ///
    /// # Errors
    ///
    /// If the text is no [`Key`], the cost is 0 or more than the bucket ever holds, or the store fails and there is no
    /// [`fallback`](LimiterBuilder::fallback).
    pub async fn allow_n<K>(&self, key: K, cost: u64) -> Result<Decision, Error>
    where
        K: TryInto<Key>,
        Error: From<K::Error>,
    {
        self.decide(&self.take(key.try_into()?, cost)).await
    }

    /// Takes a token now or later: the answer says how long to wait.
    ///
    /// # Errors
    ///
    /// As for [`allow_n`](Self::allow_n).
    pub async fn reserve<K>(&self, key: K) -> Result<Reservation<S>, Error>
    where
        K: TryInto<Key>,
        Error: From<K::Error>,
    {
        self.reserve_n(key, 1).await
    }

    /// Takes `cost` tokens now or later: the answer says how long to wait. Later requests queue behind it.
    ///
    /// If their turn would come after the [longest wait](LimiterBuilder::longest_wait), nothing is taken. A process that dies
    /// with a reservation has used its tokens. A cost above the bucket's capacity is an error, not a denial.
    ///
    /// # Errors
    ///
    /// As for [`allow_n`](Self::allow_n).
    pub async fn reserve_n<K>(&self, key: K, cost: u64) -> Result<Reservation<S>, Error>
    where
        K: TryInto<Key>,
        Error: From<K::Error>,
    {
        let take = self.take(key.try_into()?, cost).max_wait(self.longest_wait);
        self.reserve_all(&take).await
    }

    /// Waits until a token is there, and takes it.
    ///
    /// # Errors
    ///
    /// As for [`allow_n`](Self::allow_n).
    pub async fn wait<K>(&self, key: K) -> Result<Decision, Error>
    where
        K: TryInto<Key>,
        Error: From<K::Error>,
    {
        self.wait_n(key, 1, self.longest_wait).await
    }

    /// Waits at most `longest` until `cost` tokens are there, and takes them.
    ///
    /// If their turn would come later, it is denied at once, and takes nothing. Those who wait for one key of one limiter and its
    /// clones are served in the order in which they came. It asks the store once and then sleeps.
    ///
    /// # Errors
    ///
    /// As for [`allow_n`](Self::allow_n).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives the tokens back if the store had them wait, and their turn has not come, as far as no later
    /// request queues behind them. Tokens that were to be had at once are used.
    pub async fn wait_n<K>(&self, key: K, cost: u64, longest: Duration) -> Result<Decision, Error>
    where
        K: TryInto<Key>,
        Error: From<K::Error>,
    {
        let take = self.take(key.try_into()?, cost).max_wait(longest);
        Ok(self.wait_all(&take).await?.into_decision())
    }

    /// Lowers a key's bucket to what somebody else says of it, such as a third party that answers 429, for every process
    /// that shares it; says whether it held more.
    ///
    /// It is never raised, so anybody may repeat that. Requests that were granted before keep their turn, and what they
    /// give back when they are cancelled, refunded or settled is there again. What this process has
    /// [taken ahead](LimiterBuilder::lease) is given back first; other processes use theirs within a second.
    ///
    /// # Errors
    ///
    /// If the rule is a sliding window or has no limit, if a bucket that never refills is to be held back for a time alone, or
    /// if there is no answer: what a [local fallback](Fallback::Local) grants in this process is held back then.
    pub async fn hold_back<K>(&self, key: K, hold: HoldBack) -> Result<bool, Error>
    where
        K: TryInto<Key>,
        Error: From<K::Error>,
    {
        self.hold_back_under(&key.try_into()?, None, None, hold).await
    }

    /// The same for a bucket under another limit than the limiter's, for instance one of several that a request names.
    ///
    /// A limiter whose own [mode](Self::set_mode) is [`Off`](Mode::Off) or [`Block`](Mode::Block) asks the store nothing, so
    /// it changes nothing.
    ///
    /// # Errors
    ///
    /// As for [`hold_back`](Self::hold_back).
    pub async fn hold_back_limit(&self, limit: &Limit, hold: HoldBack) -> Result<bool, Error> {
        self.hold_back_under(limit.key(), Some(limit.rule()), limit.local.as_deref(), hold).await
    }

    /// Holds a bucket back under a rule, or else the limiter's own; and while the store does not answer, under the quota that the
    /// limit has in this process, if that is said.
    async fn hold_back_under(
        &self,
        key: &Key,
        rule: Option<&Rule>,
        local: Option<&Quota>,
        mut hold: HoldBack,
    ) -> Result<bool, Error> {
        let of_limiter = self.rule();
        let (rule, own) = (rule.unwrap_or(&of_limiter), rule.is_none_or(|rule| *rule == of_limiter && local.is_none()));
        if CurrentMode::answer(self.mode()).is_some() {
            return Ok(false);
        }
        let lowering = async {
            let lowered = self.stack.hold_back(key, rule, hold).await;
            // For a time it cannot be, but to what is left.
            let (Err(Error::HoldBack(HoldBackError::NeverRefills(_))), Some(left)) = (&lowered, hold.left()) else {
                return lowered;
            };
            hold = HoldBack::remaining(left);
            self.stack.hold_back(key, rule, hold).await
        };
        let lowered = self.policy.in_time(pin!(lowering)).await;
        self.decisions.held(key, hold, lowered.as_ref().copied());
        if let Some(instead) = lowered.as_ref().err().and_then(|error| self.policy.instead_of(error)) {
            instead.hold_back(key, rule, own, local, hold);
        }
        lowered
    }

    /// Reads a key's tokens, and takes none: see [`BucketLevel::available`], negative if requests wait for them already.
    ///
    /// A bucket that nobody has used yet is full, and one that was under other terms, before [`set_rule`](Self::set_rule) or a
    /// change of its plan, has what the next request would find: its tokens come as before until then, up to the new capacity.
    /// What this process has [taken ahead](LimiterBuilder::lease) is gone from it. The store is asked twice.
    ///
    /// ```
    /// use tollgate::{Limiter, MemoryStore, Quota};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tollgate::Error> {
    /// let limiter = Limiter::new(MemoryStore::new(), Quota::per_hour(10))?;
    /// assert_eq!(limiter.peek("user:42").await?.available, 10);
    /// let _ = limiter.allow_n("user:42", 3).await?;
    /// assert_eq!(limiter.peek("user:42").await?.available, 7);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// If the text is no [`Key`], the rule is a sliding window (see [`peek_window`](Self::peek_window)), there is no such plan or provisioned bucket, a store of
    /// somebody else's making cannot tell, the role may not look, or there is no answer; there is no fallback then.
    pub async fn peek<K>(&self, key: K) -> Result<BucketLevel, Error>
    where
        K: TryInto<Key>,
        Error: From<K::Error>,
    {
        self.peek_under(key, &self.rule()).await
    }

    /// The same for a bucket under another rule than the limiter's: of a client's plan, or one of several that a request
    /// names.
    ///
    /// # Errors
    ///
    /// As for [`peek`](Self::peek).
    pub async fn peek_under<K>(&self, key: K, rule: &Rule) -> Result<BucketLevel, Error>
    where
        K: TryInto<Key>,
        Error: From<K::Error>,
    {
        let key = key.try_into()?;
        match level_of_itself(&key, rule) {
            Some(level) => level,
            None => self.policy.in_time(pin!(self.maintenance()?.level(&key, rule))).await,
        }
    }

    /// Reads what counts in a key's sliding window, and counts nothing: see [`WindowLevel::available`], negative if requests
    /// wait for it already.
    ///
    /// In a window that nobody has used yet, nothing counts. It is read from the store as it is: other terms of the limiter
    /// show with the first request under them.
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
    /// If the text is no [`Key`], the rule is no sliding window, a store of somebody else's making cannot tell, the role may not
    /// look, or there is no answer; there is no fallback then.
    pub async fn peek_window<K>(&self, key: K) -> Result<WindowLevel, Error>
    where
        K: TryInto<Key>,
        Error: From<K::Error>,
    {
        let key = key.try_into()?;
        let Rule::Window(window) = self.rule() else { return Err(AdminError::NoWindow(key).into()) };
        self.policy.in_time(pin!(self.maintenance()?.window_level(&key, &window))).await
    }

    fn maintenance(&self) -> Result<&dyn Maintenance, AdminError> {
        self.store().maintenance().ok_or(AdminError::Unsupported)
    }

    /// Gives back what was [taken ahead](LimiterBuilder::lease), and says how many tokens that is. From then on every request
    /// goes to the store. Denials that were [counted](LimiterBuilder::count_denials) are told to the store.
    ///
    /// It ends when what was given up is given back, what answers say is passed on and the limiter's tasks have ended, or after
    /// ten seconds if others go on asking. So a service stops taking requests, closes its limiters, and then closes its pool.
    ///
    /// [Without batching](LimiterBuilder::without_batching), calls run in the tasks of their callers, and `close` does not wait
    /// for them: let them end first.
    ///
    /// # Errors
    ///
    /// If there is no answer. It is not asked again then: they may have been given back, and if not, they are used.
    pub async fn close(&self) -> Result<u64, Error> {
        let telling = async {
            if let Some(denied) = &self.denied {
                // What cannot be told is lost.
                drop(denied.tell(&*self.stack.store).await);
            }
        };
        self.stack.close(telling).await
    }

    /// The store beneath.
    #[must_use]
    pub fn store(&self) -> &S {
        &self.stack.store
    }

    /// A request for a token under the limiter's rule, which leaves what the limiter [keeps](LimiterBuilder::keep): to add
    /// another limit, an id or a wait to, and [decide](Self::decide).
    ///
    /// ```
    /// use tollgate::{Limiter, MemoryStore, Quota, Rule};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tollgate::Error> {
    /// let limiter = Limiter::builder(MemoryStore::new()).keep(20).build(Quota::per_second(100))?;
    /// let request = limiter.request("user:42")?.cost(5).and("tenant:7".try_into()?, Rule::try_from("1000/s")?);
    /// assert!(limiter.decide(&request).await?.is_granted());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// If the text is no [`Key`].
    pub fn request<K>(&self, key: K) -> Result<Take, Error>
    where
        K: TryInto<Key>,
        Error: From<K::Error>,
    {
        Ok(self.take(key.try_into()?, 1))
    }

    /// Builds a request for tokens of `limit` instead of the limiter's own.
    ///
    /// The request leaves what the limiter [keeps](LimiterBuilder::keep), unless the limit states its own cost or minimum.
    /// A [local fallback](Fallback::Local) uses the limit's quota, not the one of the limiter.
    ///
    /// ```
    /// use tollgate::{Key, Limit, Limiter, MemoryStore, Rule};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tollgate::Error> {
    /// let limiter = Limiter::new(MemoryStore::new(), "5000/h")?;
    /// let searches = Limit::new(Key::try_from("searches")?, Rule::try_from("30/min")?);
    /// assert!(limiter.decide(&limiter.request_under(searches)).await?.is_granted());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn request_under(&self, mut limit: Limit) -> Take {
        limit.follow(1, self.keep);
        Take { own: false, ..Take::of(limit) }
    }

    /// Returns how many tokens each request leaves: see [`LimiterBuilder::keep`].
    #[must_use]
    pub fn kept(&self) -> u64 {
        self.keep
    }

    /// Counts and logs what a middleware did with a request without asking for a decision.
    ///
    /// Does nothing without the features `metrics` and `tracing`. Decisions count by themselves.
    pub fn record(&self, event: MiddlewareEvent<'_>) {
        self.decisions.record(event);
    }

    pub(crate) fn take(&self, key: Key, cost: u64) -> Take {
        Take::under(key, self.rule(), cost, self.keep)
    }

    /// Cancels, refunds or settles what was granted, by its receipts, and returns what became of each.
    ///
    /// The receipts may be of several requests, and of other processes.
    ///
    /// # Errors
    ///
    /// If there is no answer, or none by the [`deadline`](LimiterBuilder::deadline). The store is not asked again, and may have
    /// made the changes.
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
    /// let reservation = limiter.reserve_all(&limiter.request("user:42")?.cost(5).refundable()).await?;
    /// let refunds = reservation.receipts().iter().cloned().map(|receipt| receipt.refund(2));
    /// assert_eq!(limiter.adjust(refunds.collect()).await?, [Ok(Adjusted::Done(2))]);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn adjust(&self, adjustments: Vec<Adjustment>) -> Result<Vec<Result<Adjusted, TakeError>>, Error> {
        adjust_each(&self.stack, adjustments).await
    }

    /// Spawns a task that [`close`](Self::close) waits for, such as one that gives tokens back.
    ///
    /// # Panics
    ///
    /// Panics if called outside of a Tokio runtime.
    pub fn spawn<T: Send + 'static>(&self, task: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
        self.stack.tasks.spawn(task)
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
            denied: self.denied.clone(),
            sweeper: self.sweeper.clone(),
            ..*self
        }
    }
}
