//! The builder of a limiter: layers, deadline, fallback and defaults of requests.

use std::sync::Arc;
use std::time::Duration;

use smol_str::SmolStr;

use super::Limiter;
use super::denial_reporter::DenialReporter;
use super::policy::{Fallback, Policy};
use super::settings::{CurrentMode, CurrentRule};
use super::stack::{LayerOptions, Stack};
use super::sweeper::Sweeper;
use crate::layers::LeaseOptions;
use crate::model::{Error, Mode, Rule};
use crate::store::Store;
use crate::telemetry::Decisions;

/// Builder for a [`Limiter`] with non-default settings: see [`Limiter::builder`].
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Fallback, Limiter, MemoryStore, Quota};
///
/// let jobs = Limiter::builder(MemoryStore::new())
///     .min_remaining(20) // for people
///     .max_wait(Duration::from_secs(5))
///     .deadline(Duration::from_millis(50))
///     .fallback(Fallback::Local(Quota::per_second(10).build()?))
///     .build(Quota::per_second(100))?;
/// # let _ = jobs;
/// # Ok::<(), tollgate::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "build it"]
pub struct LimiterBuilder<S: Store> {
    store: S,
    min_remaining: u64,
    max_wait: Duration,
    deadline: Option<Duration>,
    fallback: Option<Fallback>,
    layers: LayerOptions,
    sweeper: Option<Arc<Sweeper>>,
    mode: Option<Mode>,
    denials: Option<Arc<DenialReporter>>,
    name: SmolStr,
    traces_keys: bool,
    has_circuit_breaker: bool,
}

impl<S: Store> LimiterBuilder<S> {
    pub(super) fn new(store: S) -> Self {
        Self {
            store,
            min_remaining: 0,
            max_wait: Duration::from_secs(30),
            deadline: None,
            fallback: None,
            layers: LayerOptions::default(),
            sweeper: Some(Arc::default()),
            mode: None,
            denials: None,
            name: SmolStr::new_static("default"),
            traces_keys: false,
            has_circuit_breaker: true,
        }
    }

    /// Sets how many tokens must remain after each request. Default: 0.
    ///
    /// A limiter for batch jobs with 20, for instance, leaves 20 tokens for interactive requests.
    pub fn min_remaining(self, min_remaining: u64) -> Self {
        Self { min_remaining, ..self }
    }

    /// Sets the longest wait of [`reserve`](Limiter::reserve) and [`wait`](Limiter::wait), at most 366 days. Default: 30 s.
    ///
    /// Requests that would wait longer are denied at once. Without a bound, one caller could reserve all tokens of the future.
    pub fn max_wait(self, max_wait: Duration) -> Self {
        Self { max_wait, ..self }
    }

    /// Sets a deadline for each call, including its time in the queue behind earlier calls. Default: none, so each call waits
    /// for the store's own deadline (default: 5 s). The time that a `wait` sleeps does not count.
    ///
    /// Calls without an answer by then fail with [`DeadlineExceeded`](Error::DeadlineExceeded). A request that is still in the
    /// queue takes nothing. Tokens that a `wait` takes later are given back, as by a
    /// [cancellation](crate::Reservation::cancel). An `allow` or a `reserve` may have taken tokens: give such requests an
    /// [id](crate::Take::id), and repeat them.
    pub fn deadline(self, deadline: Duration) -> Self {
        Self { deadline: Some(deadline), ..self }
    }

    /// Answers failures of the store by `fallback`. Default: failures are errors.
    ///
    /// After sixteen failures in a row the fallback answers at once. Beside it, requests start one probe of the store at a time, so
    /// normal service resumes with the requests soon after the server accepts connections, usually within 300 ms.
    ///
    /// Also set a [`deadline`](Self::deadline): it bounds the wait for the fallback's answer. Without one, each call waits for the
    /// store's own deadline (default: 5 s) while the database does not answer.
    pub fn fallback(self, fallback: Fallback) -> Self {
        Self { fallback: Some(fallback), ..self }
    }

    /// Makes each request call the store, even during an outage. Use it for jobs that wait rather than fail.
    ///
    /// Default: after sixteen failures in a row, without an answer to any request, the circuit breaker opens. Requests then get
    /// the fallback's answer at once, or fail with [`CircuitOpen`](Error::CircuitOpen) without a fallback. Each starts a task that
    /// tests the store, unless one is running. The task asks for the request's tokens and gives them back.
    ///
    /// Without a fallback, a failure counts only if the request exceeded its deadline or waited for a second or longer. Fast
    /// errors go to each caller.
    ///
    /// A request that is [`Contended`](Error::Contended) within a second counts as an answer. A bucket that is locked for
    /// longer counts as a failure, unless another request is answered meanwhile. If all failures are for one bucket, one request for
    /// another bucket also calls the store, and its answer closes the circuit breaker.
    pub fn without_circuit_breaker(self) -> Self {
        Self { has_circuit_breaker: false, ..self }
    }

    /// Makes a call of the store for each request.
    ///
    /// Default: requests that arrive while calls are in flight share the next one, see [`Batcher`](crate::layers::Batcher).
    ///
    /// # Cancel safety
    ///
    /// Without batching, a caller that is dropped while its call is in flight loses the tokens.
    pub fn without_batching(self) -> Self {
        Self { layers: LayerOptions { batches: false, ..self.layers }, ..self }
    }

    /// Makes requests call the store even if it has just denied the key.
    ///
    /// Default: a key that was just denied is denied from memory for at most a second, so that an attack hardly loads the
    /// database. See [`DenyCache`](crate::layers::DenyCache).
    pub fn without_deny_cache(self) -> Self {
        Self { layers: LayerOptions { denials: None, ..self.layers }, ..self }
    }

    /// Sets how many keys the [`DenyCache`](crate::layers::DenyCache) holds at most. Default: 65,536.
    pub fn deny_cache_max_keys(self, max_keys: usize) -> Self {
        Self { layers: LayerOptions { denials: Some(max_keys), ..self.layers }, ..self }
    }

    /// Prefetches tokens of busy buckets, and serves requests from them in this process. Default: no tokens are prefetched.
    ///
    /// [`Lease`](crate::layers::Lease) states the bound on the loss of exactness. [`close`](Limiter::close) the limiter before
    /// the process ends.
    pub fn lease(self, options: LeaseOptions) -> Self {
        Self { layers: LayerOptions { lease: Some(options), ..self.layers }, ..self }
    }

    /// Leaves the cleanup of expired rows, and the recording of usage, to other processes.
    ///
    /// Default: while requests come, a background task makes a few steps of
    /// [`Maintenance::sweep`](crate::store::Maintenance::sweep) now and then. Once a minute, another one calls
    /// [`Maintenance::record_usage`](crate::store::Maintenance::record_usage). Their failures do not affect requests.
    pub fn without_sweep(self) -> Self {
        Self { sweeper: None, ..self }
    }

    /// Counts the denials of the `max_keys` keys that are denied most, at most 1000 keys, for
    /// [`Admin::most_denied`](crate::Admin::most_denied). Default: denials are not counted.
    ///
    /// Requests that pass only because of the [shadow](Mode::Shadow) mode of the store, the limiter or a layer count as
    /// denials. So the counts show which keys a new limit would deny.
    ///
    /// A background task reports the counts to the store every ten seconds, and [`close`](Limiter::close) reports the last
    /// ones. No decision waits for a report. If the process dies, the counts of the last ten seconds are lost, so the counts
    /// are lower bounds.
    pub fn count_denials(self, max_keys: usize) -> Self {
        Self { denials: Some(Arc::new(DenialReporter::new(max_keys))), ..self }
    }

    /// Sets the limiter's name in metrics and traces. Default: `default`. The name does not affect keys.
    ///
    /// With the feature `metrics`, install the recorder before you build the limiter, because the limiter keeps the counters of
    /// the recorder that it finds.
    pub fn name(self, name: impl AsRef<str>) -> Self {
        Self { name: name.as_ref().into(), ..self }
    }

    /// Includes keys in the events of `tracing`. Keys can be personal data, such as addresses or accounts.
    ///
    /// Default: events do not name keys. Metrics never do.
    pub fn trace_keys(self) -> Self {
        Self { traces_keys: true, ..self }
    }

    /// Sets the mode of the limiter itself: see [`Limiter::set_mode`].
    ///
    /// Default: the environment variable `TOLLGATE_MODE` at the time of [`build`](Self::build), so that you can start a service
    /// with its limiters off or blocking. Without the variable: [`Enforce`](Mode::Enforce).
    pub fn mode(self, mode: Mode) -> Self {
        Self { mode: Some(mode), ..self }
    }

    /// Builds the limiter. The rule is a [`Quota`](crate::Quota), a [`QuotaBuilder`](crate::model::QuotaBuilder), a
    /// [`Window`](crate::Window), a text such as `10/s burst 20`, or a [`Rule`].
    ///
    /// # Errors
    ///
    /// Returns an error if the rule is not valid, or `TOLLGATE_MODE` is not a valid mode.
    pub fn build<R>(self, rule: R) -> Result<Limiter<S>, Error>
    where
        R: TryInto<Rule>,
        Error: From<R::Error>,
    {
        let mode = self.mode.map_or_else(CurrentMode::from_environment, Ok)?;
        let rule = rule.try_into()?;
        let stack = Arc::new(Stack::new(self.store, self.layers, self.deadline));
        let decisions = Arc::new(Decisions::new(self.name, stack.capabilities().in_process, self.traces_keys));
        if self.mode.is_none() && mode != Mode::Enforce {
            decisions.switched(mode);
        }
        let records_usage = self.sweeper.is_some() && !stack.capabilities().in_process;
        Ok(Limiter {
            stack,
            rule: Arc::new(CurrentRule::new(rule)),
            min_remaining: self.min_remaining,
            max_wait: self.max_wait,
            policy: Policy::new(self.deadline, self.fallback, &decisions, self.has_circuit_breaker),
            mode: Arc::new(CurrentMode::new(mode)),
            decisions,
            denials: self.denials,
            sweeper: self.sweeper,
            usage: records_usage.then(Arc::default),
        })
    }
}
