//! Reports arguments that the CLI does not understand.

use std::error::Error as _;
use std::num::{IntErrorKind, ParseIntError};
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, CommandFactory};

use crate::exit::{CliError, WRONG_ARGUMENTS};
use crate::failure::report;
use crate::redact::redact;
use crate::text::{plain, shortened};
use crate::times::SpanError;
use crate::{output, times, url};

/// Prints the error of invalid arguments, or the requested help.
pub(crate) fn report_usage<C: CommandFactory>(error: &clap::Error) -> ExitCode {
    let help = error.render().ansi().to_string();
    let printed = match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => output::say(help.trim_end_matches('\n')),
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            anstream::eprint!("{help}");
            return ExitCode::from(WRONG_ARGUMENTS);
        }
        _ => {
            let arguments: Vec<_> = std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
            Err(explain::<C>(error, &arguments))
        }
    };
    match printed {
        Ok(()) => ExitCode::SUCCESS,
        Err(refusal) => report(&refusal.into()),
    }
}

/// The error with the given value, and a hint.
fn explain<C: CommandFactory>(error: &clap::Error, arguments: &[String]) -> CliError {
    if let Some(refusal) = secret(error) {
        return refusal;
    }
    if let Some((wrong, arguments)) = negative_value::<C>(error, arguments) {
        return explain::<C>(&wrong, &arguments);
    }
    let context = |kind| text(error, kind).unwrap_or_default();
    let arg = name(&context(ContextKind::InvalidArg));
    let value = quoted(&context(ContextKind::InvalidValue));
    let (message, hint) = match error.kind() {
        ErrorKind::ValueValidation if is_negative(&value) && is_number_or_span(error) => {
            (format!("out of range: {arg} {value}"), range::<C>(error, &arg, arguments))
        }
        ErrorKind::ValueValidation => {
            let (problem, hint) = invalid_value(error);
            (format!("{problem}: {arg} {value}"), hint)
        }
        ErrorKind::InvalidValue if value == "''" => (format!("no value: {arg}"), possible_values(error)),
        ErrorKind::InvalidValue => (format!("unknown value: {arg} {value}"), possible_values(error)),
        ErrorKind::InvalidSubcommand => {
            let word = context(ContextKind::InvalidSubcommand);
            let hint = text(error, ContextKind::SuggestedSubcommand).map(|word| format!("did you mean {word}?"));
            (
                format!("unknown command: {}", quoted(&word)),
                hint.unwrap_or_else(|| format!("`{} --help` lists the commands", command::<C>())),
            )
        }
        ErrorKind::MissingSubcommand => (
            format!("no command: {}", context(ContextKind::InvalidSubcommand)),
            format!("the commands are {}", context(ContextKind::ValidSubcommand).replace(", help", "")),
        ),
        ErrorKind::UnknownArgument => unknown_argument(error),
        ErrorKind::MissingRequiredArgument => {
            let missing = context(ContextKind::InvalidArg);
            let hint = match &*missing {
                "<MODE>" => "write it like `tollgate mode shadow --key KEY --for 2h`".to_owned(),
                "--prefix <PREFIX>, <KEY>..." => "write it like `tollgate reset --prefix PREFIX --force`".to_owned(),
                _ => usage(error),
            };
            (format!("missing: {missing}"), hint)
        }
        ErrorKind::ArgumentConflict => {
            let other = text(error, ContextKind::PriorArg).map_or_else(|| "another one".to_owned(), |arg| name(&arg));
            (format!("{arg} cannot be used with {other}"), "leave one of them out".to_owned())
        }
        ErrorKind::InvalidUtf8 => (
            "an argument is invalid UTF-8".to_owned(),
            "keys, names and reasons are UTF-8: encode other bytes as text, such as hexadecimal digits".to_owned(),
        ),
        ErrorKind::TooManyValues => (format!("too many values: {arg} {value}"), usage(error)),
        _ => {
            let text = error.render().to_string();
            let line = text.lines().next().unwrap_or_default();
            (plain(line.strip_prefix("error: ").unwrap_or(line)), usage(error))
        }
    };
    let hint = if hint.is_empty() { format!("`{} --help` lists what it takes", command::<C>()) } else { hint };
    CliError::arguments(redact(&message), redact(&hint))
}

/// Describes an invalid value, and its form.
fn invalid_value(error: &clap::Error) -> (String, String) {
    let Some(source) = error.source() else { return ("invalid value".to_owned(), String::new()) };
    if let Some(wrong) = source.downcast_ref::<SpanError>() {
        return (wrong.to_string(), wrong.hint().to_owned());
    }
    if let Some(wrong) = source.downcast_ref::<ParseIntError>() {
        let problem = match wrong.kind() {
            IntErrorKind::PosOverflow => "too large",
            _ => "not a whole number",
        };
        return (problem.to_owned(), "write digits only, such as 1000000".to_owned());
    }
    if source.is::<uuid::Error>() {
        let hint = "write it like 67e55044-10b1-426f-9247-bb680e5fe0c8; uuidgen makes one";
        return ("not a UUID".to_owned(), hint.to_owned());
    }
    let text = plain(&source.to_string());
    if let Some((_, range)) = text.rsplit_once(" is not in ") {
        return ("out of range".to_owned(), format!("give {}", in_words(range)));
    }
    let (problem, hint) = match source.downcast_ref() {
        Some(CliError { message, hint, .. }) => (plain(message), hint.clone()),
        None => (text, String::new()),
    };
    // The value follows by itself.
    (problem.rsplit_once("' is ").map_or(&*problem, |(_, rest)| rest).to_owned(), hint)
}

/// Reads `--cost -1`, which clap takes for an unknown argument, as `--cost=-1`. Returns the error of that value.
fn negative_value<C: CommandFactory>(error: &clap::Error, arguments: &[String]) -> Option<(clap::Error, Vec<String>)> {
    let typed = text(error, ContextKind::InvalidArg).filter(|_| error.kind() == ErrorKind::UnknownArgument)?;
    let at = arguments.iter().position(|word| is_negative(word) && word.starts_with(&typed))?;
    let option = arguments[..at].last().filter(|word| word.starts_with("--") && word.len() > 2)?;
    let joined = [&arguments[..at - 1], &[format!("{option}={}", arguments[at])], &arguments[at + 1..]].concat();
    let wrong = C::command().try_get_matches_from(&joined).err()?;
    (wrong.kind() == ErrorKind::ValueValidation).then_some((wrong, joined))
}

fn is_negative(word: &str) -> bool {
    word.strip_prefix('-').is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_digit()))
}

fn is_number_or_span(error: &clap::Error) -> bool {
    error.source().is_some_and(|source| source.is::<ParseIntError>() || source.is::<SpanError>())
}

/// Describes the values of an option that a negative value was given for.
fn range<C: CommandFactory>(error: &clap::Error, arg: &str, arguments: &[String]) -> String {
    if error.source().is_some_and(<dyn std::error::Error>::is::<SpanError>) {
        return "give a length of time above 0, such as 2h".to_owned();
    }
    // The error for 0 names the range.
    let value = text(error, ContextKind::InvalidValue).unwrap_or_default();
    let (given, zero) = (format!("{arg}={value}"), format!("{arg}=0"));
    let words = arguments.iter().map(|word| if *word == given { &zero } else { word });
    match C::command().try_get_matches_from(words) {
        Err(error) if error.kind() == ErrorKind::ValueValidation => invalid_value(&error).1,
        _ => "give 0 or more".to_owned(),
    }
}

/// Describes clap's text of a range, such as `1..=1000`.
fn in_words(range: &str) -> String {
    match range.split_once("..") {
        Some((least, most)) if most.trim_start_matches('=') == u64::MAX.to_string() => format!("{least} or more"),
        Some((least, most)) => format!("a number from {least} to {}", most.trim_start_matches('=')),
        None => range.to_owned(),
    }
}

/// Names the values of an option. The most similar one comes first.
fn possible_values(error: &clap::Error) -> String {
    let suggested = text(error, ContextKind::SuggestedValue).map(|value| format!("did you mean {value}? "));
    let values = text(error, ContextKind::ValidValue).map(|values| format!("the values are {values}"));
    suggested.into_iter().chain(values).collect()
}

fn unknown_argument(error: &clap::Error) -> (String, String) {
    let typed = text(error, ContextKind::InvalidArg).unwrap_or_default();
    let shown = quoted(&typed);
    let hint = if times::is_unit(&typed) {
        "write a span without a space: 1h".to_owned()
    } else if is_negative(&typed) {
        "numbers and spans are not negative; write a key that begins with a dash last, after --".to_owned()
    } else if let Some(option) = text(error, ContextKind::SuggestedArg) {
        format!("did you mean {option}?")
    } else if typed.starts_with("--") {
        String::new()
    } else if typed.starts_with('-') && text(error, ContextKind::Suggested).is_some() {
        format!("write what begins with a dash last, after --: -- {shown}")
    } else {
        usage(error)
    };
    (format!("unexpected argument: {shown}"), hint)
}

/// The usage line.
fn usage(error: &clap::Error) -> String {
    // clap repeats the option that the environment sets.
    let usage = text(error, ContextKind::Usage).unwrap_or_default().replace("--database-url <URL>", "");
    usage.trim().strip_prefix("Usage:").map_or_else(String::new, |usage| {
        let words: Vec<_> = usage.split_whitespace().collect();
        format!("write it like `{}`", words.join(" "))
    })
}

/// A context of the error as text.
fn text(error: &clap::Error, kind: ContextKind) -> Option<String> {
    let text = match error.get(kind)? {
        ContextValue::String(text) => text.clone(),
        ContextValue::Strings(texts) => texts.join(", "),
        ContextValue::StyledStr(text) => text.to_string(),
        ContextValue::StyledStrs(texts) => texts.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
        _ => return None,
    };
    Some(text).filter(|text| !text.is_empty())
}

/// `--cost` of `--cost <TOKENS>`, and `KEY` of `<KEY>...`.
fn name(arg: &str) -> String {
    let name = if arg.starts_with('-') { arg.split([' ', '=']).next().unwrap_or(arg) } else { arg };
    plain(name.trim_start_matches(['<', '[']).trim_end_matches('.').trim_end_matches(['>', ']']))
}

/// A given value, on one line and not too long.
fn quoted(value: &str) -> String {
    let shown = shortened(&plain(value), MAX_VALUE_WIDTH);
    if shown.is_empty() || shown.contains(' ') { format!("'{shown}'") } else { shown }
}

/// The names of the command and its subcommands.
fn command<C: CommandFactory>() -> String {
    let (root, mut names) = (C::command(), Vec::new());
    let mut command: &Command = &root;
    for word in std::env::args_os().skip(1) {
        if let Some(next) = word.to_str().and_then(|word| command.find_subcommand(word)) {
            names.push(next.get_name());
            command = next;
        }
    }
    std::iter::once("tollgate").chain(names).collect::<Vec<_>>().join(" ")
}

/// Hides a value that may be a database URL.
fn secret(error: &clap::Error) -> Option<CliError> {
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
    Some(CliError::arguments(message, hint))
}

/// The width of a value in a message.
const MAX_VALUE_WIDTH: usize = 120;
