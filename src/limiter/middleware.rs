//! The interface of middleware to its limiter, beside decisions.

use tokio::task::JoinHandle;

use super::Limiter;
use crate::store::{Store, sealed};
#[doc(inline)]
pub use crate::telemetry::decisions::MiddlewareEvent;

/// Methods of a [`Limiter`] for middleware: its settings, its telemetry and its tasks. Services do not need them.
///
/// The trait is sealed.
pub trait MiddlewareHooks: sealed::Sealed {
    /// Returns how many tokens each request leaves: see [`LimiterBuilder::min_remaining`](crate::LimiterBuilder::min_remaining).
    fn min_remaining(&self) -> u64;

    /// Counts and logs what the middleware did with a request without asking for a decision.
    ///
    /// Does nothing without the features `metrics` and `tracing`. Decisions count by themselves.
    fn record(&self, event: MiddlewareEvent<'_>);

    /// Spawns a task that [`Limiter::close`] waits for, such as one that gives tokens back.
    ///
    /// # Panics
    ///
    /// Panics if called outside of a Tokio runtime.
    fn spawn<T: Send + 'static>(&self, task: impl Future<Output = T> + Send + 'static) -> JoinHandle<T>;
}

impl<S: Store> sealed::Sealed for Limiter<S> {}

impl<S: Store> MiddlewareHooks for Limiter<S> {
    fn min_remaining(&self) -> u64 {
        self.min_remaining
    }

    fn record(&self, event: MiddlewareEvent<'_>) {
        self.decisions.record(event);
    }

    fn spawn<T: Send + 'static>(&self, task: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
        self.stack.tasks.spawn(task)
    }
}
