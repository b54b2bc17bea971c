use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::timeout;

use super::breaker::Breaker;
use crate::decision::Source;
use crate::telemetry::Decisions;
use crate::{Decision, Error, Limit, MemoryStore, Quota, Rule, Take, TakeError};

/// What a limiter answers when its store does not, or not in time.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fallback {
    /// Everything passes.
    Open,
    /// Everything is denied; it says to come again after this time.
    Closed(Duration),
    /// A bucket for each key in this process, under a quota that is safe for one process. Of several limits it stands for
    /// the limiter's own, the first, and for those whose terms are the database's (plans, provisioned buckets); the others
    /// keep the quotas that the request states, each process for itself. It is one quota, whatever such limits count.
    Local(Quota),
}

/// By when a call ends, and what it answers then.
#[derive(Clone, Debug, Default)]
pub(super) struct Policy {
    deadline: Option<Duration>,
    instead: Option<Arc<Chosen>>,
}

#[derive(Debug)]
struct Chosen {
    fallback: Fallback,
    local: MemoryStore,
    count: AtomicU64,
    breaker: Breaker,
    /// Whether the last answer was the fallback's.
    falls_back: AtomicBool,
    decisions: Arc<Decisions>,
}

impl Policy {
    pub(super) fn new(deadline: Option<Duration>, fallback: Option<Fallback>, decisions: &Arc<Decisions>) -> Self {
        let chosen = |fallback| Chosen {
            fallback,
            local: MemoryStore::new().most_keys(LOCAL_KEYS),
            count: AtomicU64::new(0),
            breaker: Breaker::default(),
            falls_back: AtomicBool::new(false),
            decisions: Arc::clone(decisions),
        };
        Self { deadline, instead: fallback.map(chosen).map(Arc::new) }
    }

    /// An answer by the deadline to what is no request for tokens: nothing follows from it for those.
    pub(super) async fn in_time<T>(
        &self,
        asked: Asked<'_, impl Future<Output = Result<T, Error>>>,
    ) -> Result<T, Error> {
        by_deadline(self.deadline, asked).await
    }

    /// How often the fallback answered.
    pub(super) fn count(&self) -> u64 {
        self.instead.as_ref().map_or(0, |chosen| chosen.count.load(Ordering::Relaxed))
    }

    /// An answer by the deadline; at once, if there will hardly be one.
    pub(super) async fn bounded<T>(
        &self,
        asked: Asked<'_, impl Future<Output = Result<T, Error>>>,
    ) -> Result<T, Error> {
        let Some(chosen) = &self.instead else { return by_deadline(self.deadline, asked).await };
        let asking = chosen.breaker.ask().map_err(|resting| Error::Unavailable(Arc::new(resting)))?;
        let answer = by_deadline(self.deadline, asked).await;
        asking.has(!answer.as_ref().is_err_and(Error::is_failure));
        if answer.is_ok() && chosen.falls_back.load(Ordering::Relaxed) {
            chosen.answers_again();
        }
        answer
    }

    /// What to answer instead of a failure.
    pub(super) fn instead(&self, take: &Take, error: Error) -> Result<Decision, Error> {
        let Some(chosen) = self.instead.as_ref().filter(|_| error.is_failure()) else {
            return Err(error);
        };
        chosen.count.fetch_add(1, Ordering::Relaxed);
        chosen.decisions.fell_back(&error, !chosen.falls_back.swap(true, Ordering::Relaxed));
        let decision = match &chosen.fallback {
            Fallback::Open => Decision::grant(u64::MAX),
            Fallback::Closed(retry_after) => Decision::denial(*retry_after),
            Fallback::Local(quota) => {
                let mut local = take.clone();
                for (place, Limit { rule, .. }) in local.limits.iter_mut().enumerate() {
                    if (place == 0 && take.own) || matches!(rule, Rule::Plan(_) | Rule::Provisioned) {
                        *rule = Rule::Quota(*quota);
                    }
                }
                // More than the local quota ever holds, or keys or ids than there is room for, are only not to be had until
                // the store is back.
                chosen.local.decide(&local).or_else(|error| match error {
                    TakeError::NeverPossible { .. } | TakeError::TooManyKeys(_) | TakeError::TooManyIds(_) => {
                        Ok(Decision::denial(Duration::MAX))
                    }
                    other => Err(other),
                })?
            }
        };
        Ok(decision.by(Source::Fallback).untaken())
    }
}

impl Chosen {
    #[cold]
    fn answers_again(&self) {
        if self.falls_back.swap(false, Ordering::Relaxed) {
            self.decisions.answers_again();
        }
    }
}

/// The caller keeps it: each future that it is handed to would have room for it, too.
type Asked<'a, F> = Pin<&'a mut F>;

/// An answer by the deadline, if there is one.
pub(super) async fn by_deadline<T>(
    deadline: Option<Duration>,
    asked: Asked<'_, impl Future<Output = Result<T, Error>>>,
) -> Result<T, Error> {
    match deadline {
        None => asked.await,
        Some(deadline) => timeout(deadline, asked).await.unwrap_or_else(|_| Err(Error::DeadlineExceeded(deadline))),
    }
}

const LOCAL_KEYS: usize = 100_000;
