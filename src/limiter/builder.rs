use std::sync::Arc;
use std::time::Duration;

use smol_str::SmolStr;

use super::Limiter;
use super::denial_reporter::DenialReporter;
use super::policy::{Fallback, Policy};
use super::settings::{CurrentMode, CurrentRule};
use super::stack::{Layers, Stack};
use super::sweeper::Sweeper;
use crate::layers::LeaseOptions;
use crate::model::{Error, Mode, Rule};
use crate::store::Store;
use crate::telemetry::Decisions;

/// A [`Limiter`] to be, with what is not as usual: see [`Limiter::builder`].
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Fallback, Limiter, MemoryStore, Quota};
///
/// let jobs = Limiter::builder(MemoryStore::new())
///     .min_remaining(20) // for people
///     .max_wait(Duration::from_secs(5))
///     .fallback(Duration::from_millis(50), Fallback::Local(Quota::per_second(10).build()?))
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
    layers: Layers,
    sweeper: Option<Arc<Sweeper>>,
    mode: Option<Mode>,
    denied: Option<Arc<DenialReporter>>,
    name: SmolStr,
    traces_keys: bool,
    breaks: bool,
}

impl<S: Store> LimiterBuilder<S> {
    pub(super) fn new(store: S) -> Self {
        Self {
            store,
            min_remaining: 0,
            max_wait: Duration::from_secs(30),
            deadline: None,
            fallback: None,
            layers: Layers::default(),
            sweeper: Some(Arc::default()),
            mode: None,
            denied: None,
            name: SmolStr::new_static("default"),
            traces_keys: false,
            breaks: true,
        }
    }

    /// How many tokens must remain after each request: a limiter for batch jobs that keeps 20 leaves them for people.
    pub fn min_remaining(self, min_remaining: u64) -> Self {
        Self { min_remaining, ..self }
    }

    /// How far ahead [`reserve`](Limiter::reserve) and [`wait`](Limiter::wait) may take tokens; 30 seconds if not said.
    /// Without a bound one caller could lock all others out.
    pub fn max_wait(self, max_wait: Duration) -> Self {
        Self { max_wait, ..self }
    }

    /// Every call has its answer by then, the time in line for earlier calls included, or is
    /// [`DeadlineExceeded`](Error::DeadlineExceeded); if not said, it has its answer when the store gives one.
    ///
    /// Who leaves the line then takes nothing, and what a `wait` takes later is given back, as if it had been
    /// [cancelled](super::Reservation::cancel). Of `allow` and `reserve` nobody knows whether they took something: give such
    /// a request an [id](crate::Take::id), and ask again.
    pub fn deadline(self, deadline: Duration) -> Self {
        Self { deadline: Some(deadline), ..self }
    }

    /// Every call has its answer by this [`deadline`](Self::deadline), and the store's failures are answered by `fallback`.
    /// Default: they are errors. After sixteen in a row it answers at once, and one request at a time asks the store. Normal
    /// service resumes soon after the server accepts connections, usually within 300 ms.
    ///
    /// Without a fallback and a deadline, each call waits for the store's own deadline while the database does not answer: 5 seconds
    /// by default.
    pub fn fallback(self, deadline: Duration, fallback: Fallback) -> Self {
        Self { fallback: Some(fallback), ..self.deadline(deadline) }
    }

    /// Has each request ask the store, however long it has not answered. If not said, after sixteen failures in a row, while
    /// nobody was answered, one request at a time asks; the others have the fallback's answer at once, or without one are
    /// [`CircuitOpen`](Error::CircuitOpen).
    ///
    /// Without a fallback only those failures count for which a request has waited, by its deadline or for a second and more: what
    /// the store says at once, each is told. That it is contended is an answer; a bucket that is locked for longer than the
    /// deadline has none, which counts if no other is answered meanwhile; but then one request for another bucket asks as well,
    /// and its answer lets all ask again. Jobs that would rather wait than fail want this.
    pub fn without_circuit_breaker(self) -> Self {
        Self { breaks: false, ..self }
    }

    /// Makes a call for each request.
    ///
    /// Default: requests that arrive while calls are in flight share the next one, see [`Batcher`](crate::layers::Batcher). Without
    /// batching, a caller that is dropped while its call is in flight loses the tokens.
    pub fn without_batching(self) -> Self {
        Self { layers: Layers { batches: false, ..self.layers }, ..self }
    }

    /// Asks the store again after each denial. If not said, what was just denied is denied from memory for a second at
    /// most, and an attack costs the database next to nothing: see [`DenyCache`](crate::layers::DenyCache).
    pub fn without_deny_cache(self) -> Self {
        Self { layers: Layers { denials: None, ..self.layers }, ..self }
    }

    /// Remembers the denials of so many keys at most; 65,536 if not said.
    pub fn max_denials(self, keys: usize) -> Self {
        Self { layers: Layers { denials: Some(keys), ..self.layers }, ..self }
    }

    /// Takes tokens of busy buckets ahead of time, and serves requests from them in this process: see
    /// [`Lease`](crate::layers::Lease) for what that costs in exactness. [`close`](Limiter::close) the limiter before the process ends.
    pub fn lease(self, options: LeaseOptions) -> Self {
        Self { layers: Layers { lease: Some(options), ..self.layers }, ..self }
    }

    /// Leaves it to others to clear away what says nothing any more. A limiter does it by itself if not said: now and then
    /// a task of its own makes a few steps of [`Maintenance::sweep`](crate::store::Maintenance::sweep), and a failure of it disturbs nobody.
    pub fn without_sweep(self) -> Self {
        Self { sweeper: None, ..self }
    }

    /// Counts how often keys are denied, of the `max_keys` that are denied most, 1000 at most, and tells the store every ten
    /// seconds, for [`Admin::most_denied`](crate::Admin::most_denied). If not said, nobody counts: a denial writes nothing.
    ///
    /// What [shadow](Mode::Shadow) lets pass is counted as well, be it the store's, the limiter's or a layer's: who a limit that is
    /// tried out would have denied.
    ///
    /// It is told beside requests, and no decision waits for it. When the process dies, ten seconds' counts are lost;
    /// [`close`](Limiter::close) tells the last ones. So the counts are at least so many, never too many.
    pub fn count_denials(self, max_keys: usize) -> Self {
        Self { denied: Some(Arc::new(DenialReporter::new(max_keys))), ..self }
    }

    /// What the limiter is called in metrics and traces: `default` if not said. It is no part of keys. With the feature `metrics`, the recorder has to
    /// be there before the limiter is built, which keeps the counters that it finds.
    pub fn name(self, name: impl Into<SmolStr>) -> Self {
        Self { name: name.into(), ..self }
    }

    /// Tells keys in the events of `tracing`, which may be addresses or accounts of people. If not said, nothing that the
    /// crate tells of itself names a key; metrics never do.
    pub fn trace_keys(self) -> Self {
        Self { traces_keys: true, ..self }
    }

    /// The mode of the limiter itself: see [`Limiter::set_mode`]. If not said, the environment variable `TOLLGATE_MODE`
    /// says it when the limiter is built, so that a service can be started with its limiters off, or blocking.
    pub fn mode(self, mode: Mode) -> Self {
        Self { mode: Some(mode), ..self }
    }

    /// The limiter. The rule is a [`Quota`](crate::Quota), the builder of one, a [`Window`](crate::Window), a text such as
    /// `10/s burst 20`, or a [`Rule`].
    ///
    /// # Errors
    ///
    /// If the figures make no quota, or `TOLLGATE_MODE` holds no mode.
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
        Ok(Limiter {
            stack,
            rule: Arc::new(CurrentRule::new(rule)),
            min_remaining: self.min_remaining,
            max_wait: self.max_wait,
            policy: Policy::new(self.deadline, self.fallback, &decisions, self.breaks),
            mode: Arc::new(CurrentMode::new(mode)),
            decisions,
            denied: self.denied,
            sweeper: self.sweeper,
        })
    }
}
