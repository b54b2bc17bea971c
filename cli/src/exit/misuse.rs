//! Reports arguments that the CLI does not understand.

use std::error::Error as _;
use std::fmt::Write as _;
use std::io::Write as _;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};

use super::{BOLD, RED, WRONG_ARGUMENTS, failed};
use crate::output::{self, plain};
use crate::redact::redact;
use crate::times::{self, SpanError};
use crate::url;

/// Prints the error of invalid arguments, or the requested help.
pub(crate) fn misused(error: &mut clap::Error) -> ExitCode {
    let mut text = match secret(error) {
        Some(text) => text,
        None => redact(&shown(error)),
    };
    if let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidArg)
        && times::is_unit(word)
    {
        text += "\nhint: write a span without a space: 1h\n";
    }
    if let Some(wrong) = error.source().and_then(|cause| cause.downcast_ref::<SpanError>()) {
        let _ = writeln!(text, "hint: {}", wrong.hint());
    }
    if error.kind() == ErrorKind::InvalidUtf8 {
        text += "\nhint: keys, names and reasons are UTF-8: encode other bytes as text, such as hexadecimal digits\n";
    }
    if error.use_stderr() {
        // Ignores an unwritable standard error.
        let _ = anstream::stderr().write_all(text.as_bytes());
        return ExitCode::from(WRONG_ARGUMENTS);
    }
    match output::say(text.trim_end_matches('\n')) {
        Ok(()) => ExitCode::SUCCESS,
        Err(refusal) => failed(&refusal.into()),
    }
}

/// Replaces clap's message if it would repeat a possible database URL.
fn secret(error: &clap::Error) -> Option<String> {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    let named = [ContextKind::InvalidArg, ContextKind::InvalidValue, ContextKind::InvalidSubcommand].map(text);
    if !named.into_iter().flatten().any(url::may_be) {
        return None;
    }
    let place =
        named[0].filter(|place| !url::may_be(place)).map_or_else(String::new, |place| format!(" {}", plain(place)));
    let message = format!("{}{place}: hidden, because it may contain a password", error.kind());
    let hint = "give the database as --database-url URL, or better in the variable DATABASE_URL";
    Some(format!("{RED}error:{RED:#} {message}\n{BOLD}hint:{BOLD:#} {hint}\n"))
}

/// Returns clap's message with control characters escaped, so that an argument cannot steer the terminal or imitate a hint.
fn shown(error: &mut clap::Error) -> String {
    let steering = error.context().filter_map(|(kind, value)| match value {
        ContextValue::String(typed) => Some((kind, plain(typed))).filter(|(_, text)| text != typed),
        _ => None,
    });
    let steering: Vec<_> = steering.collect();
    if !steering.is_empty() {
        // The suggestion repeats the argument.
        error.remove(ContextKind::Suggested);
    }
    for (kind, text) in steering {
        error.insert(kind, ContextValue::String(text));
    }
    let text = error.render().ansi().to_string();
    match error.source().map(ToString::to_string) {
        Some(cause) => text.replace(&cause, &plain(&cause)),
        None => text,
    }
}
