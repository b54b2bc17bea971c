use std::time::Duration;

use crate::bucket::{LONGEST_WAIT_NS, Request};
use crate::{Decision, Error, Key, Quota, TakeError};

#[cfg(feature = "_sql")]
mod dialect;
#[cfg(feature = "_sql")]
mod isolation;
#[cfg(feature = "_sql")]
mod levels;
#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "_sql")]
mod sql;
#[cfg(feature = "sqlite")]
mod sqlite;

#[cfg(feature = "_sql")]
pub use dialect::Dialect;
#[cfg(feature = "_sql")]
pub use isolation::Isolation;
#[cfg(feature = "_sql")]
pub use levels::BucketLevel;
#[cfg(feature = "mysql")]
pub use mysql::MySqlStore;
#[cfg(feature = "postgres")]
pub use postgres::PgStore;
#[cfg(feature = "_sql")]
pub use sql::{SqlStore, create_bucket};
#[cfg(feature = "sqlite")]
pub use sqlite::SqliteStore;

/// Where buckets are kept: the one seam between the limiters above and the databases below.
///
/// A request without tokens is answered with a denial; it never waits for tokens and writes nothing.
pub trait Store: Send + Sync + 'static {
    /// Decides requests, each for itself, and answers in their order.
    ///
    /// Requests for the same bucket are decided in the order given.
    ///
    /// # Errors
    ///
    /// If there is no answer at all; what can be said of one request alone is its [`Outcome`].
    ///
    /// # Cancel safety
    ///
    /// A future that is dropped leaves nothing open behind, but the tokens may have been taken.
    fn take(&self, takes: &[Take]) -> impl Future<Output = Result<Vec<Outcome>, Error>> + Send;
}

/// The answer to one request.
pub type Outcome = Result<Decision, TakeError>;

/// A request for tokens of one bucket.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Key, Take};
///
/// let take = Take::from(Key::try_from("user:42")?).cost(3).keep(20).max_wait(Duration::from_millis(50));
/// # Ok::<(), tollgate::KeyError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Take {
    pub(crate) key: Key,
    pub(crate) rule: Rule,
    pub(crate) cost: u64,
    pub(crate) max_wait: Duration,
    pub(crate) keep: u64,
}

impl Take {
    /// How many tokens to take; 1 if not said.
    #[must_use]
    pub fn cost(self, cost: u64) -> Self {
        Self { cost, ..self }
    }

    /// How long the caller would wait for them; not at all if not said. A year at most.
    #[must_use]
    pub fn max_wait(self, max_wait: Duration) -> Self {
        Self { max_wait, ..self }
    }

    /// How many tokens must remain for others; none if not said.
    #[must_use]
    pub fn keep(self, keep: u64) -> Self {
        Self { keep, ..self }
    }

    /// Under which terms; the bucket's own if not said.
    #[must_use]
    pub fn rule(self, rule: Rule) -> Self {
        Self { rule, ..self }
    }

    /// Which bucket.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.key
    }
}

/// A take in the arithmetic's units, unless it can never be granted.
impl TryFrom<&Take> for Request {
    type Error = TakeError;

    fn try_from(take: &Take) -> Result<Self, TakeError> {
        if take.cost == 0 {
            return Err(TakeError::NoTokens);
        }
        // Larger figures than any bucket holds stay so; half of the range keeps their sums within it.
        let tokens = |n: u64| i64::try_from(n).unwrap_or(i64::MAX).min(i64::MAX / 2);
        let max_wait = i64::try_from(take.max_wait.as_nanos()).unwrap_or(i64::MAX).min(LONGEST_WAIT_NS);
        Ok(Self { cost: tokens(take.cost), max_wait, keep: tokens(take.keep) })
    }
}

impl From<Key> for Take {
    fn from(key: Key) -> Self {
        Self { key, rule: Rule::Provisioned, cost: 1, max_wait: Duration::ZERO, keep: 0 }
    }
}

/// Whose terms hold for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Rule {
    /// The bucket's own. It must have been provisioned.
    Provisioned,
    /// These. The first request makes the bucket, full; a bucket made under another quota changes to this one
    /// and keeps its tokens.
    Quota(Quota),
}
