use std::error::Error as StdError;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use uuid::Uuid;

use crate::model::{Key, KeyError, ModeError, QuotaError, ThrottleError};

/// Why there is no answer. That there is no token is an answer: see [`Decision`](crate::Decision).
///
/// No variant ever means that tokens were granted. Where it is not certain that none were taken,
/// [`is_outcome_unknown`](Self::is_outcome_unknown) says so.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// What an operator asked for can never be. Nothing was changed.
    #[error(transparent)]
    Admin(#[from] AdminError),
    /// The database stayed busy with others: every attempt was rolled back.
    #[error(
        "every one of {attempts} attempts was rolled back: too many requests contend for this bucket (a lease spares the \
         database most of them), another transaction stays open that holds it, or the isolation \
         level is above READ COMMITTED, which decisions do not need"
    )]
    Contended {
        /// How often the database was asked.
        attempts: u32,
        /// What it said last.
        source: Cause,
    },
    /// The deadline passed while the database had the request.
    #[error(
        "no answer within {0:?}; whether the tokens were taken is unknown: ask again only with a request id, which pays once"
    )]
    DeadlineExceeded(Duration),
    /// The database refused the statement.
    #[error("the database refused the request")]
    Database(#[source] Cause),
    /// The limit cannot be throttled. Nothing was changed.
    #[error(transparent)]
    Throttle(#[from] ThrottleError),
    /// The text is no key.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The environment variable `TOLLGATE_MODE` holds no mode. Nothing was built.
    #[error("TOLLGATE_MODE: {0}")]
    Mode(#[from] ModeError),
    /// A newer version of this crate has been here, and took away what this one needs.
    #[error(
        "the database is at schema version {found}, which no longer has what this version of tollgate, that knows {known}, \
         needs: update the tollgate dependency of this service"
    )]
    NewerSchema {
        /// The database's version.
        found: i64,
        /// The newest that this crate knows.
        known: i64,
    },
    /// The tables or routines are missing.
    #[error(
        "tollgate's tables and routines are not in this database, or not all of them: \
         run `tollgate migrate` or tollgate::migrate(&pool) once, or copy its migrations into your own"
    )]
    NotMigrated(#[source] Cause),
    /// The store has answered none of many requests in a row, so one at a time asks it until it does, and this one did not.
    /// Nothing was taken.
    #[error(
        "the database was not asked: it has answered none of many requests in a row, so one at a time asks until it does, \
         the next one in {} s at the latest; see what it waits for, or say what to answer meanwhile: \
         LimiterBuilder::fallback",
        retry_after.as_secs() + 1
    )]
    CircuitOpen {
        /// When the next one asks, at the latest.
        retry_after: Duration,
        /// Why there was no answer, the last time.
        source: Cause,
    },
    /// The role may not call the routines.
    #[error(
        "this database role may not do that: `tollgate migrate --print grants` or migrations/grants makes roles that may; \
         run it again after each upgrade. tollgate_app takes tokens, and looks at keys that it names; \
         who lists keys, or changes what rules them, has tollgate_operator"
    )]
    NotPermitted(#[source] Cause),
    /// Another implementation of a trait of this crate failed.
    #[error(transparent)]
    Other(Cause),
    /// The connection broke while the database had the request.
    #[error(
        "the connection broke during the request; whether the tokens were taken is unknown: ask again only with a request id, \
         which pays once"
    )]
    OutcomeUnknown(#[source] Cause),
    /// So many requests wait in this process for the database that no more are taken on. Nothing was taken.
    #[error("{0} requests wait for the database already: is it slow, or does another transaction hold their buckets?")]
    Overloaded(usize),
    /// The figures make no quota.
    #[error(transparent)]
    Quota(#[from] QuotaError),
    /// The database takes no writes. Nothing was taken.
    #[error(
        "the database takes no writes: it is a replica, or was the primary once, or is set read-only; \
         decisions are made on the primary"
    )]
    ReadOnly(#[source] Cause),
    /// The request can never be granted.
    #[error(transparent)]
    Take(#[from] TakeError),
    /// A row cannot be decoded: a limit, mode, count or text in it is out of bounds. Nothing was changed.
    #[error("the row of '{key}' breaks its bounds")]
    Unreadable {
        /// The key, the name of the plan, or `token_mode` for the mode of every key.
        key: Key,
        /// What is wrong with the row.
        source: Cause,
    },
    /// There was no connection to send the request on. Nothing was taken.
    #[error("{}", unavailable(.0))]
    Unavailable(#[source] Cause),
}

impl Error {
    /// Wraps the error of another store or requester.
    pub fn other(error: impl StdError + Send + Sync + 'static) -> Self {
        Self::Other(Arc::new(error))
    }

    /// What it means to all that were asked for together, if some of them have taken what they have.
    pub(crate) fn after(self, some: bool) -> Self {
        if some { Self::OutcomeUnknown(Arc::new(self)) } else { self }
    }

    /// Whether the store failed, and not the request: what a [`Fallback`](crate::Fallback) answers instead.
    #[must_use]
    pub fn is_failure(&self) -> bool {
        !matches!(
            self,
            Self::Admin(_) | Self::Throttle(_) | Self::Key(_) | Self::Mode(_) | Self::Quota(_) | Self::Take(_)
        )
    }

    /// Whether tokens may have been taken all the same. Asking again may then pay twice.
    #[must_use]
    pub fn is_outcome_unknown(&self) -> bool {
        matches!(self, Self::DeadlineExceeded(_) | Self::OutcomeUnknown(_))
    }
}

impl From<std::convert::Infallible> for Error {
    fn from(never: std::convert::Infallible) -> Self {
        match never {}
    }
}

/// What the server says of a connection that it refuses, or what may be wrong if it says nothing.
fn unavailable(cause: &Cause) -> String {
    let refusal = refusal(cause).unwrap_or_default();
    if refusal.is_empty() {
        "no connection to the database: is it up, is the URL right, and is the pool large enough?".to_owned()
    } else if refusal.contains("startup parameter") {
        format!(
            "the pooler refused the connection: {refusal}: add the parameter to PgBouncer's ignore_startup_parameters \
             (`options` for PgStore::connect), and set it for the role instead"
        )
    } else {
        format!("the database refused the connection: {refusal}")
    }
}

#[cfg(feature = "_sql")]
fn refusal(cause: &Cause) -> Option<&str> {
    Some(cause.downcast_ref::<sqlx::Error>()?.as_database_error()?.message())
}

#[cfg(not(feature = "_sql"))]
fn refusal(_: &Cause) -> Option<&str> {
    None
}

/// What lies beneath an [`Error`]. Shared, so that one failed call can answer several callers.
pub type Cause = Arc<dyn StdError + Send + Sync>;

/// Why a request can never be granted, decided before any token moves.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TakeError {
    /// The bucket was provisioned with other terms than the quota of the request.
    #[error("bucket '{0}' is provisioned with terms of its own: take from it without a quota, or use another key")]
    Conflict(Key),
    /// More tokens than the bucket ever holds.
    #[error(
        "bucket '{key}' holds {capacity} token{}: {cost}, with {min_remaining} to keep, can never be had at once",
        if *capacity == 1 { "" } else { "s" }
    )]
    ExceedsCapacity {
        /// The bucket.
        key: Key,
        /// The tokens asked for.
        cost: u64,
        /// The tokens that had to remain.
        min_remaining: u64,
        /// The tokens that the bucket holds when full.
        capacity: u64,
    },
    /// The store holds as many keys as it may, and none of their buckets is full.
    #[error(
        "there is no room for bucket '{0}': the store holds as many keys as it may, and none that it can forget; \
         raise MemoryStore::max_keys"
    )]
    TooManyKeys(Key),
    /// The store remembers the ids of as many requests as it may, and none of them has expired. Nothing was taken or given back.
    #[error("there is no room to remember request {0}: hold ids for a shorter time, or raise MemoryStore::max_keys")]
    TooManyIds(Uuid),
    /// The limits of the request have costs of their own, and were to be settled or refunded as if they had one.
    #[error("the limits of the request cost different things: say what each used, by settle_each or refund_each")]
    CostsDiffer,
    /// A request for no token, of one of its buckets at least.
    #[error("a request takes 1 token or more of each of its buckets, and this one takes 0")]
    ZeroCost,
    /// The id is that of another request: for other buckets, at another cost, or cancelled.
    #[error(
        "the id {0} is that of another request, for other buckets, at another cost, or cancelled: repeat a request as it \
         was, and give each other one an id of its own"
    )]
    IdReused(Uuid),
    /// A request without an id cannot be settled: nothing was remembered of it. Nothing was changed.
    #[error("only a request with an id can be settled: give it one, and say for how long to remember it, by Take::id")]
    MissingId,
    /// A sliding window among several limits of one request.
    #[error("'{0}' is under a sliding window, which is decided by itself: ask for it in a request of its own")]
    WindowNotAlone(Key),
    /// No such plan.
    #[error("{}: insert its name, capacity and refill_seconds into token_plans, or call create_plan", absent(key, plan.as_ref()))]
    UnknownPlan {
        /// The bucket.
        key: Key,
        /// The plan that the request named; `None`: the one that the bucket follows is not there any more.
        plan: Option<Key>,
    },
    /// No such bucket.
    #[error(
        "there is no bucket '{0}': insert its id, capacity and refill_seconds into token_buckets, or call create_bucket"
    )]
    UnknownBucket(Key),
}

fn absent(key: &Key, plan: Option<&Key>) -> String {
    match plan {
        Some(plan) => format!("there is no plan '{plan}', which bucket '{key}' was to follow"),
        None => format!("the plan of bucket '{key}' is not there any more"),
    }
}

/// Why an operator's change is not valid. No store was called.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AdminError {
    /// An override without a quota and without a mode.
    #[error("the override changes nothing: give it a quota, or a mode")]
    ChangesNothing,
    /// An end in the past.
    #[error("it would end at {0}, which is past: give a later time, or none")]
    EndInPast(DateTime<Utc>),
    /// A reason that not every database can hold, and its length in bytes.
    #[error("a reason of {0} bytes, or with a NUL in it, cannot be stored: give 65535 bytes or less, without NUL")]
    InvalidReason(usize),
    /// An unlimited quota, which no store keeps.
    #[error("a quota without a limit cannot be stored: switch the mode to off instead")]
    UnlimitedQuota,
    /// A store that cannot report levels.
    #[error("this kind of store does not say what it holds: it has no Maintenance::level and window_level")]
    Unsupported,
    /// A key under a sliding window, which has no bucket.
    #[error("'{0}' is under a sliding window, which has no bucket to look at: peek_window says what it has counted")]
    Window(Key),
    /// A key under a quota, which has no sliding window.
    #[error("'{0}' is under no sliding window: peek says what its bucket has")]
    NoWindow(Key),
}
