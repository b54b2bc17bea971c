use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::timeout;

use super::breaker::Breaker;
use super::fallback::{Fallback, Instead};
use crate::telemetry::Decisions;
use crate::{Decision, Error, Take, TakeError};

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
    breaker: Breaker,
}

/// What those who watch are told of the store.
#[derive(Debug)]
struct Asked {
    /// Whether they were told that it does not answer.
    fails: AtomicBool,
    decisions: Arc<Decisions>,
}

impl Policy {
    pub(super) fn new(deadline: Option<Duration>, fallback: Option<Fallback>, decisions: &Arc<Decisions>) -> Self {
        let chosen = |fallback| Chosen {
            instead: Instead::new(fallback),
            count: AtomicU64::new(0),
            breaker: Breaker::default(),
        };
        let asked = Asked { fails: AtomicBool::new(false), decisions: Arc::clone(decisions) };
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
    pub(super) async fn bounded<T>(
        &self,
        asked: Asking<'_, impl Future<Output = Result<Result<T, TakeError>, Error>>>,
    ) -> Result<Result<T, TakeError>, Error> {
        let Some(chosen) = &self.instead else {
            let answer = by_deadline(self.deadline, asked).await;
            match &answer {
                Ok(Ok(_)) => self.asked.answers(),
                Err(error) if error.is_failure() => self.asked.fails(error),
                // What can never be granted is known without asking.
                Ok(Err(_)) | Err(_) => {}
            }
            return answer;
        };
        let asking = chosen.breaker.ask().map_err(|resting| Error::Unavailable(Arc::new(resting)))?;
        let answer = by_deadline(self.deadline, asked).await;
        asking.has(!answer.as_ref().is_err_and(Error::is_failure));
        if matches!(answer, Ok(Ok(_))) {
            self.asked.answers();
        }
        answer
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
