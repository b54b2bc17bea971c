use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::timeout;

use super::breaker::{Asking as Asker, Breaker};
use super::reservation::Turn;
use crate::model::{Decision, Error, HoldBack, HoldBackError, Key, Quota, Rule, Source, Take, TakeError};
use crate::store::{MemoryStore, Store};
use crate::telemetry::Decisions;

/// By when a call ends, and what it answers then.
#[derive(Clone, Debug)]
pub(super) struct Policy {
    deadline: Option<Duration>,
    instead: Option<Arc<Chosen>>,
    asked: Arc<Asked>,
}

#[derive(Debug)]
struct Chosen {
    instead: Instead,
    count: AtomicU64,
}

/// What a request came to, with the decision.
pub(super) trait Answer {
    fn decision(&self) -> &Decision;
}

impl Answer for Decision {
    fn decision(&self) -> &Decision {
        self
    }
}

impl<S: Store> Answer for Turn<S> {
    fn decision(&self) -> &Decision {
        self.decision()
    }
}

/// What is known of the store, and what those who watch are told of it.
#[derive(Debug)]
struct Asked {
    /// Whether they were told that it does not answer.
    fails: AtomicBool,
    decisions: Arc<Decisions>,
    /// Unless each request is to find out for itself.
    breaker: Option<Breaker>,
}

impl Policy {
    pub(super) fn new(
        deadline: Option<Duration>,
        fallback: Option<Fallback>,
        decisions: &Arc<Decisions>,
        breaks: bool,
    ) -> Self {
        let chosen = |fallback| Chosen { instead: Instead::new(fallback), count: AtomicU64::new(0) };
        let (fails, decisions) = (AtomicBool::new(false), Arc::clone(decisions));
        let asked = Asked { fails, decisions, breaker: breaks.then(Breaker::new) };
        Self { deadline, instead: fallback.map(chosen).map(Arc::new), asked: Arc::new(asked) }
    }

    /// An answer by the deadline to what is no request for tokens: nothing follows from it for those.
    pub(super) async fn in_time<T>(
        &self,
        asked: Asking<'_, impl Future<Output = Result<T, Error>>>,
    ) -> Result<T, Error> {
        by_deadline(self.deadline, asked).await
    }

    /// How often the fallback answered.
    pub(super) fn count(&self) -> u64 {
        self.instead.as_ref().map_or(0, |chosen| chosen.count.load(Ordering::Relaxed))
    }

    /// An answer by the deadline; at once, if there will hardly be one.
    pub(super) async fn bounded<T: Answer>(
        &self,
        key: &Key,
        asked: Asking<'_, impl Future<Output = Result<Result<T, TakeError>, Error>>>,
    ) -> Result<Result<T, TakeError>, Error> {
        let asking = self.asked.breaker.as_ref().map(|breaker| breaker.ask(key)).transpose()?;
        let answer = by_deadline(self.deadline, asked).await;
        if let Some(asking) = asking {
            self.learn(asking, key, &answer);
        }
        match &answer {
            Ok(Ok(answer)) if answer.decision().attempts() > 0 => self.asked.answers(),
            Err(error) if self.instead.is_none() && error.is_failure() => self.asked.fails(error),
            // What memory answers, or what can never be granted, is known without asking.
            Ok(_) | Err(_) => {}
        }
        answer
    }

    /// What became of a request may say whether the store answers.
    fn learn<T: Answer>(&self, asking: Asker<'_>, key: &Key, answer: &Result<Result<T, TakeError>, Error>) {
        match answer {
            // It is there, and busy with others.
            Ok(Ok(answer)) if answer.decision().attempts() > 0 => asking.answered(),
            Err(Error::Contended { .. }) => asking.answered(),
            Ok(Err(error)) if is_of_the_store(error) => asking.answered(),
            // So many wait in this process.
            Err(Error::Overloaded(_)) => {}
            Err(error) if error.is_failure() && self.is_to_be_spared(error, asking.waited()) => {
                asking.failed(key, error);
            }
            // What memory answers, or what is the request's own fault, may be known without asking.
            Ok(_) | Err(_) => {}
        }
    }

    /// Whether those who come are better off without asking for such an answer. Where nobody answers instead, one that comes at
    /// once is better than none: it says what is wrong.
    fn is_to_be_spared(&self, error: &Error, waited: Duration) -> bool {
        self.instead.is_some() || waited >= LONG || matches!(error, Error::DeadlineExceeded(_))
    }

    /// What to answer instead of a failure.
    pub(super) fn instead(&self, take: &Take, error: Error) -> Result<Decision, Error> {
        let Some(chosen) = self.instead.as_ref().filter(|_| error.is_failure()) else {
            return Err(error);
        };
        chosen.count.fetch_add(1, Ordering::Relaxed);
        let asked = &self.asked;
        asked.decisions.fell_back(&error, !asked.fails.swap(true, Ordering::Relaxed));
        Ok(chosen.instead.decide(take)?)
    }

    /// Who answers instead of a failure, if somebody does.
    pub(super) fn instead_of(&self, error: &Error) -> Option<&Instead> {
        self.instead.as_ref().filter(|_| error.is_failure()).map(|chosen| &chosen.instead)
    }
}

impl Asked {
    #[inline]
    fn answers(&self) {
        if self.fails.load(Ordering::Relaxed) {
            self.answers_again();
        }
    }

    #[cold]
    fn answers_again(&self) {
        if self.fails.swap(false, Ordering::Relaxed) {
            self.decisions.answers_again();
        }
    }

    /// Nobody answers instead. A store that is asked too much of one bucket, or of all, does answer.
    #[cold]
    fn fails(&self, error: &Error) {
        let answers = matches!(error, Error::Contended { .. } | Error::Overloaded(_));
        if !answers && !self.fails.load(Ordering::Relaxed) && self.decisions.fails(error) {
            self.fails.store(true, Ordering::Relaxed);
        }
    }
}

/// Whether nobody else can have said so.
fn is_of_the_store(error: &TakeError) -> bool {
    matches!(
        error,
        TakeError::Conflict(_) | TakeError::Reused(_) | TakeError::UnknownBucket(_) | TakeError::UnknownPlan { .. }
    )
}

/// The caller keeps it: each future that it is handed to would have room for it, too.
type Asking<'a, F> = Pin<&'a mut F>;

/// An answer by the deadline, if there is one.
pub(super) async fn by_deadline<T>(
    deadline: Option<Duration>,
    asked: Asking<'_, impl Future<Output = Result<T, Error>>>,
) -> Result<T, Error> {
    match deadline {
        None => asked.await,
        Some(deadline) => timeout(deadline, asked).await.unwrap_or_else(|_| Err(Error::DeadlineExceeded(deadline))),
    }
}

/// A request that waits for so long in vain is worth sparing to others.
const LONG: Duration = Duration::from_secs(1);

/// What a limiter answers when its store does not, or not in time.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fallback {
    /// Everything passes.
    Open,
    /// Everything is denied; it says to come again after this time.
    Closed(Duration),
    /// A bucket for each key in this process, under a quota that is safe for one process; what a request
    /// [keeps](crate::Limit::keep) for others is not kept of it.
    ///
    /// Of several limits it stands for the limiter's own, the first, and for those whose terms are the database's (plans,
    /// provisioned buckets); others keep the quotas that the request states, each process for itself. A limit that counts
    /// something else [says its own](crate::Limit::locally).
    Local(Quota),
}

/// Who answers then.
#[derive(Debug)]
pub(super) struct Instead {
    fallback: Fallback,
    local: MemoryStore,
}

impl Instead {
    fn new(fallback: Fallback) -> Self {
        Self { fallback, local: MemoryStore::new().most_keys(LOCAL_KEYS) }
    }

    fn decide(&self, take: &Take) -> Result<Decision, TakeError> {
        let decision = match &self.fallback {
            Fallback::Open => Decision::grant(u64::MAX),
            Fallback::Closed(retry_after) => Decision::denial(*retry_after),
            Fallback::Local(quota) => {
                let mut local = take.clone();
                // What it grants cannot be settled, and nobody repeats the request: there is nothing to remember it for.
                local.id = local.id.filter(|_| !take.has_fresh_id());
                for (place, limit) in local.limits.iter_mut().enumerate() {
                    let own = place == 0 && take.own;
                    if let Some(quota) = stands_for(*quota, &limit.rule, own, limit.local.as_deref()) {
                        (limit.rule, limit.keep) = (Rule::Quota(quota), 0);
                    }
                }
                // More than the local quota ever holds, or keys or ids than there is room for, are only not to be had until
                // the store is back.
                self.local.decide(&local).or_else(|error| match error {
                    TakeError::NeverPossible { .. } | TakeError::TooManyKeys(_) | TakeError::TooManyIds(_) => {
                        Ok(Decision::denial(Duration::MAX))
                    }
                    other => Err(other),
                })?
            }
        };
        Ok(decision.by(Source::Fallback).untaken())
    }

    /// What a third party says holds in this process, while that decides. The limit is the limiter's own, or may have a
    /// [quota of its own](crate::Limit::locally).
    pub(super) fn hold_back(&self, key: &Key, rule: &Rule, own: bool, local: Option<&Quota>, hold: HoldBack) {
        let Fallback::Local(quota) = &self.fallback else { return };
        let lower = |rule: &Rule| {
            let lowered = self.local.lower(key, rule, hold);
            match (&lowered, hold.left()) {
                (Err(Error::HoldBack(HoldBackError::NeverRefills(_))), Some(left)) => {
                    self.local.lower(key, rule, HoldBack::remaining(left))
                }
                _ => lowered,
            }
        };
        // A debt is tokens, which other terms would rescale: so under those that the bucket has, or else will have.
        if matches!(lower(&Rule::Provisioned), Err(Error::Take(TakeError::UnknownBucket(_)))) {
            let quota = stands_for(*quota, rule, own, local).map(Rule::Quota);
            // There is no room for it, or it cannot be held back.
            drop(lower(quota.as_ref().unwrap_or(rule)));
        }
    }
}

/// The quota under which this process decides, if that is not what the request states.
fn stands_for(quota: Quota, rule: &Rule, own: bool, local: Option<&Quota>) -> Option<Quota> {
    let for_others = own || matches!(rule, Rule::Plan(_) | Rule::Provisioned);
    local.copied().or_else(|| for_others.then_some(quota))
}

const LOCAL_KEYS: usize = 100_000;
