//! The limit of a descriptor, and the answer if the store gives none.

use std::fmt;
use std::time::Duration;

use tollgate::{Key, Mode, Quota, Rule};

/// The limit at the end of a descriptor.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a setting of the configuration")]
pub(crate) struct DescriptorRule {
    /// The keys of the descriptor, for metrics.
    pub(crate) label: String,
    pub(crate) source: LimitSource,
    /// As the configuration states it, for answers.
    pub(crate) stated: Option<(u32, Unit)>,
    pub(crate) mode: Mode,
    /// The name that other limits replace.
    pub(crate) name: Option<String>,
    pub(crate) replaces: Vec<String>,
    /// Whether the request is denied only if all such limits deny it.
    pub(crate) is_quota: bool,
    pub(crate) detailed_metric: bool,
    pub(crate) metadata: Option<serde_json::Map<String, serde_json::Value>>,
    /// Whether requests report what was used.
    pub(crate) after_use: bool,
    /// Whether requests may give tokens back.
    pub(crate) refunds: bool,
    pub(crate) on_failure: FailureMode,
    pub(crate) deadline: Option<Duration>,
}

/// Where the limit comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LimitSource {
    Unlimited,
    /// No request passes.
    Nothing,
    Rule(Rule),
    /// A plan, which this entry names.
    PlanOf(String),
}

/// The answer if the store gives none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum FailureMode {
    /// An error, so that the proxy's own setting decides.
    #[default]
    Error,
    Open,
    Closed,
    /// This quota, in this process.
    Local(Quota),
}

/// The settings that a limit has from the descriptors above it, and from its file.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Inherited {
    pub(crate) is_continuous: bool,
    pub(crate) after_use: bool,
    pub(crate) refunds: bool,
    pub(crate) on_failure: FailureMode,
    pub(crate) deadline: Option<Duration>,
}

/// A unit of envoyproxy/ratelimit, counted from 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    Second,
    Minute,
    Hour,
    Day,
    Week,
    Month,
    Year,
}

impl Unit {
    pub(crate) fn parse(word: &str) -> Option<Self> {
        Some(match word.to_ascii_lowercase().as_str() {
            "second" => Self::Second,
            "minute" => Self::Minute,
            "hour" => Self::Hour,
            "day" => Self::Day,
            "week" => Self::Week,
            "month" => Self::Month,
            "year" => Self::Year,
            _ => return None,
        })
    }

    /// The length. A month has 30 days and a year 365, as in envoyproxy/ratelimit.
    pub(crate) const fn length(self) -> Duration {
        const DAY: u64 = 86_400;
        Duration::from_secs(match self {
            Self::Second => 1,
            Self::Minute => 60,
            Self::Hour => 3600,
            Self::Day => DAY,
            Self::Week => 7 * DAY,
            Self::Month => 30 * DAY,
            Self::Year => 365 * DAY,
        })
    }
}

impl LimitSource {
    /// The source of so many requests in a unit, all at once at its end or evenly. A rate that no bucket can have counts as unlimited.
    pub(crate) fn of_unit(requests: u32, unit: Unit, is_continuous: bool) -> Self {
        if requests == 0 {
            return Self::Nothing;
        }
        let (requests, length) = (u64::from(requests), unit.length());
        let quota = if is_continuous { Quota::continuous(requests, length) } else { Quota::calendar(requests, length) };
        quota.map_or(Self::Unlimited, |quota| Self::Rule(Rule::Quota(quota)))
    }

    pub(crate) fn plan(name: &str) -> Result<Self, tollgate::model::KeyError> {
        Ok(Self::Rule(Rule::Plan(Key::try_from(name)?)))
    }
}

impl fmt::Display for LimitSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unlimited => f.write_str("unlimited"),
            Self::Nothing => f.write_str("none"),
            Self::Rule(Rule::Quota(quota)) => write!(f, "{quota}"),
            Self::Rule(Rule::Window(window)) => write!(f, "{window}"),
            Self::Rule(Rule::Limits(limits)) => write!(f, "{limits}"),
            Self::Rule(Rule::Plan(plan)) => write!(f, "plan {plan}"),
            Self::Rule(_) => f.write_str("provisioned"),
            Self::PlanOf(entry) => write!(f, "the plan that '{entry}' names"),
        }
    }
}

impl fmt::Display for DescriptorRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.source)?;
        if self.mode != Mode::Enforce {
            write!(f, ", mode {}", self.mode)?;
        }
        if self.after_use {
            f.write_str(", after use")?;
        }
        Ok(())
    }
}
