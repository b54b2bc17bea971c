//! Reads the golden vectors of `tests/vectors`, whose README.md describes their format.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use tollgate::Quota;
use tollgate::model::bucket::Verdict;

/// A bucket and its requests, in order.
#[derive(Debug)]
pub struct Scenario {
    pub name: String,
    pub quota: Quota,
    /// Whether the first request creates the bucket. Otherwise it is provisioned.
    pub first_used: bool,
    pub steps: Vec<Step>,
}

/// A request, the answer to it, and the row after it.
#[derive(Debug)]
pub struct Step {
    /// The line in its file, for messages.
    pub line: String,
    pub at: i64,
    pub cost: i64,
    pub min_remaining: i64,
    pub max_wait: i64,
    /// `None` if the request can never be granted.
    pub answer: Option<Expected>,
    pub full_at: i64,
    pub granted: i64,
    pub max_granted_wait: i64,
}

impl Step {
    /// Returns the row's `full_at`, `granted` and `max_granted_wait`. `made`: the bucket's clock at its creation.
    pub fn row(&self, made: i64) -> (i64, i64, i64) {
        let untouched = self.granted == 0 && self.full_at == 0;
        (if untouched { 0 } else { made + self.full_at }, self.granted, self.max_granted_wait)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    pub granted: bool,
    pub remaining: i64,
    pub wait: i64,
    pub retry_after: i64,
    pub reset_after: i64,
}

impl From<Expected> for Verdict {
    fn from(expected: Expected) -> Self {
        let Expected { granted, remaining, wait, retry_after, reset_after } = expected;
        Self { granted, remaining, wait, retry_after, reset_after }
    }
}

/// Reads every scenario of every file.
pub fn scenarios() -> Result<Vec<Scenario>> {
    let mut scenarios = Vec::new();
    for (file, text) in FILES {
        for (number, line) in (1..).zip(text.lines()) {
            let read = match line.strip_prefix("bucket ") {
                Some(header) => scenario(file, header).map(|scenario| scenarios.push(scenario)),
                None if line.starts_with('#') || line.trim().is_empty() || line.trim().starts_with("at ") => Ok(()),
                None => step(file, number, line).and_then(|step| {
                    scenarios.last_mut().context("a request without a bucket")?.steps.push(step);
                    Ok(())
                }),
            };
            read.with_context(|| format!("{file}:{number}: {line}"))?;
        }
    }
    Ok(scenarios)
}

fn scenario(file: &str, header: &str) -> Result<Scenario> {
    let (name, quota) = header.split_once(": ").context("a bucket has a name and a quota")?;
    let (quota, first_used) = match quota.strip_suffix(", first used") {
        Some(quota) => (quota, true),
        None => (quota, false),
    };
    let words: Vec<&str> = quota.split_whitespace().collect();
    let quota = match words[..] {
        [capacity, "per", period] => Quota::interval(number(capacity)?.try_into()?, duration(period)?)?,
        [capacity, "evenly", "over", refill] => Quota::continuous(number(capacity)?.try_into()?, duration(refill)?)?,
        _ => bail!("a quota is `2 per 1s` or `2 evenly over 1s`"),
    };
    Ok(Scenario { name: format!("{file}: {name}"), quota, first_used, steps: Vec::new() })
}

fn step(file: &str, number_of_line: usize, line: &str) -> Result<Step> {
    let columns: Vec<&str> = line.split_whitespace().filter(|word| *word != "|").collect();
    ensure!(columns.len() == 12, "a request has 12 columns, and this one has {}", columns.len());
    let answer = match columns[4] {
        "never" => None,
        outcome @ ("granted" | "denied") => Some(Expected {
            granted: outcome == "granted",
            remaining: number(columns[5])?,
            wait: span(columns[6])?,
            retry_after: span(columns[7])?,
            reset_after: span(columns[8])?,
        }),
        other => bail!("the outcome {other}"),
    };
    Ok(Step {
        line: format!("{file}:{number_of_line}:{line}"),
        at: span(columns[0])?,
        cost: number(columns[1])?,
        min_remaining: number(columns[2])?,
        max_wait: span(columns[3])?,
        answer,
        full_at: number(columns[9])?,
        granted: number(columns[10])?,
        max_granted_wait: number(columns[11])?,
    })
}

fn number(text: &str) -> Result<i64> {
    text.replace('_', "").parse().with_context(|| format!("the number {text}"))
}

fn duration(text: &str) -> Result<Duration> {
    Ok(Duration::from_nanos(span(text)?.try_into()?))
}

/// Parses a sum such as `1h-1ns` into nanoseconds.
fn span(text: &str) -> Result<i64> {
    let mut sum = 0;
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest[1..].find(['+', '-']).map_or(rest.len(), |at| at + 1);
        sum += term(&rest[..end]).with_context(|| format!("the span {text}"))?;
        rest = &rest[end..];
    }
    Ok(sum)
}

fn term(text: &str) -> Result<i64> {
    let (digits, unit) = text.split_at(text.find(char::is_alphabetic).unwrap_or(text.len()));
    let ns: i64 = match unit {
        "" if digits == "0" => 1,
        "ns" => 1,
        "us" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "h" => 3_600_000_000_000,
        "y" => 31_557_600_000_000_000,
        other => bail!("the unit {other}"),
    };
    number(digits)?.checked_mul(ns).context("too long a span")
}

const FILES: [(&str, &str); 3] = [
    ("continuous.txt", include_str!("../vectors/continuous.txt")),
    ("interval.txt", include_str!("../vectors/interval.txt")),
    ("clocks.txt", include_str!("../vectors/clocks.txt")),
];
