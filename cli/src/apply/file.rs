//! The file of limits: TOML, checked as a whole before anything is written.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::{fmt, fs, io, io::Read as _};

use chrono::{DateTime, SubsecRound, Utc};
use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use tollgate::{Key, Mode, Quota, Rule, admin::AdminError, model};
use toml::{Spanned, Table, Value, value::Datetime};
use toml_parser::lexer::{Token, TokenKind};

use crate::exit::CliError;
use crate::quota_args;
use crate::text::{plain, truncated};

/// A plan, a bucket or an override of the file.
#[derive(Debug)]
pub(crate) enum Entry {
    Plan(Key, PlanEntry),
    Bucket(Key, BucketEntry),
    Override(Key, OverrideEntry),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PlanEntry {
    #[serde(deserialize_with = "limits")]
    pub(crate) quota: model::Limits,
    pub(crate) mode: Option<Mode>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct BucketEntry {
    #[serde(deserialize_with = "quota")]
    pub(crate) quota: Quota,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct OverrideEntry {
    #[serde(default, deserialize_with = "given_quota")]
    pub(crate) quota: Option<Quota>,
    pub(crate) mode: Option<Mode>,
    #[serde(default, deserialize_with = "reason")]
    pub(crate) reason: Option<String>,
    #[serde(default, deserialize_with = "until")]
    pub(crate) until: Option<DateTime<Utc>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Limits {
    plans: BTreeMap<Key, PlanEntry>,
    buckets: BTreeMap<Key, BucketEntry>,
    overrides: BTreeMap<Key, Spanned<OverrideEntry>>,
}

/// A file whose fields need not be valid, with the places of entries and fields.
type Sections = BTreeMap<String, BTreeMap<String, Spanned<BTreeMap<String, Spanned<Value>>>>>;

/// An error, and the bytes of the file where it is, if they are known.
#[derive(Debug)]
struct FileError(Option<Range<usize>>, String);

impl From<toml::de::Error> for FileError {
    fn from(error: toml::de::Error) -> Self {
        Self(error.span(), error.message().to_owned())
    }
}

/// Reads a file, or standard input for `-`. Returns the plans first, then the buckets and the overrides.
pub(crate) fn read(path: &Path) -> Result<Vec<Entry>, CliError> {
    let is_input = path == Path::new("-");
    let name = if is_input { "standard input".to_owned() } else { path.display().to_string() };
    let text = if is_input { text(io::stdin()) } else { fs::File::open(path).and_then(text) };
    let text = text.map_err(|error| {
        let hint = "name a readable file in UTF-8 of at most 4 MiB and 250000 keys, or - for standard input";
        CliError::unreadable(format!("cannot read {name}: {error}"), hint)
    })?;
    parse(&text).map_err(|FileError(at, message)| {
        let line = at.as_ref().map_or_else(String::new, |at| format!(", line {}", line(&text, at.start)));
        let (message, advice) = at.map_or_else(|| (message.clone(), None), |at| locate(&text, at, &message));
        let advice = advice.unwrap_or_else(|| "correct the file".to_owned());
        let hint = format!("{advice}; nothing was applied (`tollgate apply --help` shows all fields)");
        CliError::unreadable(format!("{name}{line}: {message}"), hint)
    })
}

fn text(file: impl io::Read) -> io::Result<String> {
    let mut bytes = Vec::new();
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(io::Error::other("more than 4 MiB"));
    }
    let text = String::from_utf8(bytes).map_err(io::Error::other)?;
    if toml_parser::Source::new(&text).lex().filter(begins_value).count() > MAX_KEYS {
        return Err(io::Error::other("more than 250000 keys, with those between dots"));
    }
    Ok(text)
}

/// Whether a token stands before or after a key or a value.
fn begins_value(token: &Token) -> bool {
    matches!(token.kind(), TokenKind::Dot | TokenKind::Equals | TokenKind::Comma | TokenKind::LeftSquareBracket)
}

// Both bound the memory that a wrong file takes to about 230 MB: a key takes a kilobyte, and an empty line 50 bytes.
const MAX_BYTES: u64 = 4 << 20;
const MAX_KEYS: usize = 250_000;

/// Names the entry and the field in the message of an error. Returns what to do too, if the message says so.
fn locate(text: &str, at: Range<usize>, message: &str) -> (String, Option<String>) {
    if message == "duplicate key" {
        return (format!("duplicate key: {}", text.get(at).unwrap_or_default()), None);
    }
    let sections: Sections = toml::from_str(text).unwrap_or_default();
    let entries =
        sections.iter().flat_map(|(section, all)| all.iter().map(move |(name, entry)| (section, name, entry)));
    let entry =
        entries.filter(|(.., entry)| entry.span().start <= at.start).max_by_key(|(.., entry)| entry.span().start);
    let Some((section, name, entry)) = entry.filter(|(_, name, _)| Key::try_from(name.as_str()).is_ok()) else {
        return (message.to_owned(), None);
    };
    let Some(kind) = ["plan", "bucket", "override"].into_iter().find(|kind| section.strip_suffix('s') == Some(kind))
    else {
        return (message.to_owned(), None);
    };
    let entry_name = format!("{kind} {}", plain(name));
    if ["unknown field", "missing field", "invalid type"].iter().any(|serde| message.starts_with(serde)) {
        let table = entry.get_ref().iter().find_map(|(field, value)| Some((field, value.get_ref().as_table()?)));
        let quoted = table.map(|table| format!("quote it: [{section}.\"{}\"]", dotted(name, table)));
        return (format!("{entry_name}: {message}"), quoted);
    }
    // A deserializer keeps only the text of an error, which ends with its hint.
    let (problem, advice) = message.rsplit_once(": ").unwrap_or((message, "correct the file"));
    let field = entry.get_ref().iter().find(|(_, value)| value.span().contains(&at.start));
    let Some((field, value)) = field else { return (format!("{entry_name}: {problem}"), Some(advice.to_owned())) };
    let value = value.get_ref().as_str().or_else(|| text.get(value.span())).unwrap_or_default();
    let cause = if problem.contains(value) { String::new() } else { format!(": {problem}") };
    (format!("invalid {field} of {entry_name}: {}{cause}", truncated(&plain(value), 60)), Some(advice.to_owned()))
}

/// The key that TOML reads as nested tables, because it has dots and no quotes.
fn dotted(name: &str, (field, mut table): (&String, &Table)) -> String {
    let mut key = format!("{name}.{field}");
    while let Some((field, Value::Table(inner))) = table.iter().next() {
        key = format!("{key}.{field}");
        table = inner;
    }
    key
}

fn parse(text: &str) -> Result<Vec<Entry>, FileError> {
    let Limits { plans, buckets, overrides } = toml::from_str(text)?;
    let is_empty = |entry: &OverrideEntry| entry.quota.is_none() && entry.mode.is_none();
    if let Some(empty) = overrides.values().find(|entry| is_empty(entry.get_ref())) {
        return Err(FileError(Some(empty.span()), AdminError::ChangesNothing.to_string()));
    }
    let plans = plans.into_iter().map(|(name, entry)| Entry::Plan(name, entry));
    let buckets = buckets.into_iter().map(|(key, entry)| Entry::Bucket(key, entry));
    let overrides = overrides.into_iter().map(|(key, entry)| Entry::Override(key, entry.into_inner()));
    Ok(plans.chain(buckets).chain(overrides).collect())
}

/// The number of the line that contains this byte.
fn line(text: &str, at: usize) -> usize {
    1 + text.bytes().take(at).filter(|byte| *byte == b'\n').count()
}

fn quota<'de, D: Deserializer<'de>>(value: D) -> Result<Quota, D::Error> {
    match Rule::deserialize(value)? {
        Rule::Quota(quota) if quota == Quota::unlimited() => Err(D::Error::custom(AdminError::UnlimitedQuota)),
        Rule::Quota(quota) => Ok(quota),
        rule => Err(D::Error::custom(whole(&quota_args::not_one_quota(&rule)))),
    }
}

/// A plan's limits: one text, or a list of them.
fn limits<'de, D: Deserializer<'de>>(value: D) -> Result<model::Limits, D::Error> {
    struct Texts;

    impl<'de> Visitor<'de> for Texts {
        type Value = String;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a string, or a list of strings")
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<String, E> {
            Ok(text.to_owned())
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut texts: A) -> Result<String, A::Error> {
            let mut all = Vec::new();
            while let Some(text) = texts.next_element::<String>()? {
                all.push(text);
            }
            Ok(all.join(";"))
        }
    }

    let text = value.deserialize_any(Texts)?;
    quota_args::limits(&text).map_err(|refusal| D::Error::custom(whole(&refusal)))
}

fn given_quota<'de, D: Deserializer<'de>>(value: D) -> Result<Option<Quota>, D::Error> {
    quota(value).map(Some)
}

/// The text of an error, as the library's own: with its hint at the end.
fn whole(refusal: &CliError) -> String {
    format!("{}: {}", refusal.message, refusal.hint)
}

fn reason<'de, D: Deserializer<'de>>(value: D) -> Result<Option<String>, D::Error> {
    let text = String::deserialize(value)?;
    if text.contains('\0') {
        return Err(D::Error::custom(AdminError::InvalidReason(text.len())));
    }
    quota_args::reason(&text).map(Some).map_err(|refusal| D::Error::custom(whole(&refusal)))
}

/// Rounds down to microseconds, which every engine stores: a finer time would differ from the stored one in each run.
fn until<'de, D: Deserializer<'de>>(value: D) -> Result<Option<DateTime<Utc>>, D::Error> {
    let text = Datetime::deserialize(value)?.to_string();
    let end = DateTime::parse_from_rfc3339(&text).ok().map(|end| end.to_utc().trunc_subsecs(6));
    // No engine stores a later time.
    let end = end.filter(|end| end.timestamp_nanos_opt().is_some());
    let form = || D::Error::custom(format!("{text} is not an end: write a time before 2262, as 2027-01-31T12:00:00Z"));
    end.map(Some).ok_or_else(form)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_plans_then_buckets_then_overrides() {
        let text = "[overrides.b]\nmode = 'off'\n[buckets]\na = { quota = '1/s' }\n[plans.z]\nquota = '1/s'\n[plans.c]\nquota = '1/s'";
        let entries = parse(text).expect("a file");
        let name = |entry: &Entry| match entry {
            Entry::Plan(name, _) => format!("plan {name}"),
            Entry::Bucket(key, _) => format!("bucket {key}"),
            Entry::Override(key, _) => format!("override {key}"),
        };
        assert_eq!(entries.iter().map(name).collect::<Vec<_>>(), ["plan c", "plan z", "bucket a", "override b"]);
        assert!(parse("").expect("an empty file").is_empty());
    }

    #[test]
    fn end_is_a_moment_in_whole_microseconds() {
        let end = |value: &str| match parse(&format!("[overrides.a]\nmode = 'off'\nuntil = {value}"))
            .map(|mut all| all.pop())
        {
            Ok(Some(Entry::Override(_, entry))) => Ok(entry.until.expect("an end").to_rfc3339()),
            Ok(other) => panic!("{other:?}"),
            Err(FileError(_, message)) => Err(message),
        };
        for (value, expected) in [
            ("2027-01-31T12:00:00Z", "2027-01-31T12:00:00+00:00"),
            ("2027-01-31 12:00:00.123456789+02:00", "2027-01-31T10:00:00.123456+00:00"),
        ] {
            assert_eq!(end(value).as_deref(), Ok(expected));
        }
        for wrong in ["2027-01-31", "2027-01-31T12:00:00", "2300-01-31T12:00:00Z"] {
            let message = end(wrong).expect_err(wrong);
            assert!(message.starts_with(wrong) && message.contains("write a time before 2262"), "{message}");
        }
    }

    #[test]
    fn line_is_counted_in_bytes_of_the_whole_file() {
        assert_eq!([0, 2, 3, 7].map(|at| line("é\n\nab", at)), [1, 1, 2, 3]);
    }
}
