//! Several limits of one key: their names, their costs, and their form as text.

use std::fmt;
use std::ops::Deref;
use std::str::FromStr;
use std::sync::Arc;

use crate::model::{Key, LimitName, Quota, QuotaError};

/// Limits of one key that a request takes from together: 1 to 16, each with a bucket of its own.
///
/// A request takes from all of them, or from none. The first limit has the bucket of the key, with or without a name. Each further
/// one has the bucket [`Key::limit`], under its name, or under its place (`2`, `3`, …) if it has none. Add limits at the end: a
/// limit that moves to or from the first place takes from another bucket. So does a further limit that is renamed, or moved without
/// a name.
///
/// ```
/// use tollgate::{Limiter, MemoryStore};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tollgate::Error> {
/// let limiter = Limiter::new(MemoryStore::new(), ["10/s burst 20", "day: 1000/day", "month: 20000/month"])?;
/// let decision = limiter.allow("user:42").await?;
/// assert_eq!((decision.limit_name(), decision.remaining(), decision.each().len()), (None, Some(19), 3));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits(Arc<[NamedLimit]>);

/// A quota, its name beside other limits of the key, and what it counts.
///
/// As text: `1000/day`, `day: 1000/day`, or `tokens: 40000/min cost tokens`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedLimit {
    pub(crate) quota: Quota,
    pub(crate) name: Option<LimitName>,
    pub(crate) cost: Option<LimitName>,
}

impl Limits {
    /// Creates limits of one key.
    ///
    /// # Errors
    ///
    /// Returns an error if there are none or more than 16, or if two have one name.
    pub fn new(limits: impl IntoIterator<Item = NamedLimit>) -> Result<Self, QuotaError> {
        let limits: Arc<[NamedLimit]> = limits.into_iter().collect();
        if limits.is_empty() || limits.len() > MAX_LIMITS {
            return Err(QuotaError::LimitCount(limits.len()));
        }
        let names = limits.iter().enumerate().filter_map(|(place, limit)| Some((place, limit.name.as_ref()?)));
        let is_repeated = |(place, name): &(usize, &LimitName)| {
            limits[..*place].iter().any(|other| other.name.as_ref() == Some(*name))
        };
        match names.into_iter().find(is_repeated) {
            Some((_, name)) => Err(QuotaError::RepeatedName(name.to_string())),
            None => Ok(Self(limits)),
        }
    }

    /// Returns the first limit.
    #[must_use]
    pub fn first(&self) -> &NamedLimit {
        &self.0[0]
    }

    /// Whether there are several limits, or one with a name or a named cost.
    pub(crate) fn are_named(&self) -> bool {
        !matches!(&self.0[..], [NamedLimit { name: None, cost: None, .. }])
    }

    /// Returns the limits, each with the id of the bucket that it has for a key.
    pub fn buckets(&self, key: &Key) -> impl Iterator<Item = (Key, &NamedLimit)> {
        self.0.iter().enumerate().map(move |(place, limit)| match (place, &limit.name) {
            (0, _) => (key.clone(), limit),
            (_, Some(name)) => (key.limit(name), limit),
            (_, None) => (key.with_suffix(&(place + 1).to_string()), limit),
        })
    }
}

impl Deref for Limits {
    type Target = [NamedLimit];

    fn deref(&self) -> &[NamedLimit] {
        &self.0
    }
}

impl From<Quota> for Limits {
    fn from(quota: Quota) -> Self {
        Self(Arc::new([quota.into()]))
    }
}

impl NamedLimit {
    /// Sets the name, which keeps a further limit's bucket if other further limits are added, moved or removed. The first limit has
    /// the bucket of the key, under any name. Default: none.
    #[must_use]
    pub fn name(self, name: LimitName) -> Self {
        Self { name: Some(name), ..self }
    }

    /// Makes the limit count a [cost of this name](crate::Take::cost_of) instead of the request's cost.
    #[must_use]
    pub fn cost(self, name: LimitName) -> Self {
        Self { cost: Some(name), ..self }
    }

    /// Returns the quota.
    #[must_use]
    pub fn quota(&self) -> Quota {
        self.quota
    }

    /// Returns the name, if the limit has one.
    #[must_use]
    pub fn get_name(&self) -> Option<&LimitName> {
        self.name.as_ref()
    }

    /// Returns the name of the cost that the limit counts. `None`: the request's cost.
    #[must_use]
    pub fn get_cost(&self) -> Option<&LimitName> {
        self.cost.as_ref()
    }
}

impl From<Quota> for NamedLimit {
    fn from(quota: Quota) -> Self {
        Self { quota, name: None, cost: None }
    }
}

impl FromStr for NamedLimit {
    type Err = QuotaError;

    fn from_str(text: &str) -> Result<Self, QuotaError> {
        let (name, text) = match text.split_once(':') {
            // The time at which a calendar period starts.
            Some((quota, _)) if quota.contains('/') || quota.contains(" per ") => (None, text),
            Some((name, quota)) => (Some(LimitName::try_from(name.trim())?), quota),
            None => (None, text),
        };
        let (quota, cost) = match text.split_once(" cost ") {
            Some((quota, cost)) => (quota, Some(LimitName::try_from(cost.trim())?)),
            None => (text, None),
        };
        Ok(Self { quota: quota.parse()?, name, cost })
    }
}

impl fmt::Display for NamedLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(name) = &self.name {
            write!(f, "{name}: ")?;
        }
        write!(f, "{}", self.quota)?;
        match &self.cost {
            Some(cost) => write!(f, " cost {cost}"),
            None => Ok(()),
        }
    }
}

impl FromStr for Limits {
    type Err = QuotaError;

    /// Parses limits between semicolons: `10/s; day: 1000/day`.
    fn from_str(text: &str) -> Result<Self, QuotaError> {
        Self::new(text.split(';').map(str::parse).collect::<Result<Vec<NamedLimit>, _>>()?)
    }
}

impl fmt::Display for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, limit) in self.iter().enumerate() {
            let separator = if place == 0 { "" } else { "; " };
            write!(f, "{separator}{limit}")?;
        }
        Ok(())
    }
}

const MAX_LIMITS: usize = 16;
