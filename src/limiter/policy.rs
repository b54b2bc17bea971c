use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::timeout;

use super::breaker::Breaker;
use super::fallback::{Fallback, Instead};
use crate::telemetry::Decisions;
use crate::{Decision, Error, Take};

/// By when a call ends, and what it answers then.
#[derive(Clone, Debug, Default)]
pub(super) struct Policy {
    deadline: Option<Duration>,
    instead: Option<Arc<Chosen>>,
}

#[derive(Debug)]
struct Chosen {
    instead: Instead,
    count: AtomicU64,
    breaker: Breaker,
    /// Whether the last answer was the fallback's.
    falls_back: AtomicBool,
    decisions: Arc<Decisions>,
}

impl Policy {
    pub(super) fn new(deadline: Option<Duration>, fallback: Option<Fallback>, decisions: &Arc<Decisions>) -> Self {
        let chosen = |fallback| Chosen {
            instead: Instead::new(fallback),
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
        Ok(chosen.instead.decide(take)?)
    }

    /// Who answers instead of a failure, if somebody does.
    pub(super) fn instead_of(&self, error: &Error) -> Option<&Instead> {
        self.instead.as_ref().filter(|_| error.is_failure()).map(|chosen| &chosen.instead)
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
