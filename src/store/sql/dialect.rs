//! The traits through which a store calls one kind of database.

use std::fmt::Debug;
use std::path::Path;
use std::pin::Pin;
use std::time::Duration;

use sqlx::error::DatabaseError;
use sqlx::{Connection, Database, SqlStr};

use super::call::{AdjustedColumns, Counting, SqlRequest};
use super::retry::{CommitClaim, ErrorClass};
use super::settings::{Durability, Isolation};
use crate::admin::{
    BucketLevel, DenialCount, Explanation, Filter, ModeSetting, Override, Plan, RecordedUsage, SweepResult,
    UsageFilter, UsageRecording,
};
use crate::model::answer::{BucketAnswer, OutcomeCode};
use crate::model::bucket::ThrottleLevel;
use crate::model::{Adjustment, Key, Limits, Quota, Rule, WindowLevel, WindowUsage};
use crate::store::Capabilities;

/// The databases that a [`SqlStore`](crate::SqlStore) can be on: `sqlx::Postgres`, `sqlx::MySql` and `sqlx::Sqlite`.
///
/// The trait is sealed: its statements can change with the migrations.
pub trait Dialect: Engine {}

/// How one kind of database is reached and called.
#[allow(unreachable_pub, reason = "it seals a public trait")]
pub trait Engine: Decisions {
    /// Whether the server decides in one statement, without a transaction that the client must end.
    const ONE_STATEMENT: bool;

    /// Whether there is a server, which can refuse connections for a while.
    const HAS_SERVER: bool;

    /// With how many concurrent calls of many requests each the database is fastest: one, if it has one writer.
    const CONCURRENT_CALLS: usize;

    /// Returns the capabilities of a store with this context and this number of connections.
    fn capabilities(_: &Self::CallContext, _connections: usize) -> Capabilities {
        Capabilities::default().max_take_all(MAX_TAKE_ALL).concurrent_calls(Self::CONCURRENT_CALLS)
    }

    /// The statement that opens a transaction of a level, if the database has levels.
    fn begin(isolation: Isolation) -> Option<SqlStr>;

    /// Parses a URL into the driver's options. Logs no value of the URL.
    fn parse_url(url: &str) -> Result<<Self::Connection as Connection>::Options, sqlx::Error>;

    /// The options of a connection whose commits have a durability.
    fn connect_options(
        url: &str,
        durability: Durability,
    ) -> Result<<Self::Connection as Connection>::Options, sqlx::Error>;

    /// The file that connections open, if the database is one.
    #[must_use]
    fn file(_: &<Self::Connection as Connection>::Options) -> Option<&Path> {
        None
    }

    /// The server's settings with which a crash can forget answers, if connections cannot choose them.
    #[must_use]
    fn lacks_durability(_: &mut Self::Connection) -> impl Future<Output = Result<Option<String>, sqlx::Error>> + Send {
        std::future::ready(Ok(None))
    }

    /// Classifies an error that the server reported, by its effect on the request.
    fn classify(error: &dyn DatabaseError) -> ErrorClass;

    /// Whether the server closes the connection after an error that it reported.
    #[must_use]
    fn is_fatal(_: &dyn DatabaseError) -> bool {
        false
    }

    /// Whether the server refused a connection because it has as many as it accepts.
    #[must_use]
    fn is_full(_: &dyn DatabaseError) -> bool {
        false
    }

    /// Makes a connection fit for the pool again after an error. If that fails, the caller closes the connection.
    fn clean_up(connection: &mut Self::Connection) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// The context of calls in a transaction of the caller's instead of their own.
    fn in_callers_transaction(context: &Self::CallContext) -> Self::CallContext {
        context.clone()
    }

    /// The context of calls whose caller waits for `left` at most: the server's waits for locks end earlier.
    fn with_time_left(context: &Self::CallContext, _left: Duration) -> Self::CallContext {
        context.clone()
    }

    /// Whether the server still works on a call of this role that began at least `age` ago.
    #[must_use]
    fn is_call_running(
        _: &mut Self::Connection,
        _age: Duration,
    ) -> impl Future<Output = Result<bool, sqlx::Error>> + Send {
        std::future::ready(Ok(false))
    }

    /// Prepares a connection for an operator's statement, and returns whether to [end](Self::end_operation) the
    /// operation.
    #[must_use]
    fn begin_operation(_: &mut Self::Connection) -> impl Future<Output = Result<bool, sqlx::Error>> + Send {
        std::future::ready(Ok(false))
    }

    /// Makes a change in a transaction. Commits if it claims `CommitClaim`, and rolls back otherwise.
    fn run_change<A: Sync, T: Send>(
        connection: &mut Self::Connection,
        operation: Operation<Self, A, T>,
        arguments: &A,
        context: &Self::CallContext,
        time: ChangeTime<'_>,
    ) -> impl Future<Output = Result<T, sqlx::Error>> + Send {
        async move {
            let begin = Self::begin(Isolation::ReadCommitted).unwrap_or(SqlStr::from_static("begin immediate"));
            let mut transaction = connection.begin_with(begin).await?;
            Self::set_timeouts(&mut transaction, time.left).await?;
            let answer = operation(&mut transaction, arguments, context).await?;
            if time.commit_claim.claim() {
                transaction.commit().await?;
            } else {
                transaction.rollback().await?;
            }
            Ok(answer)
        }
    }

    /// Has the server end a transaction's statements within a duration, if it can.
    #[must_use]
    fn set_timeouts(_: &mut Self::Connection, _: Duration) -> impl Future<Output = Result<(), sqlx::Error>> + Send {
        std::future::ready(Ok(()))
    }

    /// Commits an operator's statement in a session without autocommit.
    #[must_use]
    fn end_operation(_: &mut Self::Connection) -> impl Future<Output = Result<(), sqlx::Error>> + Send {
        std::future::ready(Ok(()))
    }
}

/// One of an operator's statements, with its arguments.
#[allow(unreachable_pub, reason = "the signatures of a sealed trait name it")]
pub type Operation<DB, A, T> = for<'c> fn(
    &'c mut <DB as Database>::Connection,
    &'c A,
    &'c <DB as Operations>::CallContext,
) -> OperationFuture<'c, T>;

/// How much longer the caller of a change waits, and the right to commit the change.
#[allow(unreachable_pub, reason = "the signatures of a sealed trait name it")]
#[derive(Clone, Copy, Debug)]
pub struct ChangeTime<'a> {
    pub left: Duration,
    pub commit_claim: &'a CommitClaim,
}

/// A row, or why it cannot be read.
#[allow(unreachable_pub, reason = "the signatures of a sealed trait name it")]
pub type RowResult<T> = Result<T, sqlx::Error>;

/// Where a page begins: after a key, and after `skip` rows behind the key that cannot be read.
#[allow(unreachable_pub, reason = "the signatures of a sealed trait name it")]
#[derive(Clone, Debug)]
pub struct PageStart {
    pub key: Option<Key>,
    pub skip: i64,
}

/// The name of a plan's limit, and the name of the cost that the limit counts.
#[allow(unreachable_pub, reason = "the signatures of a sealed trait name it")]
pub type LimitNames = (Option<String>, Option<String>);

/// How usage is recorded: seconds of a period, days for which periods are kept.
#[allow(unreachable_pub, reason = "the signatures of a sealed trait name it")]
pub type RecordingColumns = (i64, i64);

/// The usage of a bucket: id, plan, granted, charged, refunded, denied.
#[allow(unreachable_pub, reason = "the signatures of a sealed trait name it")]
pub type UsageColumns = (String, Option<String>, i64, i64, i64, i64);

/// A conversation on a connection that the caller lends.
#[allow(unreachable_pub, reason = "the signatures of a sealed trait name it")]
pub type OperationFuture<'c, T> = Pin<Box<dyn Future<Output = Result<T, sqlx::Error>> + Send + 'c>>;

/// The statements of decisions on one kind of database.
#[allow(unreachable_pub, reason = "it seals a public trait")]
pub trait Decisions: Operations {
    /// Decides requests, and answers in their order. A server decides in one round trip. On MySQL a batch under one quota
    /// or plan takes two, if more than tokens decides it: a mode, an override, changed limits or a clock that was set back.
    /// SQLite has no round trips: it grants a plain request by one `UPDATE`, and decides others in a transaction.
    fn take(
        connection: &mut Self::Connection,
        requests: &[SqlRequest],
        context: &Self::CallContext,
    ) -> impl Future<Output = Result<Vec<BucketAnswer>, sqlx::Error>> + Send;

    /// Decides requests for several buckets each, which all grant a request or none. Answers for each bucket, in their
    /// order. With several requests, none waits or has an id.
    fn take_all(
        connection: &mut Self::Connection,
        requests: &[SqlRequest],
        context: &Self::CallContext,
    ) -> impl Future<Output = Result<Vec<BucketAnswer>, sqlx::Error>> + Send;

    /// Decides a request under a sliding window, or counts it.
    fn take_window(
        connection: &mut Self::Connection,
        request: &SqlRequest,
        counting: Counting,
        context: &Self::CallContext,
    ) -> impl Future<Output = Result<WindowUsage, sqlx::Error>> + Send;

    /// Refunds or charges what grants took, and answers in their order. A server adjusts in one round trip, and SQLite in a
    /// transaction.
    fn adjust(
        connection: &mut Self::Connection,
        adjustments: &[Adjustment],
        context: &Self::CallContext,
    ) -> impl Future<Output = Result<Vec<AdjustedColumns>, sqlx::Error>> + Send;
}

/// An operator's statements on one kind of database. Each method takes its arguments as one value, so that one function
/// can run and repeat them all.
#[allow(unreachable_pub, reason = "it seals a public trait")]
pub trait Operations: Database {
    /// A value that each call passes on: the lock timeout on PostgreSQL, the owner of the transaction on MySQL, and the
    /// clock on SQLite.
    type CallContext: Clone + Debug + Default + Send + Sync;

    /// The time that checks an operator's ends before the database is called: the host's, if the server has a clock of
    /// its own.
    fn now(context: &Self::CallContext) -> i64;

    /// Provisions a bucket, or changes its quota.
    fn create_bucket<'c>(
        connection: &'c mut Self::Connection,
        bucket: &'c (Key, Quota),
        context: &'c Self::CallContext,
    ) -> OperationFuture<'c, ()>;

    /// A bucket, if it exists.
    fn peek<'c>(
        connection: &'c mut Self::Connection,
        key: &'c Key,
        context: &'c Self::CallContext,
    ) -> OperationFuture<'c, Option<RowResult<BucketLevel>>>;

    /// A window, if anything was counted in it.
    fn peek_window<'c>(
        connection: &'c mut Self::Connection,
        key: &'c Key,
        context: &'c Self::CallContext,
    ) -> OperationFuture<'c, Option<RowResult<WindowLevel>>>;

    /// A page of buckets, in the order of their keys.
    fn list<'c>(
        connection: &'c mut Self::Connection,
        page: &'c (Filter, PageStart, u32),
        context: &'c Self::CallContext,
    ) -> OperationFuture<'c, Vec<RowResult<BucketLevel>>>;

    /// A page of windows in which anything was counted, in the order of their keys.
    fn windows<'c>(
        connection: &'c mut Self::Connection,
        page: &'c (Filter, PageStart, u32),
        context: &'c Self::CallContext,
    ) -> OperationFuture<'c, Vec<RowResult<WindowLevel>>>;

    /// Makes a bucket full.
    fn reset<'c>(
        connection: &'c mut Self::Connection,
        key: &'c Key,
        context: &'c Self::CallContext,
    ) -> OperationFuture<'c, bool>;

    /// Deletes a bucket.
    fn delete<'c>(
        connection: &'c mut Self::Connection,
        key: &'c Key,
        context: &'c Self::CallContext,
    ) -> OperationFuture<'c, bool>;

    /// The rules that apply to a key, under a plan if one is named.
    fn explain<'c>(
        connection: &'c mut Self::Connection,
        key_and_plan: &'c (Key, Option<Key>),
        context: &'c Self::CallContext,
    ) -> OperationFuture<'c, RowResult<Explanation>>;

    /// Creates a plan, or changes its limits.
    fn create_plan<'c>(
        connection: &'c mut Self::Connection,
        plan: &'c (Key, Limits),
        context: &'c Self::CallContext,
    ) -> OperationFuture<'c, ()>;

    /// The names of a plan's limits and of the costs that they count, if it has several limits or one with a name.
    fn plan_limits<'c>(
        connection: &'c mut Self::Connection,
        plan: &'c Key,
        context: &'c Self::CallContext,
    ) -> OperationFuture<'c, Vec<LimitNames>>;

    /// Sets or clears the mode of all limits of a plan, or of one of its further limits.
    fn set_plan_mode<'c>(
        connection: &'c mut Self::Connection,
        plan: &'c (Key, Option<ModeSetting>),
        context: &'c Self::CallContext,
    ) -> OperationFuture<'c, bool>;

    /// A plan, if it exists.
    fn plan<'c>(
        connection: &'c mut Self::Connection,
        name: &'c Key,
        context: &'c Self::CallContext,
    ) -> OperationFuture<'c, Option<RowResult<Plan>>>;

    /// A page of plans, in the order of their names.
    fn plans<'c>(
        connection: &'c mut Self::Connection,
        page: &'c (PageStart, u32),
        context: &'c Self::CallContext,
    ) -> OperationFuture<'c, Vec<RowResult<Plan>>>;

    /// Deletes a plan.
    fn delete_plan<'c>(
        connection: &'c mut Self::Connection,
        name: &'c Key,
        context: &'c Self::CallContext,
    ) -> OperationFuture<'c, bool>;

    /// Sets the mode of every key.
    fn set_mode<'c>(
        connection: &'c mut Self::Connection,
        setting: &'c ModeSetting,
        context: &'c Self::CallContext,
    ) -> OperationFuture<'c, ()>;

    /// The mode of every key.
    fn mode<'c>(
        connection: &'c mut Self::Connection,
        arguments: &'c (),
        context: &'c Self::CallContext,
    ) -> OperationFuture<'c, RowResult<ModeSetting>>;

    /// Creates or replaces an override.
    fn set_override<'c>(
        connection: &'c mut Self::Connection,
        over: &'c (Key, Override),
        context: &'c Self::CallContext,
    ) -> OperationFuture<'c, ()>;

    /// Deletes an override.
    fn clear_override<'c>(
        connection: &'c mut Self::Connection,
        key: &'c Key,
        context: &'c Self::CallContext,
    ) -> OperationFuture<'c, bool>;

    /// A page of overrides, in the order of their keys.
    fn overrides<'c>(
        connection: &'c mut Self::Connection,
        page: &'c (PageStart, u32),
        context: &'c Self::CallContext,
    ) -> OperationFuture<'c, Vec<RowResult<(Key, Override)>>>;

    #[expect(clippy::ptr_arg, reason = "the arguments are one value")]
    /// Adds counts of denials, in the order of their keys.
    fn count_denials<'c>(
        connection: &'c mut Self::Connection,
        denials: &'c Vec<(Key, i64)>,
        context: &'c Self::CallContext,
    ) -> OperationFuture<'c, ()>;

    /// The keys with the most denials.
    fn most_denied<'c>(
        connection: &'c mut Self::Connection,
        page: &'c (PageStart, u32),
        context: &'c Self::CallContext,
    ) -> OperationFuture<'c, Vec<RowResult<DenialCount>>>;

    /// Deletes expired rows in one step.
    fn sweep<'c>(
        connection: &'c mut Self::Connection,
        limit: &'c u32,
        context: &'c Self::CallContext,
    ) -> OperationFuture<'c, SweepResult>;

    #[expect(clippy::ref_option, reason = "the arguments are one value")]
    /// Sets whether and how usage is recorded.
    fn set_usage_recording<'c>(
        connection: &'c mut Self::Connection,
        recording: &'c Option<UsageRecording>,
        context: &'c Self::CallContext,
    ) -> OperationFuture<'c, ()>;

    /// Whether and how usage is recorded.
    fn usage_recording<'c>(
        connection: &'c mut Self::Connection,
        arguments: &'c (),
        context: &'c Self::CallContext,
    ) -> OperationFuture<'c, Option<RecordingColumns>>;

    /// The usage of a number of buckets after an id.
    fn usage<'c>(
        connection: &'c mut Self::Connection,
        arguments: &'c (UsageFilter, Option<Key>, u32),
        context: &'c Self::CallContext,
    ) -> OperationFuture<'c, Vec<UsageColumns>>;

    /// Records usage in one step.
    fn record_usage<'c>(
        connection: &'c mut Self::Connection,
        limit: &'c u32,
        context: &'c Self::CallContext,
    ) -> OperationFuture<'c, RecordedUsage>;

    /// Lowers a bucket, and returns whether it held more, or `None` if it never refills. Creates the bucket if its rule
    /// can create it.
    fn throttle<'c>(
        connection: &'c mut Self::Connection,
        bucket_and_level: &'c (Key, Rule, ThrottleLevel),
        context: &'c Self::CallContext,
    ) -> OperationFuture<'c, ThrottleOutcome>;
}

/// Whether a bucket held more than it was lowered to, or why it was not lowered.
#[allow(unreachable_pub, reason = "the signatures of a sealed trait name it")]
pub type ThrottleOutcome = Result<Option<bool>, OutcomeCode>;

/// How many requests for several buckets each share one call. More would hold their rows for longer than they save, and
/// MySQL's routine has one bit for each.
pub(super) const MAX_TAKE_ALL: usize = 64;
