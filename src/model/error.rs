//! The errors of decisions, with hints, and whether tokens may have been taken.

use std::error::Error as StdError;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use smol_str::SmolStr;
#[cfg(feature = "_sql")]
use sqlx::error::DatabaseError;
use uuid::Uuid;

use crate::model::{Key, KeyError, LimitName, ModeError, QuotaError, ThrottleError};

/// The reason why a request has no decision. A denial is a [`Decision`](crate::Decision), not an error.
///
/// No error grants tokens. If [`is_outcome_unknown`](Self::is_outcome_unknown) is true, tokens may have been taken all the
/// same. With every other error, nothing was taken.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Every attempt was rolled back, because other transactions locked the bucket or were serialized first.
    #[error("every one of {attempts} attempts was rolled back: {hint}", hint = self.hint().unwrap_or_default())]
    Contended {
        /// The number of attempts.
        attempts: u32,
        /// The error of the last attempt.
        source: Cause,
    },
    /// The deadline passed while the database had the request.
    #[error(
        "no answer within {0:?}; whether the tokens were taken is unknown: {hint}",
        hint = self.hint().unwrap_or_default()
    )]
    DeadlineExceeded(Duration),
    /// The database refused the statement.
    #[error("the database refused the request")]
    Database(#[source] Cause),
    /// The limit cannot be throttled. Nothing was changed.
    #[error(transparent)]
    Throttle(#[from] ThrottleError),
    /// The text is not a valid key.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The environment variable `TOLLGATE_MODE` is not a valid mode. No limiter was built.
    #[error("TOLLGATE_MODE: {0}")]
    Mode(#[from] ModeError),
    /// A newer version of this crate has migrated the database, and removed objects that this version needs.
    #[error(
        "the database is at schema version {found}, and this version of tollgate supports {known} at most: {hint}",
        hint = self.hint().unwrap_or_default()
    )]
    NewerSchema {
        /// The database's schema version.
        found: i64,
        /// The newest schema version that this crate supports.
        known: i64,
    },
    /// The database lacks tables or routines.
    #[error(
        "tollgate's tables and routines are not in this database, or not all of them: {hint}",
        hint = self.hint().unwrap_or_default()
    )]
    NotMigrated(#[source] Cause),
    /// The circuit breaker is open, because the store answered none of many requests in a row. The limiter tests the store;
    /// this request did not call it. Nothing was taken.
    #[error(
        "the circuit breaker is open, because many requests in a row had no answer; the test call ends within {} s: {hint}",
        retry_after.as_secs() + 1,
        hint = self.hint().unwrap_or_default()
    )]
    CircuitOpen {
        /// The longest time until the test of the store ends.
        retry_after: Duration,
        /// The last failure of the store.
        source: Cause,
    },
    /// The role may not call the routines.
    #[error("this database role may not do that: {hint}", hint = self.hint().unwrap_or_default())]
    NotPermitted(#[source] Cause),
    /// An operator's call was not valid: a converted [`AdminError`](crate::admin::AdminError). Nothing was changed.
    #[error(transparent)]
    Invalid(Cause),
    /// Another implementation of a trait of this crate failed.
    #[error(transparent)]
    Other(Cause),
    /// The connection broke while the database had the request.
    #[error(
        "the connection broke during the request; whether the tokens were taken is unknown: {hint}",
        hint = self.hint().unwrap_or_default()
    )]
    OutcomeUnknown(#[source] Cause),
    /// Too many requests wait for the database in this process. Nothing was taken.
    #[error("{0} requests wait for the database already: {hint}", hint = self.hint().unwrap_or_default())]
    Overloaded(usize),
    /// The values are not a valid quota.
    #[error(transparent)]
    Quota(#[from] QuotaError),
    /// The database takes no writes. Nothing was taken.
    #[error("the database takes no writes: {hint}", hint = self.hint().unwrap_or_default())]
    ReadOnly(#[source] Cause),
    /// The request can never be granted.
    #[error(transparent)]
    Take(#[from] TakeError),
    /// A row cannot be decoded: a limit, mode, count or text in it is out of bounds. Nothing was changed.
    #[error("the row of '{key}' breaks its bounds")]
    Unreadable {
        /// The key, the name of the plan, or `token_mode` for the mode of every key.
        key: Key,
        /// The reason why the row cannot be decoded.
        source: Cause,
    },
    /// No connection to the database was available. Nothing was taken.
    #[error("{}", unavailable(.0))]
    Unavailable(#[source] Cause),
}

impl Error {
    /// Wraps the error of a [`TestStore`](crate::store::TestStore) or of another implementation of
    /// [`TokenRequester`](crate::TokenRequester).
    pub fn other(error: impl StdError + Send + Sync + 'static) -> Self {
        Self::Other(Arc::new(error))
    }

    /// The error for a batch that failed. If some of its requests have taken tokens, the outcome is unknown.
    pub(crate) fn unknown_if_partial(self, is_partial: bool) -> Self {
        if is_partial { Self::OutcomeUnknown(Arc::new(self)) } else { self }
    }

    /// Returns what to do about the error. The message ends with it, after a colon. `None`: the message says all.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        Some(match self {
            Self::Contended { .. } => {
                "too many requests contend for the bucket (use a lease), another transaction locks it, or the isolation level is \
                 above READ COMMITTED"
            }
            Self::DeadlineExceeded(_) | Self::OutcomeUnknown(_) => "ask again only with a request id, which pays once",
            Self::Throttle(error) => error.hint(),
            Self::Key(error) => error.hint(),
            Self::Mode(error) => error.hint(),
            Self::NewerSchema { .. } => "update the tollgate dependency of this service",
            Self::NotMigrated(_) => {
                "run `tollgate migrate` or tollgate::migrate(&pool) once, or copy its migrations into your own"
            }
            Self::CircuitOpen { .. } => "set LimiterBuilder::fallback to answer meanwhile",
            Self::NotPermitted(_) => {
                "`tollgate migrate --print grants` or migrations/grants makes roles that may; run it again after each upgrade. \
                 tollgate_app takes tokens, and reads keys that it names; to list keys, or to change limits and modes, a role \
                 needs tollgate_operator"
            }
            Self::Overloaded(_) => "is it slow, or does another transaction hold their buckets?",
            Self::Quota(error) => error.hint(),
            Self::ReadOnly(_) => {
                "it is a replica, or was the primary once, or is set read-only; decisions are made on the primary"
            }
            Self::Take(error) => return error.hint(),
            Self::Database(_) | Self::Invalid(_) | Self::Other(_) | Self::Unreadable { .. } | Self::Unavailable(_) => {
                return None;
            }
        })
    }

    /// Returns whether the store failed, and not the request. A [`Fallback`](crate::Fallback) answers such requests.
    #[must_use]
    pub fn is_failure(&self) -> bool {
        !matches!(
            self,
            Self::Invalid(_) | Self::Throttle(_) | Self::Key(_) | Self::Mode(_) | Self::Quota(_) | Self::Take(_)
        )
    }

    /// Returns whether tokens may have been taken all the same. A repeated request without an [id](crate::Take::id) can
    /// then pay twice.
    #[must_use]
    pub fn is_outcome_unknown(&self) -> bool {
        matches!(self, Self::DeadlineExceeded(_) | Self::OutcomeUnknown(_))
    }
}

impl Error {
    /// The error code of the database, if it reported one. The code names no key.
    #[cfg(feature = "_sql")]
    pub(crate) fn database_code(&self) -> Option<SmolStr> {
        let mut source: Option<&(dyn StdError + 'static)> = match self {
            Self::Contended { source: cause, .. }
            | Self::Database(cause)
            | Self::CircuitOpen { source: cause, .. }
            | Self::NotMigrated(cause)
            | Self::NotPermitted(cause)
            | Self::OutcomeUnknown(cause)
            | Self::ReadOnly(cause)
            | Self::Unavailable(cause) => Some(&**cause),
            _ => None,
        };
        while let Some(cause) = source {
            if let Some(sqlx::Error::Database(error)) = cause.downcast_ref() {
                return code_of(&**error);
            }
            if let Some(error) = cause.downcast_ref::<Self>() {
                return error.database_code();
            }
            source = cause.source();
        }
        None
    }

    /// Other stores have no codes.
    #[cfg(not(feature = "_sql"))]
    #[expect(clippy::unused_self, reason = "databases have codes")]
    pub(crate) fn database_code(&self) -> Option<SmolStr> {
        None
    }
}

/// The code of an error in the manual of the database that reported it. For MySQL its number, because many of its errors
/// share a SQLSTATE.
#[cfg(feature = "_sql")]
pub(crate) fn code_of(error: &dyn DatabaseError) -> Option<SmolStr> {
    #[cfg(feature = "mysql")]
    if let Some(error) = error.try_downcast_ref::<sqlx::mysql::MySqlDatabaseError>() {
        return Some(smol_str::format_smolstr!("{}", error.number()));
    }
    error.code().map(SmolStr::from)
}

impl From<std::convert::Infallible> for Error {
    fn from(never: std::convert::Infallible) -> Self {
        match never {}
    }
}

/// The server's reason for refusing the connection, or likely causes if there is none.
fn unavailable(cause: &Cause) -> String {
    if let Some(file) = cause.downcast_ref::<FileError>() {
        return file.to_string();
    }
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

/// The reason why no call can use the connections to a database file.
#[derive(Debug, thiserror::Error)]
#[cfg_attr(not(feature = "_sql"), expect(dead_code, reason = "only SQL stores have files"))]
pub(crate) enum FileError {
    #[error("the database file {} is missing: put it back", .0.display())]
    Missing(PathBuf),
    #[error(
        "the database file {} was replaced while it was open: the store opens the new file for later calls",
        .0.display()
    )]
    Replaced(PathBuf),
}

/// The underlying error of an [`Error`]. Shared, so that one failed call can answer several callers.
pub type Cause = Arc<dyn StdError + Send + Sync>;

/// The reason why a request can never be granted. Nothing was taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TakeError {
    /// The bucket was provisioned with another limit than the quota or plan of the request.
    #[error("bucket '{0}' is provisioned with another limit: {hint}", hint = self.hint().unwrap_or_default())]
    Conflict(Key),
    /// The cost and the minimum remaining exceed the capacity of the bucket, or the maximum of the sliding window.
    #[error(
        "a cost of {cost}{} exceeds the {} '{key}': {capacity}",
        if *min_remaining > 0 { format!(" plus a minimum remaining of {min_remaining}") } else { String::new() },
        if *window { "maximum of window" } else { "capacity of bucket" }
    )]
    ExceedsCapacity {
        /// The bucket or the window.
        key: Key,
        /// The tokens asked for.
        cost: u64,
        /// The tokens that had to remain.
        min_remaining: u64,
        /// The tokens that the bucket holds when full, or the maximum of the window.
        capacity: u64,
        /// Whether the key is under a sliding window.
        window: bool,
    },
    /// The store holds the maximum number of keys, and none of their buckets is full.
    #[error(
        "there is no room for bucket '{0}': the store holds the maximum number of keys, and can remove none: {hint}",
        hint = self.hint().unwrap_or_default()
    )]
    TooManyKeys(Key),
    /// The store remembers the maximum number of request ids, and none of them has expired. Nothing was taken or given
    /// back.
    #[error("there is no room to remember request {0}: {hint}", hint = self.hint().unwrap_or_default())]
    TooManyIds(Uuid),
    /// The limits of the request have different costs, but one number was given to settle or refund them all.
    #[error("the limits of the request have different costs: {hint}", hint = self.hint().unwrap_or_default())]
    CostsDiffer,
    /// The request takes 0 tokens from at least one of its buckets.
    #[error("a request takes at least 1 token from each of its buckets, and this one takes 0")]
    ZeroCost,
    /// The id belongs to another request, which has other buckets or another cost, or was cancelled.
    #[error(
        "the id {0} belongs to another request, with other buckets or another cost, or to a cancelled one: {hint}",
        hint = self.hint().unwrap_or_default()
    )]
    IdReused(Uuid),
    /// The request has no id, so the store does not remember it and cannot settle it. Nothing was changed.
    #[error("only a request with an id can be settled: {hint}", hint = self.hint().unwrap_or_default())]
    MissingId,
    /// The key and the name of one of its limits have more than 254 bytes together.
    #[error("the bucket of a limit of '{0}' has no room for its name: {hint}", hint = self.hint().unwrap_or_default())]
    LimitKeyTooLong(Key),
    /// A limit counts a [cost](crate::Take::cost_of) that the request does not state.
    #[error(
        "a limit of '{key}' counts the cost '{cost}', which the request does not state: {hint}",
        hint = self.hint().unwrap_or_default()
    )]
    MissingCost {
        /// The key.
        key: Key,
        /// The name of the cost.
        cost: LimitName,
    },
    /// No limit of the request counts this cost.
    #[error("no limit of the request counts the cost '{0}': {hint}", hint = self.hint().unwrap_or_default())]
    UnknownCost(LimitName),
    /// The request has several limits, and one of them is a sliding window.
    #[error(
        "'{0}' is under a sliding window, which is decided by itself: {hint}",
        hint = self.hint().unwrap_or_default()
    )]
    WindowNotAlone(Key),
    /// The key is under a sliding window or unlimited, and has no tokens to charge.
    #[error("'{0}' has no bucket to charge: {hint}", hint = self.hint().unwrap_or_default())]
    NothingToCharge(Key),
    /// The plan does not exist.
    #[error("{}: {hint}", absent(key, plan.as_ref()), hint = self.hint().unwrap_or_default())]
    UnknownPlan {
        /// The bucket.
        key: Key,
        /// The plan that the request named. `None`: the bucket's plan was deleted.
        plan: Option<Key>,
    },
    /// The bucket does not exist, and the request has no limit to create it with.
    #[error("there is no bucket '{0}': {hint}", hint = self.hint().unwrap_or_default())]
    UnknownBucket(Key),
}

impl TakeError {
    /// Returns what to do about the error. The message ends with it, after a colon. `None`: the message says all.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        Some(match self {
            Self::Conflict(_) => "take from it without a quota, or use another key",
            Self::TooManyKeys(_) => "raise MemoryStore::max_keys",
            Self::TooManyIds(_) => "hold ids for a shorter time, or raise MemoryStore::max_keys",
            Self::CostsDiffer => "pass the tokens of each, to settle_each or refund_each",
            Self::IdReused(_) => "repeat a request unchanged, and give every other request a new id",
            Self::MissingId => "give it one, and say for how long to remember it, by Take::id",
            Self::LimitKeyTooLong(_) => "shorten or hash the key",
            Self::MissingCost { .. } => "state it by Take::cost_of",
            Self::UnknownCost(_) => "state only costs that a limit of the plan or of the code names",
            Self::WindowNotAlone(_) => "ask for it in a request of its own",
            Self::NothingToCharge(_) => "give it a quota, or count requests in its window by SharedWindows::count",
            Self::UnknownPlan { .. } => {
                "insert its name, capacity and refill_seconds into token_plans, or call create_plan"
            }
            Self::UnknownBucket(_) => {
                "insert its id, capacity and refill_seconds into token_buckets, or call create_bucket"
            }
            Self::ExceedsCapacity { .. } | Self::ZeroCost => return None,
        })
    }
}

fn absent(key: &Key, plan: Option<&Key>) -> String {
    match plan {
        Some(plan) => format!("there is no plan '{plan}', which bucket '{key}' was to follow"),
        None => format!("the plan of bucket '{key}' is not there any more"),
    }
}
