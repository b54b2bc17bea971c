//! The file of limits: TOML, checked as a whole before anything is written.

use std::collections::BTreeMap;
use std::path::Path;
use std::{fs, io};

use chrono::{DateTime, SubsecRound, Utc};
use serde::{Deserialize, Deserializer, de::Error};
use tollgate::{Key, Mode, Quota, Rule, model::AdminError};
use toml::{Spanned, value::Datetime};

use crate::exit::CliError;
use crate::quota_args;

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
    #[serde(deserialize_with = "quota")]
    pub(crate) quota: Quota,
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

/// An error, and the byte of the file where it is, if it is known.
#[derive(Debug)]
struct FileError(Option<usize>, String);

impl From<toml::de::Error> for FileError {
    fn from(error: toml::de::Error) -> Self {
        Self(error.span().map(|span| span.start), error.message().to_owned())
    }
}

/// Reads a file, or standard input for `-`. Returns the plans first, then the buckets and the overrides.
pub(crate) fn read(path: &Path) -> Result<Vec<Entry>, CliError> {
    let is_input = path == Path::new("-");
    let name = if is_input { "standard input".to_owned() } else { path.display().to_string() };
    let text = if is_input { io::read_to_string(io::stdin()) } else { fs::read_to_string(path) };
    let text = text.map_err(|error| {
        let hint = "name a readable file in UTF-8, or - for standard input";
        CliError::unreadable(format!("cannot read {name}: {error}"), hint)
    })?;
    parse(&text).map_err(|FileError(at, message)| {
        let line = at.map_or_else(String::new, |at| format!(", line {}", line(&text, at)));
        let hint = "correct the file; nothing was applied (`tollgate apply --help` shows all fields)";
        CliError::unreadable(format!("{name}{line}: {message}"), hint)
    })
}

fn parse(text: &str) -> Result<Vec<Entry>, FileError> {
    let Limits { plans, buckets, overrides } = toml::from_str(text)?;
    let is_empty = |entry: &OverrideEntry| entry.quota.is_none() && entry.mode.is_none();
    if let Some(empty) = overrides.values().find(|entry| is_empty(entry.get_ref())) {
        return Err(FileError(Some(empty.span().start), AdminError::ChangesNothing.to_string()));
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
        _ => Err(D::Error::custom(quota_args::NO_WINDOW)),
    }
}

fn given_quota<'de, D: Deserializer<'de>>(value: D) -> Result<Option<Quota>, D::Error> {
    quota(value).map(Some)
}

fn reason<'de, D: Deserializer<'de>>(value: D) -> Result<Option<String>, D::Error> {
    let text = String::deserialize(value)?;
    if text.contains('\0') {
        return Err(D::Error::custom(AdminError::InvalidReason(text.len())));
    }
    quota_args::reason(&text).map(Some).map_err(D::Error::custom)
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
