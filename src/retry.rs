use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::{Instant, sleep, timeout_at};

use crate::Error;
use crate::error::Cause;

/// How long to try. Retries only what is known to be rolled back: what may have been applied is never asked twice.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Retry {
    pub(crate) deadline: Duration,
    pub(crate) attempts: u32,
}

impl Retry {
    /// Runs `attempt` until it answers, with full jitter in between, and says how often it ran.
    pub(crate) async fn run<T, F>(&self, attempt: impl Fn(Instant) -> F) -> Result<(T, u32), Error>
    where
        F: Future<Output = Result<T, Failure>>,
    {
        let deadline = Instant::now() + self.deadline();
        let mut attempts = 1;
        loop {
            let failure = match attempt(deadline).await {
                Ok(answer) => return Ok((answer, attempts)),
                Err(failure) => failure,
            };
            let pause = jitter(attempts);
            let again = failure.class == Class::RolledBack && attempts < self.attempts;
            if !again || Instant::now() + pause >= deadline {
                return Err(failure.into_error(attempts, self.deadline));
            }
            sleep(pause).await;
            attempts += 1;
        }
    }

    /// Short enough for the runtime's clock to add it to an instant, twice.
    pub(crate) fn deadline(&self) -> Duration {
        const NEVER: Duration = Duration::from_secs(366 * 86_400);
        self.deadline.min(NEVER)
    }
}

impl Default for Retry {
    fn default() -> Self {
        Self { deadline: Duration::from_secs(5), attempts: 10 }
    }
}

/// Why an attempt came to nothing.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) class: Class,
    source: Cause,
}

impl Failure {
    pub(crate) fn new(class: Class, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self { class, source: Arc::new(source) }
    }

    pub(crate) fn into_error(self, attempts: u32, deadline: Duration) -> Error {
        let Self { class, source } = self;
        match class {
            Class::NotMigrated => Error::NotMigrated(source),
            Class::NotPermitted => Error::NotPermitted(source),
            Class::Refused => Error::Database(source),
            Class::RolledBack => Error::Contended { attempts, source },
            Class::TimedOut => Error::DeadlineExceeded(deadline),
            Class::Unavailable => Error::Unavailable(source),
            Class::Unknown => Error::OutcomeUnknown(source),
        }
    }
}

/// What an error of the database means for the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// The schema is missing.
    NotMigrated,
    /// The role may not call it.
    NotPermitted,
    /// The database said no, and would again.
    Refused,
    /// Nothing was applied, and another attempt may succeed.
    RolledBack,
    /// The deadline passed while the database had the request.
    TimedOut,
    /// Nothing was sent.
    Unavailable,
    /// It may have been applied.
    Unknown,
}

/// Waits for a conversation that owns its connection: a caller who gives up does not break it off half-way.
///
/// It runs in a task of its own: whatever it has begun goes on even while the caller looks elsewhere.
pub(crate) async fn finish<T: Send + 'static>(
    deadline: Instant,
    conversation: impl Future<Output = Result<T, Failure>> + Send + 'static,
) -> Result<T, Failure> {
    match timeout_at(deadline, tokio::spawn(conversation)).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(stopped)) => Err(Failure::new(Class::Unknown, stopped)),
        Err(elapsed) => Err(Failure::new(Class::TimedOut, elapsed)),
    }
}

/// The same for a conversation of one statement, which holds nothing once the server has run it: the caller's own task
/// listens, which saves two changes of tasks, and what is left when it gives up goes to another.
pub(crate) async fn finish_statement<T: Send + 'static>(
    deadline: Instant,
    statement: impl Future<Output = Result<T, Failure>> + Send + 'static,
) -> Result<T, Failure> {
    match timeout_at(deadline, Handover(Some(Box::pin(statement)))).await {
        Ok(answer) => answer,
        Err(elapsed) => Err(Failure::new(Class::TimedOut, elapsed)),
    }
}

/// A future that goes on in a task of its own when it is dropped before its end.
struct Handover<F: Future<Output: Send> + Send + 'static>(Option<Pin<Box<F>>>);

impl<F: Future<Output: Send> + Send + 'static> Future for Handover<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let future = self.0.as_mut().expect("nobody polls a future that has ended");
        let output = ready!(future.as_mut().poll(context));
        self.0 = None;
        Poll::Ready(output)
    }
}

impl<F: Future<Output: Send> + Send + 'static> Drop for Handover<F> {
    fn drop(&mut self) {
        // No runtime any more: the process is ending, and its connections with it.
        if let (Some(rest), Ok(runtime)) = (self.0.take(), Handle::try_current()) {
            runtime.spawn(rest);
        }
    }
}

/// A random pause below a bound that doubles (AWS's "full jitter"): 2 ms, 4 ms, … 128 ms.
fn jitter(attempts: u32) -> Duration {
    let bound = 2_000 << (attempts - 1).min(6);
    Duration::from_micros(fastrand::u64(0..bound))
}

#[cfg(test)]
mod tests {
    use super::{Duration, jitter};

    #[test]
    fn pauses_are_spread_over_everything_below_a_bound_that_doubles() {
        for (attempts, bound) in
            [(1, 2), (2, 4), (3, 8), (4, 16), (5, 32), (6, 64), (7, 128), (8, 128), (u32::MAX, 128)]
        {
            let bound = Duration::from_millis(bound);
            let pauses: Vec<Duration> = (0..1000).map(|_| jitter(attempts)).collect();
            assert!(pauses.iter().all(|&pause| pause < bound), "after {attempts} attempts");
            for part in 0..4 {
                let (from, to) = (bound * part / 4, bound * (part + 1) / 4);
                let there = pauses.iter().filter(|&&pause| from <= pause && pause < to).count();
                assert!(there > 100, "after {attempts} attempts {there} of 1000 pauses from {from:?} to {to:?}");
            }
        }
    }
}
