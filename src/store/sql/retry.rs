//! Attempts of a call until its deadline, the classes of their errors, and calls that outlive their caller.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use smol_str::SmolStr;
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep, timeout_at};

use crate::model::Error;
use crate::model::error::Cause;
use crate::store::CallOptions;
use crate::telemetry;

/// How long and how often to attempt a call. Retries only what the database certainly rolled back: a call that may have
/// been applied is never repeated.
#[derive(Clone, Copy, Debug)]
pub(super) struct Retry {
    pub(super) deadline: Duration,
    pub(super) attempts: u32,
}

impl Retry {
    /// Runs `attempt` until it answers, with full jitter in between, and returns the answer with the number of
    /// attempts.
    pub(super) async fn run<T, F>(
        &self,
        options: CallOptions,
        attempt: impl Fn(Instant) -> F,
    ) -> Result<(T, u32), Error>
    where
        F: Future<Output = Result<T, Failure>>,
    {
        let deadline = Instant::now() + self.deadline();
        let mut attempts = 1;
        let mut earlier: Option<Failure> = None;
        loop {
            let failure = match (attempt(deadline).await, earlier.take()) {
                (Ok(answer), _) => return Ok((answer, attempts)),
                // The deadline left the last attempt no time for a connection: the failure before it is the cause.
                (Err(failure), Some(cause))
                    if failure.class == ErrorClass::Unavailable && Instant::now() >= deadline =>
                {
                    return Err(cause.into_error(attempts, self.deadline));
                }
                (Err(failure), _) => failure,
            };
            let pause = jitter(attempts);
            let again = match failure.class {
                ErrorClass::RolledBack | ErrorClass::Unprepared => true,
                ErrorClass::Locked => !options.fail_fast_on_lock,
                _ => false,
            };
            let again = again && attempts < self.attempts;
            if !again || Instant::now() + pause >= deadline {
                return Err(failure.into_error(attempts, self.deadline));
            }
            telemetry::retried(failure.code(), attempts);
            sleep(pause).await;
            attempts += 1;
            earlier = Some(failure);
        }
    }

    /// The deadline, bounded so that the runtime's clock can add it to an instant twice.
    pub(super) fn deadline(&self) -> Duration {
        const NEVER: Duration = Duration::from_secs(366 * 86_400);
        self.deadline.min(NEVER)
    }
}

impl Default for Retry {
    fn default() -> Self {
        Self { deadline: Duration::from_secs(5), attempts: u32::MAX }
    }
}

/// Why an attempt failed.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) class: ErrorClass,
    code: Option<SmolStr>,
    source: Cause,
}

impl Failure {
    pub(super) fn new(class: ErrorClass, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self { class, code: None, source: Arc::new(source) }
    }

    /// Adds the database's own code for the error.
    pub(super) fn with_code(self, code: Option<SmolStr>) -> Self {
        Self { code, ..self }
    }

    fn code(&self) -> &str {
        self.code.as_deref().unwrap_or("none")
    }

    pub(super) fn into_error(self, attempts: u32, deadline: Duration) -> Error {
        let Self { class, source, .. } = self;
        match class {
            ErrorClass::NotMigrated => Error::NotMigrated(source),
            ErrorClass::NotPermitted => Error::NotPermitted(source),
            ErrorClass::ReadOnly => Error::ReadOnly(source),
            ErrorClass::Refused => unreadable(&source).unwrap_or(Error::Database(source)),
            ErrorClass::Unprepared => Error::Database(source),
            ErrorClass::Locked | ErrorClass::RolledBack => Error::Contended { attempts, source },
            ErrorClass::TimedOut => Error::DeadlineExceeded(deadline),
            ErrorClass::Unavailable => Error::Unavailable(source),
            ErrorClass::Unknown => Error::OutcomeUnknown(source),
        }
    }
}

/// The error about a row that cannot be decoded, if that is the cause.
fn unreadable(cause: &Cause) -> Option<Error> {
    match cause.downcast_ref()? {
        sqlx::Error::Decode(error) => error.downcast_ref().cloned(),
        _ => None,
    }
}

/// The effect of a database error on the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorClass {
    /// Nothing was applied: the database could not get a lock in time.
    Locked,
    /// The schema is missing.
    NotMigrated,
    /// The role lacks a privilege.
    NotPermitted,
    /// Nothing was applied: the server is read-only.
    ReadOnly,
    /// The database refused the request, and would refuse it again.
    Refused,
    /// Nothing was applied, and another attempt may succeed.
    RolledBack,
    /// The deadline passed while the database had the request.
    TimedOut,
    /// Nothing was sent.
    Unavailable,
    /// Nothing was applied: a pooler or a migration removed the prepared statement, or another session's has its name. Another
    /// attempt may succeed.
    Unprepared,
    /// The request may have been applied.
    Unknown,
}

/// Waits for a conversation that owns its connection.
///
/// The conversation runs in a task of its own, so that it completes even if the caller is cancelled or stops polling.
pub(super) async fn finish_conversation<T: Send + 'static>(
    deadline: Instant,
    conversation: impl Future<Output = Result<T, Failure>> + Send + 'static,
) -> Result<T, Failure> {
    match timeout_at(deadline, tokio::spawn(conversation)).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(stopped)) => Err(Failure::new(ErrorClass::Unknown, stopped)),
        Err(elapsed) => Err(Failure::new(ErrorClass::TimedOut, elapsed)),
    }
}

/// Waits for a conversation that makes a change, which it commits only if it wins [`CommitClaim::claim`].
///
/// So a change is rolled back if its caller was cancelled before, or got an error that excludes the change.
pub(super) async fn finish_change<T: Send + 'static, F>(
    deadline: Instant,
    conversation: impl FnOnce(CommitClaim) -> F,
) -> Result<T, Failure>
where
    F: Future<Output = Result<T, Failure>> + Send + 'static,
{
    let waiting = ClaimOnDrop(CommitClaim::default());
    match timeout_at(deadline, tokio::spawn(conversation(waiting.0.clone()))).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(stopped)) => Err(Failure::new(ErrorClass::Unknown, stopped)),
        Err(elapsed) if waiting.0.claim() => Err(Failure::new(ErrorClass::Locked, elapsed)),
        // The conversation won the claim and is committing.
        Err(elapsed) => Err(Failure::new(ErrorClass::Unknown, elapsed)),
    }
}

/// The right to commit a change. The conversation or the caller claims it, whichever is first.
#[derive(Clone, Debug, Default)]
#[allow(unreachable_pub, reason = "the signatures of a sealed trait name it")]
pub struct CommitClaim(Arc<AtomicBool>);

impl CommitClaim {
    /// Returns whether this claim is the first.
    pub(super) fn claim(&self) -> bool {
        !self.0.swap(true, Ordering::AcqRel)
    }
}

/// A waiting caller, which claims the right when it is dropped.
struct ClaimOnDrop(CommitClaim);

impl Drop for ClaimOnDrop {
    fn drop(&mut self) {
        self.0.claim();
    }
}

/// Waits for a conversation of one statement, which holds no lock once the server has run it.
///
/// The caller's own task polls the conversation, which saves two task switches. If the caller is cancelled, another
/// task completes it.
pub(super) async fn finish_statement<T: Send + 'static>(
    deadline: Instant,
    statement: impl Future<Output = Result<T, Failure>> + Send + 'static,
) -> Result<T, Failure> {
    match timeout_at(deadline, Handover::new(statement)).await {
        Ok(answer) => answer,
        Err(elapsed) => Err(Failure::new(ErrorClass::TimedOut, elapsed)),
    }
}

/// A future that continues in a task of its own when it is dropped before its end.
///
/// The future is boxed: otherwise the types of the futures that await it would exceed the compiler's recursion limit.
struct Handover<T: Send + 'static> {
    future: Option<Pin<Box<dyn Future<Output = T> + Send>>>,
}

impl<T: Send + 'static> Handover<T> {
    fn new(future: impl Future<Output = T> + Send + 'static) -> Self {
        Self { future: Some(Box::pin(future)) }
    }
}

impl<T: Send + 'static> Future for Handover<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        // Taken out during the poll, so that `drop` does not continue a future that has panicked.
        let mut future = self.future.take().expect("a future is not polled after its end");
        let polled = future.as_mut().poll(context);
        if polled.is_pending() {
            self.future = Some(future);
        }
        polled
    }
}

impl<T: Send + 'static> Drop for Handover<T> {
    fn drop(&mut self) {
        // Without a runtime the process is ending, and its connections with it.
        if let (Some(rest), Ok(runtime)) = (self.future.take(), Handle::try_current()) {
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
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::{CallOptions, Duration, Error, ErrorClass, Failure, Retry, jitter};

    #[tokio::test(start_paused = true)]
    async fn lock_is_reported_if_the_deadline_leaves_no_time_to_connect() {
        let retry = Retry { deadline: Duration::from_secs(5), ..Retry::default() };
        let attempts = AtomicU32::new(0);
        let error = retry.run(CallOptions::default(), |deadline| {
            let is_first = attempts.fetch_add(1, Ordering::Relaxed) == 0;
            async move {
                if is_first {
                    return Err::<(), _>(Failure::new(ErrorClass::Locked, std::fmt::Error));
                }
                tokio::time::sleep_until(deadline).await;
                Err(Failure::new(ErrorClass::Unavailable, std::fmt::Error))
            }
        });
        let error = error.await.expect_err("both attempts fail");
        assert!(matches!(error, Error::Contended { attempts: 2, .. }), "{error:?}");
    }

    #[test]
    fn retry_pauses_are_uniform_below_a_doubling_bound() {
        for (attempts, bound) in
            [(1, 2), (2, 4), (3, 8), (4, 16), (5, 32), (6, 64), (7, 128), (8, 128), (u32::MAX, 128)]
        {
            let bound = Duration::from_millis(bound);
            let pauses: Vec<Duration> = (0..1000).map(|_| jitter(attempts)).collect();
            assert!(pauses.iter().all(|&pause| pause < bound), "after {attempts} attempts");
            for part in 0..4 {
                let (from, to) = (bound * part / 4, bound * (part + 1) / 4);
                let pauses_in_part = pauses.iter().filter(|&&pause| from <= pause && pause < to).count();
                assert!(
                    pauses_in_part > 100,
                    "after {attempts} attempts {pauses_in_part} of 1000 pauses from {from:?} to {to:?}"
                );
            }
        }
    }
}
