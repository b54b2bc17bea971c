use std::time::Duration;

use chrono::{DateTime, Utc};

use crate::model::{Key, Mode, Quota};

/// What rules a key, where that comes from, and what a request for one token would come to.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Explanation {
    /// Whether the bucket exists.
    pub known: bool,
    /// The terms; `None`: nothing says.
    pub quota: Option<Quota>,
    /// Where the terms come from.
    pub quota_from: Option<Origin>,
    /// The plan that it follows, or that the request would name.
    pub plan: Option<Key>,
    /// What rules beside the tokens.
    pub mode: Mode,
    /// Where the mode comes from; `None`: nobody chose one.
    pub mode_from: Option<Origin>,
    /// Why the mode was chosen.
    pub mode_reason: Option<String>,
    /// When the mode ends; `None`: when another is chosen.
    pub mode_until: Option<DateTime<Utc>>,
    /// Why the override in force was made; `None`: there is none.
    pub override_reason: Option<String>,
    /// When the override ends; `None`: when it is taken away, or there is none.
    pub override_until: Option<DateTime<Utc>>,
    /// The whole tokens there; negative: promised to requests that wait for them; `None`: the bucket does not exist. PostgreSQL,
    /// MySQL and MariaDB reckon them, and when one more is there, by the terms of the bucket's last request, until the next
    /// one brings it to others.
    pub available: Option<i64>,
    /// What a request for one token would come to.
    pub prospect: Prospect,
    /// When a token is there; [`Duration::MAX`]: never, or nobody knows.
    pub retry_after: Duration,
}

/// Where something that rules a key comes from: the nearest to the key that says something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Origin {
    /// The key's override.
    Override,
    /// The plan.
    Plan,
    /// The bucket itself.
    Bucket,
    /// What was chosen for every key.
    All,
}

/// What a request for one token would come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Prospect {
    /// It would be granted.
    Granted,
    /// It would be denied.
    Denied,
    /// There is no such bucket, and nothing to make it of.
    UnknownBucket,
    /// There is no such plan.
    UnknownPlan,
    /// The bucket was provisioned, and not under the plan that the request names.
    Conflict,
}
