//! Keys and quotas on the command line.

use std::time::Duration;

use tollgate::{
    Key, Quota, Rule,
    admin::AdminError,
    model::{KeyError, LimitName, Limits, QuotaError},
};

use crate::exit::CliError;
use crate::failure::split_hint;
use crate::text::plain;
use crate::times;

/// The options that state a quota.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct QuotaArgs {
    /// How many tokens a full bucket holds; all of them come back at once
    #[arg(long, value_name = "TOKENS", requires = "per", conflicts_with = "quota", value_parser = clap::value_parser!(u64).range(1..))]
    capacity: Option<u64>,
    /// Time in which all tokens come back: 250ms, 10s, 5m, 1h, 1d
    #[arg(long, value_name = "SPAN", requires = "capacity", conflicts_with = "quota", value_parser = times::parse)]
    per: Option<Duration>,
    /// The limit as text: '10/s', '10/s burst 20', '2 per 1s', '1000 per calendar 1d', '100 once'
    #[arg(long, value_name = "QUOTA", value_parser = quota)]
    quota: Option<Quota>,
}

impl QuotaArgs {
    /// The quota, if the arguments have one.
    pub(crate) fn given(&self) -> anyhow::Result<Option<Quota>> {
        Ok(match (self.quota, self.capacity, self.per) {
            (Some(quota), ..) => Some(quota),
            (None, Some(capacity), Some(per)) => Some(Quota::interval(capacity, per).map_err(tollgate::Error::from)?),
            _ => None,
        })
    }

    /// The quota, or an error if the arguments have none.
    pub(crate) fn required(&self) -> anyhow::Result<Quota> {
        let hint = "add --capacity 2 --per 1h, or --quota '10/s burst 20'";
        Ok(self.given()?.ok_or_else(|| CliError::arguments("no limit is given", hint))?)
    }
}

/// Reads the limit of a bucket or a plan.
fn quota(text: &str) -> Result<Quota, CliError> {
    match rule(text)? {
        Rule::Quota(quota) => Ok(quota),
        rule => Err(not_one_quota(&rule)),
    }
}

/// Parses the limits of a plan: `10/s; day: 1000/day`.
pub(crate) fn limits(text: &str) -> Result<Limits, CliError> {
    let limits = match rule(text)? {
        Rule::Quota(quota) => Limits::from(quota),
        Rule::Limits(limits) => limits,
        rule => return Err(not_one_quota(&rule)),
    };
    let refused = if limits.iter().any(|limit| limit.quota() == Quota::unlimited()) {
        AdminError::UnlimitedQuota
    } else if limits[1..].iter().any(|limit| limit.get_name().is_none()) {
        AdminError::UnnamedLimit
    } else {
        return Ok(limits);
    };
    Err(invalid(&refused.to_string(), refused.hint().unwrap_or_default()))
}

/// Why a bucket cannot have this rule.
pub(crate) fn not_one_quota(rule: &Rule) -> CliError {
    match rule {
        Rule::Limits(_) => CliError::arguments("a bucket has one limit", "give several to a plan: `tollgate plan set`"),
        _ => CliError::arguments(
            "buckets and plans have no sliding window",
            "name it with each request, `tollgate take --quota`",
        ),
    }
}

/// Parses the limit of a request: a quota or a sliding window.
pub(crate) fn rule(text: &str) -> Result<Rule, CliError> {
    let mut words = text.split(|letter: char| !letter.is_alphabetic());
    match (Rule::try_from(text), words.find_map(times::calendar_unit)) {
        (Err(QuotaError::InvalidText(_) | QuotaError::InvalidWindowText(_)), Some(wrong)) => {
            Err(CliError::arguments(wrong.to_string(), wrong.hint_for_rates()))
        }
        (rule, _) => rule.map_err(|error| invalid(&error.to_string(), error.hint())),
    }
}

/// Parses a reason that fits the column of every engine.
pub(crate) fn reason(text: &str) -> Result<String, CliError> {
    if text.len() > MAX_REASON_BYTES {
        let problem = format!("a reason has at most {MAX_REASON_BYTES} bytes, and this one has {}", text.len());
        return Err(CliError::arguments(problem, "shorten it"));
    }
    Ok(text.to_owned())
}

const MAX_REASON_BYTES: usize = 65_535;

/// Refuses a repeated key, because a command acts on each bucket once.
pub(crate) fn distinct(keys: &[Key], hint: &str) -> Result<(), CliError> {
    let twice = keys.iter().enumerate().find_map(|(place, key)| keys[..place].contains(key).then_some(key));
    let Some(key) = twice else { return Ok(()) };
    Err(CliError::arguments(format!("'{}' is named more than once", plain(key.as_str())), hint))
}

/// Parses the beginning of a key.
pub(crate) fn prefix(text: &str) -> Result<Key, CliError> {
    Key::try_from(text).map_err(|error| match error {
        KeyError::Empty => {
            CliError::arguments("a prefix has 1 to 255 bytes, and this one is empty", "give the beginning of a key")
        }
        error => invalid(&error.to_string().replacen("a key", "a prefix", 1), error.hint()),
    })
}

/// Parses a key. After U+0001, as in the commands that others print, the name of one of its limits.
pub(crate) fn key(text: &str) -> Result<Key, CliError> {
    let (text, limit) = text.split_once('\u{1}').map_or((text, None), |(key, limit)| (key, Some(limit)));
    let key = Key::try_from(text).map_err(|error| invalid(&error.to_string(), error.hint()))?;
    Ok(match limit {
        Some(limit) => key.limit(&limit_name(limit)?),
        None => key,
    })
}

/// Parses the name of a limit.
pub(crate) fn limit_name(text: &str) -> Result<LimitName, CliError> {
    LimitName::try_from(text).map_err(|error| invalid(&error.to_string(), error.hint()))
}

fn invalid(message: &str, hint: &str) -> CliError {
    let (problem, hint) = split_hint(message, Some(hint));
    CliError::arguments(problem, hint)
}
