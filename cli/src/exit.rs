//! Reports errors, and maps them to exit codes.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anstyle::{AnsiColor, Style};
use tollgate::{Error, Key, Quota, TakeError};

use crate::output::{self, counted, plain};
use crate::plan;
use crate::redact::redact;

mod misuse;
mod refusal;
mod unanswered;

pub(crate) use misuse::misused;
pub(crate) use refusal::CliError;
pub(crate) use unanswered::RequestKind;

/// The exit codes in `--help`.
pub(crate) const HELP: &str = "\
Exit codes:
   0  done; granted
   1  a check failed (`doctor`, `apply --check`); there is no such bucket, plan or override
   2  wrong arguments
  64  the request can never be granted: unknown bucket or plan, or cost above the capacity
  66  a file cannot be read or parsed
  69  the database failed; the message says whether anything was done
  70  another error, such as a terminal that cannot show `watch`
  73  a file or the output cannot be written
  75  denied: no token now
  77  the database role lacks a privilege
  78  the database has no tollgate schema, or one that is too new
 128 + N  ended by signal N (130: interrupt); gives tokens back, or says that it cannot
`tollgate run` exits with the code of its command, or with 126 or 127 if the command cannot start.";

/// The longest refill time of a bucket.
const CENTURY: Duration = Duration::from_secs(36_525 * 86_400);

const ABSENT: u8 = 1;
/// A failed check of `doctor` or `apply --check`.
pub(crate) const CHECK_FAILED: u8 = 1;
pub(crate) const WRONG_ARGUMENTS: u8 = 2;
pub(crate) const DATABASE: u8 = 69;
pub(crate) const DENIED: u8 = 75;
pub(crate) const NEVER: u8 = 64;
pub(crate) const INTERNAL: u8 = 70;
const UNREADABLE: u8 = 66;
const UNWRITABLE: u8 = 73;
pub(crate) const NOT_PERMITTED: u8 = 77;
const NOT_MIGRATED: u8 = 78;

const DOCTOR_HINT: &str = "run `tollgate doctor` to find the cause";

const BOLD: Style = Style::new().bold();
const RED: Style = BOLD.fg_color(Some(anstyle::Color::Ansi(AnsiColor::Red)));

/// The error of a role without grants.
pub(crate) fn missing_grants() -> CliError {
    CliError {
        code: NOT_PERMITTED,
        message: "this role has no privileges here".to_owned(),
        hint: GRANT_HINT.to_owned(),
    }
}

/// The hint that grants a role its privileges.
pub(crate) const GRANT_HINT: &str = "`grant tollgate_app to ROLE` allows it to take tokens and to read a key; tollgate_operator allows everything. `tollgate migrate --print grants` creates both roles: run it after each upgrade, with the database's `--prefix` if it has one. On MySQL and MariaDB, also make the role the account's default: `set default role tollgate_app to ACCOUNT` (MariaDB: `for`)";

/// The hint about a database that is newer than the CLI.
pub(crate) const UPDATE_HINT: &str = "install a newer `tollgate`: the version of the crate that the services use";

/// The hint about a file that cannot be written.
pub(crate) const READ_ONLY_HINT: &str =
    "leave mode=ro and immutable out of the URL, and let this user write the file and its directory";

/// The error of a request that can never be granted.
pub(crate) fn never(message: String, hint: &str) -> CliError {
    CliError { code: NEVER, message, hint: hint.to_owned() }
}

/// Prints the error and its hint on standard error, and returns the exit code.
pub(crate) fn failed(error: &anyhow::Error) -> ExitCode {
    let (code, message, hint) = explain(error);
    output::say_error("error", RED, &message);
    if !hint.is_empty() {
        output::say_error("hint", BOLD, &hint);
    }
    ExitCode::from(code)
}

/// Whether other sessions kept the database busy.
pub(crate) fn is_held_up(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(Error::Contended { .. } | Error::DeadlineExceeded(_)))
}

/// The message of an error.
pub(crate) fn message(error: &anyhow::Error) -> String {
    explain(error).1
}

/// The exit code, the message and the hint of an error.
fn explain(error: &anyhow::Error) -> (u8, String, String) {
    if let Some(CliError { code, hint, .. }) = error.downcast_ref() {
        return (*code, chain(error), hint.clone());
    }
    let Some(refused) = error.downcast_ref::<Error>() else {
        let hint = "repeat it; if it fails again, report it with this message";
        return (INTERNAL, redact(&chain(error)), hint.to_owned());
    };
    let all = chain(error);
    match refused {
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
        Error::NotPermitted(cause) if is_file(&**cause) => {
            (NOT_PERMITTED, "the SQLite file or its URL is read-only".to_owned(), READ_ONLY_HINT.to_owned())
        }
        Error::NotPermitted(cause) if cause.is::<sqlx::Error>() => (
            NOT_PERMITTED,
            format!("this database role may not do that: {}", redact(&words(&**cause))),
            format!("`tollgate doctor` shows its privileges; {GRANT_HINT}"),
        ),
        Error::NotPermitted(needs) => (
            NOT_PERMITTED,
            format!("this database role may not migrate: {}", redact(&said(error).map_or(all, |said| words(said)))),
            needs.to_string(),
        ),
        Error::Take(TakeError::UnknownBucket(key)) => (
            NEVER,
            format!("there is no bucket '{}'", plain(key.as_str())),
            format!(
                "make it with `tollgate create --capacity 2 --per 1h {}`, or name its limit: `--quota 10/s`, `--plan NAME`",
                output::operand(key.as_str())
            ),
        ),
        Error::Take(TakeError::UnknownPlan { plan: Some(name), .. }) => {
            let CliError { message, hint, .. } = plan::unknown(name);
            (NEVER, message, hint)
        }
        Error::Take(TakeError::UnknownPlan { key, plan: None }) => (
            NEVER,
            format!("bucket '{}' follows a plan that is not there any more", plain(key.as_str())),
            format!(
                "`tollgate explain {}` shows which plan, and how to create it again",
                output::operand(key.as_str())
            ),
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
            let (message, hint) = what_and_hint(&plain(&all));
            (NEVER, message, hint)
        }
        Error::Unreadable { .. } => (DATABASE, plain(&redact(&all)), output::UNREADABLE_ROWS.to_owned()),
        Error::DeadlineExceeded(_) | Error::OutcomeUnknown(_) => (
            DATABASE,
            redact(&all),
            format!("with `tollgate take --id UUID`, you can repeat a request safely; {DOCTOR_HINT}"),
        ),
        Error::Admin(_) | Error::Key(_) | Error::Mode(_) | Error::Quota(_) => {
            let (message, hint) = what_and_hint(&plain(&all));
            (WRONG_ARGUMENTS, message, hint)
        }
        _ => (DATABASE, redact(&all), DOCTOR_HINT.to_owned()),
    }
}

/// Splits a message of the library into what failed and what to do.
fn what_and_hint(text: &str) -> (String, String) {
    let (what, hint) = text.rsplit_once(": ").unwrap_or((text, ""));
    (what.to_owned(), hint.to_owned())
}

/// The hint for a request above the capacity.
fn wider(key: &Key, tokens: u64) -> String {
    if Quota::interval(tokens, CENTURY).is_err() {
        return "take fewer: no bucket can hold so many".to_owned();
    }
    let key = output::operand(key.as_str());
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
        let said = words(cause);
        if text.is_empty() {
            text = said;
        } else if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        if cause.is::<sqlx::Error>() {
            break;
        }
    }
    text
}

/// The error of the database or its driver.
pub(crate) fn said(error: &anyhow::Error) -> Option<&sqlx::Error> {
    let mut causes = error.chain().map(|cause| {
        // The library's errors share their cause in an `Arc`.
        cause.downcast_ref().map_or(cause, |shared: &Arc<dyn std::error::Error + Send + Sync>| &**shared)
    });
    causes.find_map(|cause| cause.downcast_ref())
}

/// Whether the error is SQLite's, which has no roles.
pub(crate) fn is_file(error: &(dyn std::error::Error + 'static)) -> bool {
    let error = error.downcast_ref().and_then(sqlx::Error::as_database_error);
    error.is_some_and(|error| error.try_downcast_ref::<sqlx::sqlite::SqliteError>().is_some())
}

/// The message of a database, without lines of the server's or tollgate's source.
pub(crate) fn words(error: &(dyn std::error::Error + 'static)) -> String {
    match error.downcast_ref() {
        Some(sqlx::Error::Database(error)) => error.message().to_owned(),
        _ => error.to_string(),
    }
}
