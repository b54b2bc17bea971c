//! Metrics, spans and events of calls of the database, of sweeps and of the recording of usage.

use super::{SWEEPS, SWEPT};
use crate::model::Error;

/// Reports a step of a sweep, and how many rows it deleted.
pub(crate) fn swept(deleted: Result<u64, &Error>) {
    match deleted {
        Ok(deleted) => {
            count!(SWEEPS, 1, "outcome" => "ok");
            count!(SWEPT, deleted);
            event!(DEBUG, deleted = deleted, "swept");
        }
        Err(error) => {
            count!(SWEEPS, 1, "outcome" => "error");
            event!(DEBUG, error = error.to_string(), "could not sweep");
        }
    }
}

/// Reports a step that recorded usage, and of how many buckets.
pub(crate) fn recorded_usage(buckets: Result<u64, &Error>) {
    match buckets {
        Ok(0) => {}
        Ok(buckets) => {
            event!(DEBUG, buckets = buckets, "recorded usage");
        }
        Err(error) => {
            event!(DEBUG, error = error.to_string(), "could not record usage");
        }
    }
}

#[cfg(feature = "postgres")]
pub(crate) use sql::ignored;
#[cfg(feature = "_sql")]
pub(crate) use sql::{ObservedCall, less_durable, migrated, newer, retried};

#[cfg(feature = "_sql")]
mod sql {
    use std::time::Instant;

    use crate::telemetry::{CALL_REQUESTS, CALL_SECONDS, RETRIES};

    /// A call of a database, with its retries.
    #[derive(Clone, Copy, Debug)]
    pub(crate) struct ObservedCall {
        engine: &'static str,
        /// The purpose of the call.
        purpose: &'static str,
        /// How many requests it carries.
        requests: u64,
        begun: Option<Instant>,
    }

    impl ObservedCall {
        pub(crate) fn begin(engine: &'static str, purpose: &'static str, requests: u64) -> Self {
            let begun = cfg!(feature = "metrics").then(Instant::now);
            Self { engine, purpose, requests, begun }
        }

        /// Runs the call in a span.
        #[cfg(feature = "tracing")]
        pub(crate) fn in_span<F: Future>(self, call: F) -> tracing::instrument::Instrumented<F> {
            let Self { engine, purpose, requests, .. } = self;
            let span =
                tracing::debug_span!(target: "tollgate", "tollgate.store_call", engine, call = purpose, requests);
            tracing::Instrument::instrument(call, span)
        }

        #[cfg(not(feature = "tracing"))]
        pub(crate) fn in_span<F: Future>(self, call: F) -> F {
            call
        }

        /// Reports the duration and the requests of the call.
        pub(crate) fn end(self, is_ok: bool) {
            let Self { engine, purpose, requests, begun } = self;
            let Some(begun) = begun else { return };
            let outcome = if is_ok { "ok" } else { "error" };
            record!(
                CALL_SECONDS, begun.elapsed(),
                "engine" => engine, "call" => purpose, "outcome" => outcome,
            );
            if requests > 0 {
                #[expect(clippy::cast_precision_loss, reason = "a histogram's values are floats")]
                let requests = requests as f64;
                record!(CALL_REQUESTS, requests, "engine" => engine, "call" => purpose);
            }
        }
    }

    /// Reports a retry after an error with this code.
    pub(crate) fn retried(code: &str, attempt: u32) {
        count!(RETRIES, 1, "code" => code.to_owned());
        event!(DEBUG, code = code, attempt = attempt, "the database rolled it back: once more");
    }

    /// Warns that synchronous commits were requested, but the server does not make them.
    pub(crate) fn less_durable(engine: &'static str, settings: &str) {
        event!(
            WARN,
            engine = engine,
            settings = settings,
            "less durable than was asked for: it is the server's to choose"
        );
    }

    /// Warns of unknown parameters in a database's URL. They may hold a password, so only their number is logged.
    #[cfg(feature = "postgres")]
    pub(crate) fn ignored(parameters: usize) {
        event!(
            WARN,
            engine = "postgres",
            parameters = parameters,
            "unknown parameters of the database's URL are ignored"
        );
    }

    /// Reports a migration that has run.
    pub(crate) fn migrated(engine: &'static str, version: i64, name: &str) {
        event!(INFO, engine = engine, version = version, name = name, "migrated");
    }

    /// Reports a schema that is newer than this crate.
    pub(crate) fn newer(engine: &'static str, found: i64, known: i64) {
        event!(
            INFO,
            engine = engine,
            version = found,
            known = known,
            "a newer version has migrated: nothing is pending"
        );
    }
}
