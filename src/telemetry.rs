//! Metrics and events, with the features `metrics` and `tracing`: `docs/observability.md` lists them.
//!
//! Without a feature, its macros only borrow their arguments and its types are empty, so callers need no `cfg`. The hot paths keep
//! their instruments, because a recorder looks each up by its name and labels. So the recorder must be installed before the
//! first decision.

#![cfg_attr(
    not(all(feature = "metrics", feature = "tracing", feature = "_sql")),
    allow(
        dead_code,
        unused_imports,
        unused_macros,
        clippy::if_same_then_else,
        clippy::needless_pass_by_ref_mut,
        clippy::trivially_copy_pass_by_ref,
        clippy::unused_self,
        reason = "items of a disabled feature are empty"
    )
)]

// The macros stand before the modules that use them. Without its feature, each only borrows its arguments.

/// Adds to a counter.
#[cfg(feature = "metrics")]
macro_rules! count {
    ($name:expr, $by:expr $(, $label:literal => $value:expr)* $(,)?) => {
        ::metrics::counter!($name $(, $label => $value)*).increment($by)
    };
}
#[cfg(not(feature = "metrics"))]
macro_rules! count {
    ($name:expr, $by:expr $(, $label:literal => $value:expr)* $(,)?) => {{
        let _ = (&$name, &$by $(, &$value)*);
    }};
}

/// Adds a value to a histogram.
#[cfg(feature = "metrics")]
macro_rules! record {
    ($name:expr, $value:expr $(, $label:literal => $text:expr)* $(,)?) => {
        ::metrics::histogram!($name $(, $label => $text)*).record($value)
    };
}
#[cfg(not(feature = "metrics"))]
macro_rules! record {
    ($name:expr, $value:expr $(, $label:literal => $text:expr)* $(,)?) => {{
        let _ = (&$name, &$value $(, &$text)*);
    }};
}

/// Logs an event: a level, fields and a text.
#[cfg(feature = "tracing")]
macro_rules! event {
    ($level:ident, $($field:ident = $value:expr,)* $text:literal) => {
        ::tracing::event!(target: "tollgate", ::tracing::Level::$level, $($field = $value,)* $text)
    };
}
#[cfg(not(feature = "tracing"))]
macro_rules! event {
    ($level:ident, $($field:ident = $value:expr,)* $text:literal) => {{
        let _ = ($(&$value,)*);
    }};
}

mod calls;
pub(crate) mod decisions;
mod instruments;

#[cfg(feature = "postgres")]
pub(crate) use calls::ignored;
#[cfg(feature = "_sql")]
pub(crate) use calls::{ObservedCall, less_durable, migrated, newer, retried};
pub(crate) use calls::{recorded_usage, swept};
pub(crate) use decisions::Decisions;
pub(crate) use instruments::{DecisionTimer, GaugeShare};

const DECISIONS: &str = "tollgate_decisions_total";
const DECISION_SECONDS: &str = "tollgate_decision_duration_seconds";
const ERRORS: &str = "tollgate_errors_total";
const FALLBACKS: &str = "tollgate_fallbacks_total";
const THROTTLES: &str = "tollgate_throttles_total";
const REFUND_ERRORS: &str = "tollgate_refund_errors_total";
#[cfg(feature = "_sql")]
const CALL_SECONDS: &str = "tollgate_store_call_duration_seconds";
#[cfg(feature = "_sql")]
const CALL_REQUESTS: &str = "tollgate_store_call_requests";
#[cfg(feature = "_sql")]
const RETRIES: &str = "tollgate_store_retries_total";
const SWEEPS: &str = "tollgate_sweeps_total";
const SWEPT: &str = "tollgate_swept_total";
pub(crate) const QUEUE: &str = "tollgate_queue_length";
pub(crate) const WAITERS: &str = "tollgate_waiters";
pub(crate) const LEASED: &str = "tollgate_leased_tokens";

/// Describes each metric to the recorder. Every limiter repeats it, which is harmless.
#[cfg(feature = "metrics")]
fn describe() {
    use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};

    describe_counter!(DECISIONS, "Decisions of limiters, by outcome, by where they were made, and by mode");
    describe_histogram!(DECISION_SECONDS, Unit::Seconds, "Duration of decisions that were not made from memory");
    describe_counter!(ERRORS, "Requests that the store did not decide, by error");
    describe_counter!(FALLBACKS, "Decisions of the fallback instead of the store, by error");
    describe_counter!(THROTTLES, "Throttles that upstream answers asked for, by whether they lowered a bucket");
    describe_counter!(REFUND_ERRORS, "Failed refunds of layers, by error");
    describe_counter!(SWEEPS, "Sweep steps, by outcome");
    describe_counter!(SWEPT, "Rows that sweeps deleted");
    describe_gauge!(QUEUE, "Requests of this process that wait for the next call of the store");
    describe_gauge!(WAITERS, "Callers of this process that wait for their tokens");
    describe_gauge!(LEASED, "Leased tokens that this process has not used");
    #[cfg(feature = "_sql")]
    {
        describe_histogram!(CALL_SECONDS, Unit::Seconds, "Duration of calls to the database, with their retries");
        describe_histogram!(CALL_REQUESTS, "Requests in a call to the database");
        describe_counter!(RETRIES, "Repeated calls, by the database's error code");
    }
}

#[cfg(not(feature = "metrics"))]
fn describe() {}
