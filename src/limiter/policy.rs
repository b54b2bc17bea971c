use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::timeout;

use super::breaker::{Asking as Asker, Breaker};
use super::fallback::{Fallback, Instead};
use super::reservation::Turn;
use crate::model::{Decision, Error, Key, Take, TakeError};
use crate::store::Store;
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
