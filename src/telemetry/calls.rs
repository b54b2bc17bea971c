use super::{SWEEPS, SWEPT};
use crate::admin::SweepResult;
use crate::model::Error;

/// Reports a step of a sweep.
pub(crate) fn swept(step: &Result<SweepResult, Error>) {
    match step {
        Ok(swept) => {
            count!(SWEEPS, 1, "outcome" => "ok");
            count!(SWEPT, swept.deleted);
            event!(DEBUG, deleted = swept.deleted, "swept");
        }
        Err(error) => {
            count!(SWEEPS, 1, "outcome" => "error");
            event!(DEBUG, error = error.to_string(), "could not sweep");
        }
    }
}

#[cfg(feature = "postgres")]
pub(crate) use sql::ignored;
#[cfg(feature = "_sql")]
pub(crate) use sql::{ObservedCall, less_durable, migrated, newer, observed, retried};

#[cfg(feature = "_sql")]
mod sql {
    use std::time::Instant;

    use super::super::{CALL_REQUESTS, CALL_SECONDS, RETRIES};
    use crate::model::Error;
    use crate::store::Migration;

    /// A call of a database.
    #[derive(Clone, Copy, Debug)]
    pub(crate) struct ObservedCall {
        /// Which kind of database.
        pub(crate) engine: &'static str,
        /// The purpose of the call.
        pub(crate) what: &'static str,
        /// How many requests it carries.
        pub(crate) requests: u64,
    }

    /// Makes a call, and reports its duration.
    pub(crate) async fn observed<T>(
        call: ObservedCall,
        made: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let begun = cfg!(feature = "metrics").then(Instant::now);
        let result = spanned(call, made).await;
        if let Some(begun) = begun {
            let ObservedCall { engine, what, requests } = call;
            let outcome = if result.is_ok() { "ok" } else { "error" };
            record!(
                CALL_SECONDS, begun.elapsed(),
                "engine" => engine, "call" => what, "outcome" => outcome,
            );
            if requests > 0 {
                #[expect(clippy::cast_precision_loss, reason = "a histogram's values are floats")]
                let requests = requests as f64;
                record!(CALL_REQUESTS, requests, "engine" => engine, "call" => what);
            }
        }
        result
    }

    #[cfg(feature = "tracing")]
    async fn spanned<T>(call: ObservedCall, made: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        use tracing::Instrument;

        let ObservedCall { engine, what, requests } = call;
        let span = tracing::debug_span!(target: "tollgate", "tollgate.store_call", engine, call = what, requests);
        made.instrument(span).await
    }

    #[cfg(not(feature = "tracing"))]
    async fn spanned<T>(_: ObservedCall, made: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        made.await
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
    pub(crate) fn migrated(engine: &'static str, migration: &Migration) {
        event!(INFO, engine = engine, version = migration.version(), name = migration.name(), "migrated");
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
