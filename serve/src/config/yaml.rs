//! The configuration as it is written: envoyproxy/ratelimit's files, the block `tollgate`, and checks.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_saphyr::Spanned;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    pub(super) domain: Option<Spanned<String>>,
    pub(super) descriptors: Option<Vec<Descriptor>>,
    #[serde(default)]
    pub(super) tollgate: Settings,
    #[serde(default)]
    pub(super) checks: BTreeMap<String, Spanned<Check>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(clippy::struct_excessive_bools, reason = "each is a setting of the file")]
pub(super) struct Descriptor {
    pub(super) key: Spanned<String>,
    pub(super) value: Option<Spanned<String>>,
    pub(super) rate_limit: Option<Spanned<RateLimit>>,
    pub(super) descriptors: Option<Vec<Self>>,
    #[serde(default)]
    pub(super) shadow_mode: bool,
    #[serde(default)]
    pub(super) quota_mode: bool,
    #[serde(default)]
    pub(super) detailed_metric: bool,
    #[serde(default)]
    pub(super) value_to_metric: bool,
    #[serde(default)]
    pub(super) share_threshold: bool,
    pub(super) metadata: Option<serde_json::Map<String, serde_json::Value>>,
    #[serde(default)]
    pub(super) tollgate: Settings,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RateLimit {
    pub(super) unit: Option<Spanned<String>>,
    pub(super) requests_per_unit: Option<u32>,
    #[serde(default)]
    pub(super) unlimited: bool,
    pub(super) name: Option<String>,
    pub(super) replaces: Option<Vec<Replaced>>,
    #[serde(default)]
    pub(super) tollgate: Settings,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Replaced {
    pub(super) name: String,
}

/// The block `tollgate` of a file, a descriptor or a limit. A setting applies to all below it.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Settings {
    /// Any limit as text, instead of `unit` and `requests_per_unit`.
    pub(super) limit: Option<Spanned<String>>,
    /// The plan of the database.
    pub(super) plan: Option<Spanned<String>>,
    /// The entry whose value names the plan.
    pub(super) plan_of: Option<Spanned<String>>,
    pub(super) refill: Option<Refill>,
    pub(super) on_error: Option<OnError>,
    pub(super) deadline: Option<Spanned<String>>,
    pub(super) after_use: Option<bool>,
    pub(super) refunds: Option<bool>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Refill {
    /// All at once, at the end of each unit.
    Calendar,
    /// Evenly.
    Continuous,
}

#[derive(Clone, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum OnError {
    Error,
    Open,
    Closed,
    Local(Spanned<String>),
}

/// A check for forward authentication.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Check {
    pub(super) key: Vec<Spanned<String>>,
    #[serde(default)]
    pub(super) limits: Vec<Spanned<String>>,
    pub(super) plan: Option<Spanned<String>>,
    /// The header that names the plan.
    pub(super) plan_of: Option<Spanned<String>>,
    #[serde(default)]
    pub(super) trusted: Vec<Spanned<String>>,
    #[serde(default)]
    pub(super) allow_missing_key: bool,
    pub(super) deny_status: Option<Spanned<u16>>,
    pub(super) mode: Option<Spanned<String>>,
    pub(super) on_error: Option<OnError>,
    pub(super) deadline: Option<Spanned<String>>,
}
