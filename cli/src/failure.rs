//! Reports errors, and maps them to exit codes.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anstyle::{AnsiColor, Style};
use tollgate::{Error, Key, Quota, TakeError, admin::AdminError};

use crate::exit::{
    CliError, DATABASE, DOCTOR_HINT, GRANT_HINT, INTERNAL, NEVER, NOT_MIGRATED, NOT_PERMITTED, READ_ONLY_HINT,
    UNREADABLE_ROWS, UPDATE_HINT, WRONG_ARGUMENTS,
};
use crate::output;
use crate::redact::redact;
use crate::text::{counted, operand, plain};

/// The longest refill time of a bucket.
const CENTURY: Duration = Duration::from_secs(36_525 * 86_400);

const BOLD: Style = Style::new().bold();
const RED: Style = BOLD.fg_color(Some(anstyle::Color::Ansi(AnsiColor::Red)));

/// Prints the error and its hint on standard error, and returns the exit code.
pub(crate) fn report(error: &anyhow::Error) -> ExitCode {
    let (code, message, hint) = explain(error);
    output::say_error("error", RED, &message);
    if !hint.is_empty() {
        output::say_error("hint", BOLD, &hint);
    }
    ExitCode::from(code)
}

/// Whether other sessions kept the database busy.
pub(crate) fn is_lock_wait(error: &anyhow::Error) -> bool {
    matches!(library_error(error), Some(Error::Contended { .. } | Error::DeadlineExceeded(_)))
}

/// The library's error, also of an operator's call.
pub(crate) fn library_error(error: &anyhow::Error) -> Option<&Error> {
    match error.downcast_ref() {
        Some(AdminError::Store(error)) => Some(error),
        _ => error.downcast_ref(),
    }
}

/// The message of an error.
pub(crate) fn message(error: &anyhow::Error) -> String {
    explain(error).1
}

/// The exit code, the message and the hint of an error.
pub(crate) fn explain(error: &anyhow::Error) -> (u8, String, String) {
    if let Some(CliError { code, hint, .. }) = error.downcast_ref() {
        return (*code, chain(error), hint.clone());
    }
    let Some(library_error) = library_error(error) else {
        if let Some(invalid) = error.downcast_ref::<AdminError>() {
            let (message, hint) = split_hint(&invalid.to_string(), invalid.hint());
            return (WRONG_ARGUMENTS, message, hint);
        }
        let hint = "repeat it; if it fails again, report it with this message";
        return (INTERNAL, redact(&chain(error)), hint.to_owned());
    };
    let text = chain(error);
    match library_error {
        Error::NotMigrated(_) => (
            NOT_MIGRATED,
            "tollgate's tables and routines are not in this database, or are incomplete".to_owned(),
            "run `tollgate migrate`; `tollgate migrate --dry-run` lists the pending migrations".to_owned(),
        ),
        Error::NewerSchema { found, known } => (
            NOT_MIGRATED,
            format!(
                "the database is at schema version {found}, which is too new for this `tollgate`: it knows version {known}"
            ),
            UPDATE_HINT.to_owned(),
        ),
        Error::NotPermitted(cause) if is_sqlite(&**cause) => {
            (NOT_PERMITTED, "the SQLite file or its URL is read-only".to_owned(), READ_ONLY_HINT.to_owned())
        }
        Error::NotPermitted(cause) if cause.is::<sqlx::Error>() => (
            NOT_PERMITTED,
            format!("this database role may not do that: {}", redact(&sql_message(&**cause))),
            format!("`tollgate doctor` shows its privileges; {GRANT_HINT}"),
        ),
        Error::NotPermitted(needs) => (
            NOT_PERMITTED,
            format!(
                "this database role may not migrate: {}",
                redact(&sql_error(error).map_or(text, |sql_error| sql_message(sql_error)))
            ),
            needs.to_string(),
        ),
        Error::Take(TakeError::UnknownBucket(key)) => (
            NEVER,
            format!("there is no bucket '{}'", plain(key.as_str())),
            format!(
                "make it with `tollgate create --capacity 2 --per 1h {}`, or name its limit: `--quota 10/s`, `--plan NAME`",
                operand(key.as_str())
            ),
        ),
        Error::Take(TakeError::UnknownPlan { plan: Some(name), .. }) => {
            let CliError { message, hint, .. } = CliError::unknown_plan(name);
            (NEVER, message, hint)
        }
        Error::Take(TakeError::UnknownPlan { key, plan: None }) => (
            NEVER,
            format!("bucket '{}' follows a plan that is not there any more", plain(key.as_str())),
            format!("`tollgate explain {}` shows which plan, and how to create it again", operand(key.as_str())),
        ),
        Error::Take(TakeError::Conflict(key)) => (
            NEVER,
            format!("bucket '{}' is provisioned with another limit", plain(key.as_str())),
            "take from it without --quota and --plan".to_owned(),
        ),
        Error::Take(TakeError::ExceedsCapacity { key, cost, min_remaining, capacity, window }) => {
            let kept = if *min_remaining > 0 { format!(", with {min_remaining} to remain,") } else { String::new() };
            let exceeds = if *cost == 1 { "exceeds" } else { "exceed" };
            let (tokens, name) = (counted(*cost, "token"), plain(key.as_str()));
            let bound = if *window { "maximum" } else { "capacity" };
            let message = format!("{tokens}{kept} {exceeds} the {bound} of {capacity}: {name}");
            (NEVER, message, wider(key, cost.saturating_add(*min_remaining)))
        }
        // Escaped to one line: a key may contain newlines.
        Error::Take(_) => {
            let (message, hint) = split_hint(&text, library_error.hint());
            (NEVER, message, hint)
        }
        Error::Unreadable { .. } => (DATABASE, plain(&redact(&text)), UNREADABLE_ROWS.to_owned()),
        Error::DeadlineExceeded(_) | Error::OutcomeUnknown(_) => (
            DATABASE,
            redact(&text),
            format!("with `tollgate take --id UUID`, you can repeat a request safely; {DOCTOR_HINT}"),
        ),
        Error::Key(_) | Error::Mode(_) | Error::Quota(_) => {
            let (message, hint) = split_hint(&text, library_error.hint());
            (WRONG_ARGUMENTS, message, hint)
        }
        _ => (DATABASE, redact(&text), DOCTOR_HINT.to_owned()),
    }
}

/// Splits a message of the library into what failed and what to do, with which the message ends.
pub(crate) fn split_hint(text: &str, hint: Option<&str>) -> (String, String) {
    let hint = hint.unwrap_or_default();
    let problem = text.strip_suffix(hint).and_then(|text| text.strip_suffix(": ")).unwrap_or(text);
    (plain(problem), hint.to_owned())
}

/// The hint for a request above the capacity.
fn wider(key: &Key, tokens: u64) -> String {
    if Quota::interval(tokens, CENTURY).is_err() {
        return "take fewer: no bucket can hold so many".to_owned();
    }
    let key = operand(key.as_str());
    format!(
        "lower --cost, or raise the limit: `tollgate explain {key}` shows its source; a bucket's own is set by \
         `tollgate create --capacity {tokens} --per SPAN {key}`"
    )
}

/// The error and its causes. Skips causes that the text already contains, because drivers repeat them.
pub(crate) fn chain(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        // The library's errors share their cause in an `Arc`.
        let cause = cause.downcast_ref().map_or(cause, |shared: &Arc<dyn std::error::Error + Send + Sync>| &**shared);
        let sql_error = sql_message(cause);
        if text.is_empty() {
            text = sql_error;
        } else if !text.contains(&sql_error) {
            text = format!("{text}: {sql_error}");
        }
        if cause.is::<sqlx::Error>() {
            break;
        }
    }
    text
}

/// The error of the database or its driver.
pub(crate) fn sql_error(error: &anyhow::Error) -> Option<&sqlx::Error> {
    let mut causes = error.chain().map(|cause| {
        // The library's errors share their cause in an `Arc`.
        cause.downcast_ref().map_or(cause, |shared: &Arc<dyn std::error::Error + Send + Sync>| &**shared)
    });
    causes.find_map(|cause| cause.downcast_ref())
}

/// Whether the error is SQLite's, which has no roles.
pub(crate) fn is_sqlite(error: &(dyn std::error::Error + 'static)) -> bool {
    let error = error.downcast_ref().and_then(sqlx::Error::as_database_error);
    error.is_some_and(|error| error.try_downcast_ref::<sqlx::sqlite::SqliteError>().is_some())
}

/// The message of a database, without lines of the server's or tollgate's source.
pub(crate) fn sql_message(error: &(dyn std::error::Error + 'static)) -> String {
    match error.downcast_ref() {
        Some(sqlx::Error::Database(error)) => error.message().to_owned(),
        _ => error.to_string(),
    }
}
