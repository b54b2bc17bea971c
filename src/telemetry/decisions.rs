//! Metrics and events of a limiter's decisions, failures and throttles.

use std::time::Duration;

use parking_lot::Mutex;
use smol_str::SmolStr;
use tokio::time::Instant;

use super::instruments::{DecisionTimer, Instruments};
use super::{DECISIONS, ERRORS, FALLBACKS, REFUND_ERRORS, THROTTLES, describe};
use crate::model::{Decision, Error, Key, Mode, Source, Take, TakeError, Throttle};

/// Reports the decisions of a limiter.
#[derive(Debug)]
pub(crate) struct Decisions {
    limiter: SmolStr,
    /// The source of a store's decision.
    store: &'static str,
    traces_keys: bool,
    instruments: Instruments,
    /// Logs a store that does not answer, without a fallback.
    failures: LogThrottle,
    /// Log requests without a key, requests without a rule, and failed refunds.
    refusals: LogThrottle,
    rules: LogThrottle,
    refunds: LogThrottle,
}

impl Decisions {
    pub(crate) fn new(limiter: SmolStr, in_process: bool, traces_keys: bool) -> Self {
        describe();
        let store = if in_process { "memory" } else { "store" };
        Self {
            instruments: Instruments::new(&limiter, store, in_process),
            limiter,
            store,
            traces_keys,
            failures: LogThrottle::default(),
            refusals: LogThrottle::default(),
            rules: LogThrottle::default(),
            refunds: LogThrottle::default(),
        }
    }

    /// Called before a request is decided.
    #[inline]
    pub(crate) fn begin(&self) -> DecisionTimer {
        self.instruments.begin()
    }

    /// Called after a request was decided.
    #[inline]
    pub(crate) fn end(&self, begun: DecisionTimer, take: &Take, answer: Result<&Decision, &Error>) {
        match answer {
            Ok(decision) => self.decided(begun, take, decision),
            Err(error) => self.failed(take, error),
        }
    }

    /// Reports an answer of the fallback after an error. `first`: logs that the store does not answer.
    pub(crate) fn fell_back(&self, error: &Error, first: bool) {
        let kind = kind(error);
        count!(FALLBACKS, 1, "limiter" => self.limiter.to_string(), "error" => kind);
        if first {
            let limiter = self.limiter.as_str();
            event!(
                WARN,
                limiter = limiter,
                error = kind,
                code = error.database_code().as_deref(),
                cause = self.cause(error),
                "the store does not answer: the fallback does"
            );
        }
    }

    /// Reports a failure without a fallback. Returns whether it was logged, which is seldom, so that logs do not fill up.
    pub(crate) fn log_failure(&self, error: &Error) -> bool {
        let is_logged = self.failures.is_due();
        if is_logged {
            event!(
                WARN,
                limiter = self.limiter.as_str(),
                error = kind(error),
                code = error.database_code().as_deref(),
                cause = self.cause(error),
                "the store does not answer, and nothing does instead"
            );
        }
        is_logged
    }

    /// Reports a throttled bucket.
    pub(crate) fn throttled(&self, key: &Key, throttle: Throttle, lowered: Result<bool, &Error>) {
        let outcome = match lowered {
            Ok(true) => "lowered",
            Ok(false) => "unchanged",
            Err(_) => "error",
        };
        count!(THROTTLES, 1, "limiter" => self.limiter.to_string(), "outcome" => outcome);
        let (limiter, key) = (self.limiter.as_str(), self.traces_keys.then(|| key.as_str()));
        let (left, seconds) = (throttle.get_remaining(), throttle.wait().as_secs_f64());
        match lowered {
            // Every answer of an upstream states the tokens left, so this is frequent.
            Ok(true) if throttle.wait().is_zero() => {
                event!(DEBUG, limiter = limiter, left = left, seconds = seconds, key = key, "throttled");
            }
            Ok(true) => event!(INFO, limiter = limiter, left = left, seconds = seconds, key = key, "throttled"),
            Ok(false) => {}
            Err(error) => event!(
                WARN,
                limiter = limiter,
                left = left,
                seconds = seconds,
                error = kind(error),
                key = key,
                "could not throttle"
            ),
        }
    }

    /// Warns that the environment has set the mode of a new limiter.
    pub(crate) fn switched(&self, mode: Mode) {
        event!(WARN, limiter = self.limiter.as_str(), mode = mode.as_str(), "switched by TOLLGATE_MODE");
    }

    /// Reports what a middleware did without a decision.
    pub(crate) fn record(&self, event: MiddlewareEvent<'_>) {
        match event {
            MiddlewareEvent::RefusedWithoutKey { status, reason } => self.refused_without_key(status, reason),
            MiddlewareEvent::AdmittedWithoutKey => self.admitted_without_key(),
            MiddlewareEvent::RuleFailed(error) => self.rule_failed(error),
            MiddlewareEvent::RefundFailed(error) => self.refund_failed(error),
        }
    }

    /// Reports a refused request without a key. A `reason` states a fault of the service, which affects many requests.
    fn refused_without_key(&self, status: u16, reason: Option<&str>) {
        // Without a reason, the client left its key out, so the service is not at fault.
        self.undecided(Source::Limiter.as_str(), if reason.is_some() { "not_set_up" } else { "no_key" });
        let limiter = self.limiter.as_str();
        if reason.is_some() && self.refusals.is_due() {
            event!(WARN, limiter = limiter, status = status, reason = reason, "request without a key");
        } else {
            event!(DEBUG, limiter = limiter, status = status, reason = reason, "request without a key");
        }
    }

    /// Reports a request without a key that the layer admits by its settings.
    fn admitted_without_key(&self) {
        let (source, mode) = (Source::Limiter.as_str(), Mode::Enforce.as_str());
        count!(
            DECISIONS, 1,
            "limiter" => self.limiter.to_string(), "outcome" => "granted", "source" => source, "mode" => mode,
        );
        event!(DEBUG, limiter = self.limiter.as_str(), "request without a key passes");
    }

    /// Reports a request whose rule failed. It was refused, or passed in shadow mode.
    fn rule_failed(&self, error: &Error) {
        // The service sets the rule, so every error counts as a fault of the service.
        let kind = NOT_SET_UP;
        self.undecided(Source::Limiter.as_str(), kind);
        let (limiter, error, cause) = (self.limiter.as_str(), kind, self.cause(error));
        if self.rules.is_due() {
            event!(WARN, limiter = limiter, error = error, cause = cause, "no limits for a request");
        } else {
            event!(DEBUG, limiter = limiter, error = error, cause = cause, "no limits for a request");
        }
    }

    /// Reports a failed or unknown refund, which the client pays for.
    fn refund_failed(&self, error: &Error) {
        let (limiter, kind, code) = (self.limiter.as_str(), kind(error), error.database_code());
        let (code, cause) = (code.as_deref(), self.cause(error));
        count!(REFUND_ERRORS, 1, "limiter" => self.limiter.to_string(), "error" => kind);
        if self.refunds.is_due() {
            event!(WARN, limiter = limiter, error = kind, code = code, cause = cause, "could not give back");
        } else {
            event!(DEBUG, limiter = limiter, error = kind, code = code, cause = cause, "could not give back");
        }
    }

    /// Logs that the store answers again.
    pub(crate) fn answers_again(&self) {
        event!(INFO, limiter = self.limiter.as_str(), "the store answers again");
    }

    #[inline]
    fn decided(&self, begun: DecisionTimer, take: &Take, decision: &Decision) {
        self.instruments.count(&self.limiter, self.source(decision), begun, decision);
        let (outcome, source, mode) = (decision.outcome(), self.source(decision), decision.mode().as_str());
        let (limiter, key) = (self.limiter.as_str(), self.key(take, decision.place()));
        if decision.is_granted() {
            event!(TRACE, limiter = limiter, outcome = outcome, source = source, mode = mode, key = key, "decided");
        } else {
            event!(DEBUG, limiter = limiter, outcome = outcome, source = source, mode = mode, key = key, "decided");
        }
    }

    #[cold]
    fn failed(&self, take: &Take, error: &Error) {
        let kind = kind(error);
        self.undecided(self.store, kind);
        let (limiter, code, cause, key) =
            (self.limiter.as_str(), error.database_code(), self.cause(error), self.key(take, 0));
        let code = code.as_deref();
        // A missing plan or bucket fails each of its requests until an operator creates it.
        if kind == NOT_SET_UP && self.rules.is_due() {
            let plan = if let Error::Take(TakeError::UnknownPlan { plan, .. }) = error {
                plan.as_ref().map(Key::as_str)
            } else {
                None
            };
            event!(WARN, limiter = limiter, error = kind, plan = plan, cause = cause, key = key, "no decision");
        } else {
            event!(DEBUG, limiter = limiter, error = kind, code = code, cause = cause, key = key, "no decision");
        }
    }

    /// Counts a request without a decision.
    fn undecided(&self, source: &'static str, error: &'static str) {
        let (limiter, mode) = (|| self.limiter.to_string(), Mode::Enforce.as_str());
        count!(
            DECISIONS, 1,
            "limiter" => limiter(), "outcome" => "error", "source" => source, "mode" => mode,
        );
        count!(ERRORS, 1, "limiter" => limiter(), "error" => error);
    }

    /// The text of an error and its sources. A routine's message can name the key of this or another request in the same call, so
    /// it is included only if keys are traced.
    fn cause(&self, error: &Error) -> String {
        let names_no_key = matches!(
            error,
            Error::NewerSchema { .. }
                | Error::NotMigrated(_)
                | Error::NotPermitted(_)
                | Error::ReadOnly(_)
                | Error::Unavailable(_)
        );
        if self.traces_keys || names_no_key { chain(error) } else { String::new() }
    }

    fn source(&self, decision: &Decision) -> &'static str {
        match decision.source() {
            Source::Store => self.store,
            other => other.as_str(),
        }
    }

    /// The key that decided, if keys are traced.
    fn key<'a>(&self, take: &'a Take, place: usize) -> Option<&'a str> {
        let limit = take.limits.get(place).filter(|_| self.traces_keys);
        limit.map(|limit| limit.key.as_str())
    }
}

/// The kind of an error that an operator or a programmer must mend.
const NOT_SET_UP: &str = "not_set_up";

/// The kind of an error, in one word that never names a key.
fn kind(error: &Error) -> &'static str {
    match error {
        Error::Contended { .. } => "contended",
        Error::DeadlineExceeded(_) => "deadline_exceeded",
        Error::Database(_) => "refused",
        Error::NewerSchema { .. } => "newer_schema",
        Error::CircuitOpen { .. } => "circuit_open",
        Error::NotMigrated(_) => "not_migrated",
        Error::NotPermitted(_) => "not_permitted",
        Error::OutcomeUnknown(_) => "outcome_unknown",
        Error::Overloaded(_) | Error::Take(TakeError::TooManyKeys(_) | TakeError::TooManyIds(_)) => "overloaded",
        Error::ReadOnly(_) => "read_only",
        Error::Unavailable(_) => "unavailable",
        Error::Unreadable { .. } => "unreadable",
        Error::Take(
            TakeError::Conflict(_)
            | TakeError::LimitKeyTooLong(_)
            | TakeError::MissingCost { .. }
            | TakeError::NothingToCharge(_)
            | TakeError::UnknownCost(_)
            | TakeError::UnknownBucket(_)
            | TakeError::UnknownPlan { .. }
            | TakeError::WindowNotAlone(_),
        ) => NOT_SET_UP,
        Error::Invalid(_) | Error::Throttle(_) | Error::Key(_) | Error::Mode(_) | Error::Quota(_) | Error::Take(_) => {
            "invalid_request"
        }
        Error::Other(_) => "other",
    }
}

/// An error with its sources.
fn chain(error: &Error) -> String {
    let sources = std::iter::successors(std::error::Error::source(error), |error| error.source());
    sources.fold(error.to_string(), |text, error| text + ": " + &error.to_string())
}

/// Limits a log message to the first time and then once a minute, because it can apply to every request.
#[derive(Debug, Default)]
struct LogThrottle(Mutex<Option<Instant>>);

impl LogThrottle {
    fn is_due(&self) -> bool {
        let mut logged_at = self.0.lock();
        let is_due = logged_at.is_none_or(|logged_at| logged_at.elapsed() >= MINUTE);
        if is_due {
            *logged_at = Some(Instant::now());
        }
        is_due
    }
}

const MINUTE: Duration = Duration::from_secs(60);

/// The action of a middleware on a request for which its limiter made no decision: see
/// [`MiddlewareHooks::record`](crate::middleware::MiddlewareHooks::record).
///
/// ```
/// use tollgate::middleware::{MiddlewareEvent, MiddlewareHooks};
/// use tollgate::{Limiter, MemoryStore};
///
/// # fn main() -> Result<(), tollgate::Error> {
/// let limiter = Limiter::new(MemoryStore::new(), "10/s")?;
/// // The client sent no API key.
/// limiter.record(MiddlewareEvent::RefusedWithoutKey { status: 401, reason: None });
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum MiddlewareEvent<'a> {
    /// The middleware refused a request that has no key.
    RefusedWithoutKey {
        /// The HTTP status of the answer.
        status: u16,
        /// The fault of the service, which is logged as a warning. `None`: the client left the key out.
        reason: Option<&'a str>,
    },
    /// The middleware admitted a request that has no key.
    AdmittedWithoutKey,
    /// The middleware could not determine the rule of a request.
    RuleFailed(&'a Error),
    /// The middleware could not give unused tokens back.
    RefundFailed(&'a Error),
}
