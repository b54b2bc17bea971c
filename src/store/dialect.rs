use std::fmt::Debug;

use sqlx::SqlStr;
use sqlx::error::DatabaseError;

use super::isolation::Isolation;
use super::levels;
use crate::bucket::{Bucket, Request, Terms};
use crate::retry::Class;
use crate::{Decision, Error, Key, Outcome, Quota, Rule, Take, TakeError};

/// The databases that a [`SqlStore`](crate::SqlStore) can be on: `sqlx::Postgres`, `sqlx::MySql` and `sqlx::Sqlite`.
///
/// Sealed by its signatures, which name types that nobody else can.
pub trait Dialect: sqlx::Database {
    /// Whose clock decides: `()` for the server's own.
    type Clock: Clone + Debug + Default + Send + Sync;

    #[doc(hidden)]
    /// Whether the server decides in one statement, with no transaction that the client would have to end.
    const ONE_STATEMENT: bool;

    #[doc(hidden)]
    /// The statement that opens a transaction of a level, if there are levels.
    fn begin(isolation: Isolation) -> Option<SqlStr>;

    #[doc(hidden)]
    /// Decides requests in one round trip, in any order.
    fn take(
        connection: &mut Self::Connection,
        asks: &[Ask],
        clock: &Self::Clock,
    ) -> impl Future<Output = Result<Vec<Answer>, sqlx::Error>> + Send;

    #[doc(hidden)]
    /// Provisions a bucket, or changes its terms.
    fn create_bucket(
        connection: &mut Self::Connection,
        key: &Key,
        quota: &Quota,
        clock: &Self::Clock,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    #[doc(hidden)]
    /// A page of buckets, in the order of their keys.
    fn levels(
        connection: &mut Self::Connection,
        after: &str,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<levels::Columns>, sqlx::Error>> + Send;

    #[doc(hidden)]
    /// What an error that the server reported means for the request.
    fn classify(error: &dyn DatabaseError) -> Class;

    #[doc(hidden)]
    /// Makes a connection fit for the pool again after an error.
    fn clean_up(connection: &mut Self::Connection) -> impl Future<Output = Result<(), sqlx::Error>> + Send;
}

/// A request as the database sees it.
#[derive(Clone, Debug)]
pub struct Ask {
    pub(super) key: Key,
    pub(super) request: Request,
    pub(super) quota: Option<Quota>,
    take: Take,
}

impl TryFrom<&Take> for Ask {
    type Error = TakeError;

    fn try_from(take: &Take) -> Result<Self, TakeError> {
        let quota = match take.rule {
            Rule::Provisioned => None,
            Rule::Quota(quota) => Some(quota),
        };
        Ok(Self { key: take.key.clone(), request: Request::try_from(take)?, quota, take: take.clone() })
    }
}

/// What every routine answers: which request (from 1), what became of it, when, and the bucket's columns after it.
pub(super) type Columns =
    (i64, String, i64, Option<i64>, Option<i64>, Option<i64>, Option<i64>, Option<i64>, Option<i64>, Option<i64>);

/// The database's answer to a request.
#[derive(Clone, Debug)]
pub struct Answer {
    entry: i64,
    outcome: String,
    now: i64,
    state: Option<(Terms, Bucket)>,
}

impl Answer {
    #[cfg(feature = "sqlite")]
    pub(super) fn new(entry: i64, outcome: &str, now: i64, terms: Terms, bucket: Bucket) -> Self {
        Self { entry, outcome: outcome.to_owned(), now, state: Some((terms, bucket)) }
    }

    #[cfg(feature = "sqlite")]
    pub(super) fn without_bucket(entry: i64, outcome: &str, now: i64) -> Self {
        Self { entry, outcome: outcome.to_owned(), now, state: None }
    }

    pub(super) fn entry(&self) -> i64 {
        self.entry
    }

    /// The decision, in terms that the caller of the store understands.
    pub(super) fn outcome(self, ask: &Ask, attempts: u32) -> Result<Outcome, Error> {
        let outcome = match (self.outcome.as_str(), self.state) {
            ("granted" | "denied", Some((terms, bucket))) => {
                let granted = self.outcome == "granted";
                Ok(Decision::new(bucket.verdict(&terms, self.now, ask.request, granted)).after(attempts))
            }
            ("never", Some((terms, _))) => Err(TakeError::NeverPossible {
                key: ask.key.clone(),
                cost: ask.take.cost,
                keep: ask.take.keep,
                capacity: terms.capacity.unsigned_abs(),
            }),
            ("unknown", _) => Err(TakeError::UnknownBucket(ask.key.clone())),
            ("conflict", _) => Err(TakeError::Conflict(ask.key.clone())),
            (other, _) => return Err(Error::other(sqlx::Error::Protocol(format!("the outcome {other:?}")))),
        };
        Ok(outcome)
    }
}

impl From<Columns> for Answer {
    fn from(columns: Columns) -> Self {
        let (entry, outcome, now, full_at, granted, capacity, anchor, step_ns, step_ticks, token_ticks) = columns;
        let state = || {
            let terms =
                Terms { capacity: capacity?, step_ns: step_ns?, step_ticks: step_ticks?, token_ticks: token_ticks? };
            Some((terms, Bucket { anchor: anchor?, full_at: full_at?, granted: granted?, longest_wait: 0 }))
        };
        Self { entry, outcome, now, state: state() }
    }
}
