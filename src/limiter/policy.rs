//! The policy for failures of the store: the deadline, the circuit breaker and the fallback.

use std::fmt;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::timeout;

use super::circuit_breaker::{Attempt, CircuitBreaker};
use crate::model::{
    Decision, Error, Key, Limit, Outcome, Quota, Rule, Source, Take, TakeError, Throttle, ThrottleError,
};
use crate::store::MemoryStore;
use crate::telemetry::Decisions;

/// The deadline of a call, the circuit breaker, and the fallback.
#[derive(Clone, Debug)]
pub(super) struct Policy {
    deadline: Option<Duration>,
    /// Whether the deadline is shorter than that of the limiter that this one comes from.
    is_impatient: bool,
    fallback: Option<Arc<CountedFallback>>,
    health: Arc<StoreHealth>,
}

#[derive(Debug)]
struct CountedFallback {
    store: FallbackStore,
    /// How often the fallback answered.
    count: AtomicU64,
}

impl CountedFallback {
    fn new(fallback: Fallback) -> Arc<Self> {
        Arc::new(Self { store: FallbackStore::new(fallback), count: AtomicU64::new(0) })
    }
}

/// Whether the store answers, and whether that was logged.
#[derive(Debug)]
struct StoreHealth {
    /// Whether it was logged that the store does not answer.
    is_down: AtomicBool,
    decisions: Arc<Decisions>,
    /// `None` if every request calls the store.
    circuit_breaker: Option<Arc<CircuitBreaker>>,
}

impl Policy {
    pub(super) fn new(
        deadline: Option<Duration>,
        fallback: Option<Fallback>,
        decisions: &Arc<Decisions>,
        has_circuit_breaker: bool,
    ) -> Self {
        let (is_down, decisions) = (AtomicBool::new(false), Arc::clone(decisions));
        let circuit_breaker = has_circuit_breaker.then(|| Arc::new(CircuitBreaker::new(deadline)));
        let health = StoreHealth { is_down, decisions, circuit_breaker };
        Self { deadline, is_impatient: false, fallback: fallback.map(CountedFallback::new), health: Arc::new(health) }
    }

    pub(super) fn deadline(&self) -> Option<Duration> {
        self.deadline
    }

    pub(super) fn with_deadline(&self, deadline: Duration) -> Self {
        let is_impatient = self.is_impatient || self.deadline.is_none_or(|own| deadline < own);
        Self { deadline: Some(deadline), is_impatient, ..self.clone() }
    }

    pub(super) fn with_fallback(&self, fallback: Option<Fallback>) -> Self {
        Self { fallback: fallback.map(CountedFallback::new), ..self.clone() }
    }

    /// The answer to a call that takes no tokens, by the deadline. The circuit breaker ignores it.
    pub(super) async fn within_deadline<T, E: From<Error>>(
        &self,
        call: StoreCall<'_, impl Future<Output = Result<T, E>>>,
    ) -> Result<T, E> {
        before_deadline(self.deadline, call).await
    }

    /// How often the fallback answered.
    pub(super) fn count(&self) -> u64 {
        self.fallback.as_ref().map_or(0, |fallback| fallback.count.load(Ordering::Relaxed))
    }

    /// The store's answer to a request by the deadline, or [`Error::CircuitOpen`] at once: then begin a [probe](Self::probe).
    pub(super) async fn call(
        &self,
        key: &Key,
        call: StoreCall<'_, impl Future<Output = Result<Outcome, Error>>>,
    ) -> Result<Outcome, Error> {
        let circuit_breaker = self.health.circuit_breaker.as_ref();
        let attempt = circuit_breaker.map(|circuit_breaker| circuit_breaker.admit(key)).transpose()?;
        let answer = before_deadline(self.deadline, call).await;
        self.learn(attempt, key, &answer);
        answer
    }

    /// Whether the circuit breaker is open, and a probe tests the store.
    pub(super) fn is_circuit_open(&self) -> bool {
        self.health.circuit_breaker.as_ref().is_some_and(|circuit_breaker| circuit_breaker.is_testing())
    }

    /// Begins a probe for a task, if the circuit breaker is open and there is no probe yet.
    pub(super) fn probe(&self, key: &Key) -> Option<Attempt<Arc<CircuitBreaker>>> {
        Arc::clone(self.health.circuit_breaker.as_ref()?).probe(key)
    }

    /// The answer of the store to a probe, if there is one in time.
    pub(super) async fn call_probe(
        &self,
        probe: Attempt<Arc<CircuitBreaker>>,
        key: &Key,
        call: StoreCall<'_, impl Future<Output = Result<Outcome, Error>>>,
    ) -> Option<Decision> {
        let answer = before_deadline(Some(probe.timeout()), call).await;
        self.learn(Some(probe), key, &answer);
        answer.ok()?.ok()
    }

    /// Records whether the store answered: for the circuit breaker, and in the log.
    fn learn<B: Deref<Target = CircuitBreaker>>(
        &self,
        attempt: Option<Attempt<B>>,
        key: &Key,
        answer: &Result<Outcome, Error>,
    ) {
        if let Some(attempt) = attempt {
            match answer {
                // The store answers, even if it is busy with others.
                Ok(Ok(decision)) if decision.attempts() > 0 => attempt.answered(),
                Err(Error::Contended { .. }) if !attempt.is_slow() => attempt.answered(),
                Ok(Err(error)) if is_store_answer(error) => attempt.answered(),
                // The queue of this process is full, which does not show whether the store answers.
                Err(Error::Overloaded(_)) => {}
                Err(error) if error.is_failure() && attempt.counts(error, self.fallback.is_some()) => {
                    attempt.failed(key, error, self.is_impatient);
                }
                // Answers from memory and invalid requests do not show whether the store answers.
                Ok(_) | Err(_) => {}
            }
        }
        match answer {
            Ok(Ok(decision)) if decision.attempts() > 0 => self.health.answers(),
            Err(error) if self.fallback.is_none() && error.is_failure() => self.health.record_failure(error),
            // Answers from memory and requests that can never be granted do not show whether the store answers.
            Ok(_) | Err(_) => {}
        }
    }

    /// The fallback's answer to a failure, or the failure.
    pub(super) fn fall_back(&self, take: &Take, error: Error) -> Result<Decision, Error> {
        let Some(fallback) = self.fallback.as_ref().filter(|_| error.is_failure()) else {
            return Err(error);
        };
        fallback.count.fetch_add(1, Ordering::Relaxed);
        let is_first = !self.health.is_down.swap(true, Ordering::Relaxed);
        self.health.decisions.fell_back(&error, is_first);
        Ok(fallback.store.decide(take)?)
    }

    /// The fallback, if it answers this failure.
    pub(super) fn fallback_for(&self, error: &Error) -> Option<&FallbackStore> {
        self.fallback.as_ref().filter(|_| error.is_failure()).map(|fallback| &fallback.store)
    }
}

impl StoreHealth {
    #[inline]
    fn answers(&self) {
        if self.is_down.load(Ordering::Relaxed) {
            self.answers_again();
        }
    }

    #[cold]
    fn answers_again(&self) {
        if self.is_down.swap(false, Ordering::Relaxed) {
            self.decisions.answers_again();
        }
    }

    /// Logs a failure without a fallback. A contended or overloaded store does answer.
    #[cold]
    fn record_failure(&self, error: &Error) {
        let answers = matches!(error, Error::Contended { .. } | Error::Overloaded(_));
        if !answers && !self.is_down.load(Ordering::Relaxed) && self.decisions.log_failure(error) {
            self.is_down.store(true, Ordering::Relaxed);
        }
    }
}

/// Whether only the store can return this error.
fn is_store_answer(error: &TakeError) -> bool {
    matches!(
        error,
        TakeError::Conflict(_) | TakeError::IdReused(_) | TakeError::UnknownBucket(_) | TakeError::UnknownPlan { .. }
    )
}

/// Pinned by the caller, because each future that owned it would grow by its size.
type StoreCall<'a, F> = Pin<&'a mut F>;

/// The answer by the deadline, if there is one.
pub(super) async fn before_deadline<T, E: From<Error>>(
    deadline: Option<Duration>,
    call: StoreCall<'_, impl Future<Output = Result<T, E>>>,
) -> Result<T, E> {
    match deadline {
        None => call.await,
        Some(deadline) => {
            timeout(deadline, call).await.unwrap_or_else(|_| Err(Error::DeadlineExceeded(deadline).into()))
        }
    }
}

/// The answers of a limiter while its store does not answer in time: see
/// [`LimiterBuilder::fallback`](crate::LimiterBuilder::fallback).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Fallback {
    /// Grants every request.
    Open,
    /// Denies every request, and states this time as retry after.
    Closed(Duration),
    /// Decides by a bucket for each key in this process, under a quota that is safe for one process. A request's
    /// [minimum remaining](crate::Limit::min_remaining) does not apply to it.
    ///
    /// If a plan has several limits, the quota replaces the first, and the others do not apply.
    ///
    /// With several limits, the quota replaces the limiter's own (the first) and those whose limits are in the database (plans and
    /// provisioned buckets). Other limits keep the quotas that the request states, in each process by itself. A limit that counts
    /// something else [states its own quota](crate::Limit::fallback_quota).
    Local(Quota),
    /// Decides as [`Local`](Self::Local), with a quota for each limit: see [`local_by`](Self::local_by).
    LocalBy(LocalQuotas),
}

impl Fallback {
    /// Decides as [`Local`](Self::Local) does, under the quota that a function returns for a limit, such as one for each plan.
    ///
    /// Applies to the limits that the quota of `Local` would replace, and to each limit of a plan: see [`Limit::name`]. [`Quota::unlimited`] grants all requests. If the function
    /// returns another quota than before, the local bucket of the key keeps its tokens, up to the new capacity.
    ///
    /// ```
    /// use tollgate::{Fallback, Limit, Quota, Rule};
    ///
    /// // For each of ten processes.
    /// let (paid, free) = (Quota::per_second(10).build()?, Quota::per_second(1).build()?);
    /// let fallback = Fallback::local_by(move |limit: &Limit| match limit.rule() {
    ///     Rule::Plan(plan) if plan.as_str() == "paid" => paid,
    ///     _ => free,
    /// });
    /// # let _ = fallback;
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    #[must_use]
    pub fn local_by(quota: impl Fn(&Limit) -> Quota + Send + Sync + 'static) -> Self {
        Self::LocalBy(LocalQuotas(Arc::new(quota)))
    }

    /// The quota for a limit, if this process decides.
    fn local_quota(&self, limit: &Limit) -> Option<Quota> {
        match self {
            Self::Open | Self::Closed(_) => None,
            // The quota is about the first limit of a plan. The others are unknown here, or count something else.
            Self::Local(_) if limit.key().limit_name().is_some() && limit.rule().plan().is_some() => {
                Some(Quota::unlimited())
            }
            Self::Local(quota) => Some(*quota),
            Self::LocalBy(LocalQuotas(quota)) => match limit.rule().plan().filter(|plan| plan.limit_name().is_some()) {
                Some(plan) => Some(quota(&limit.under(Rule::Plan(plan.without_limit())))),
                None => Some(quota(limit)),
            },
        }
    }
}

/// The local quota of each limit while the store does not answer: see [`Fallback::local_by`].
#[derive(Clone)]
pub struct LocalQuotas(Arc<dyn Fn(&Limit) -> Quota + Send + Sync>);

impl fmt::Debug for LocalQuotas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalQuotas").finish_non_exhaustive()
    }
}

/// The fallback with its local buckets.
#[derive(Debug)]
pub(super) struct FallbackStore {
    fallback: Fallback,
    local: MemoryStore,
}

impl FallbackStore {
    fn new(fallback: Fallback) -> Self {
        Self { fallback, local: MemoryStore::new().max_keys(LOCAL_KEYS) }
    }

    fn decide(&self, take: &Take) -> Result<Decision, TakeError> {
        let decision = match &self.fallback {
            Fallback::Open => Decision::without_limit(),
            Fallback::Closed(retry_after) => Decision::denial(*retry_after),
            Fallback::Local(_) | Fallback::LocalBy(_) => {
                let mut local = take.clone();
                // Local grants cannot be settled and a fresh id is never repeated, so the id need not be remembered.
                local.id = local.id.filter(|_| !take.has_fresh_id());
                for (place, limit) in local.limits.iter_mut().enumerate() {
                    let is_limiters_rule = place == 0 && take.is_limiters_rule;
                    if let Some(quota) = self.quota_for(limit, is_limiters_rule) {
                        (limit.rule, limit.min_remaining) = (Rule::Quota(quota), 0);
                    }
                }
                // A cost above the local capacity, or a full store of keys or ids, is a denial until the store is back.
                self.local.decide(&local).or_else(|error| match error {
                    TakeError::ExceedsCapacity { .. } | TakeError::TooManyKeys(_) | TakeError::TooManyIds(_) => {
                        Ok(Decision::denial(None))
                    }
                    other => Err(other),
                })?
            }
        };
        Ok(decision.with_source(Source::Fallback).without_grants())
    }

    /// Lowers the local bucket of a limit to what an upstream states.
    pub(super) fn throttle(&self, limit: &Limit, is_limiters_rule: bool, throttle: Throttle) {
        if matches!(self.fallback, Fallback::Open | Fallback::Closed(_)) {
            return;
        }
        let lower = |rule: &Rule| {
            let lowered = self.local.lower(limit.key(), rule, throttle);
            match (&lowered, throttle.get_remaining()) {
                (Err(Error::Throttle(ThrottleError::NeverRefills(_))), Some(remaining)) => {
                    self.local.lower(limit.key(), rule, Throttle::remaining(remaining))
                }
                _ => lowered,
            }
        };
        // Another quota would rescale the owed tokens, so this lowers the bucket under its current quota, or else its future one.
        if matches!(lower(&Rule::Provisioned), Err(Error::Take(TakeError::UnknownBucket(_)))) {
            let quota = self.quota_for(limit, is_limiters_rule).map(Rule::Quota);
            // Ignores a full store and a bucket that cannot be lowered.
            drop(lower(quota.as_ref().unwrap_or(&limit.rule)));
        }
    }

    /// The quota under which this process decides, if it replaces the request's rule. A limit can state
    /// [its own](crate::Limit::fallback_quota).
    fn quota_for(&self, limit: &Limit, is_limiters_rule: bool) -> Option<Quota> {
        let is_replaced = is_limiters_rule || matches!(limit.rule, Rule::Plan(_) | Rule::Provisioned);
        let of_fallback = || if is_replaced { self.fallback.local_quota(limit) } else { None };
        limit.local_quota().or_else(of_fallback)
    }
}

const LOCAL_KEYS: usize = 100_000;
