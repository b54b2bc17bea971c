//! The store over a pool: attempts, transactions, and connections that get no answer.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::{Connection, Pool, SqlStr};
use tokio::runtime::Handle;
use tokio::time::error::Elapsed;
use tokio::time::{Instant, timeout, timeout_at};

use super::batches::{CallBatch, split_into_calls};
use super::call::{self, Counting, RoutineCall, RoutineReply, SqlRequest};
use super::dialect::{ChangeTime, Dialect, MAX_TAKE_ALL, Operation};
use super::endpoints::{Endpoints, NODE_PATIENCE};
use super::file::DatabaseFile;
use super::plans::{self, KnownPlans};
use super::reconnect::Reconnect;
use super::retry::{CommitClaim, ErrorClass, Failure, Retry, finish_change, finish_conversation, finish_statement};
use super::settings::Isolation;
use crate::admin::{AdminError, BucketLevel, DenialCount, RecordedUsage, SweepResult};
use crate::model::answer::throttled;
use crate::model::error::code_of;
use crate::model::{
    Adjusted, Adjustment, Checked, Error, Key, Limits, Outcome, Quota, Rule, Take, TakeError, Throttle, Window,
    WindowLevel, WindowUsage,
};
use crate::store::admin::{Admin, level_under, window_level_under};
use crate::store::{CallOptions, Capabilities, Maintenance, MaintenanceFuture, SharedWindows, Store, sealed};
use crate::telemetry::ObservedCall;

/// A store of buckets in a SQL database, through your own pool or a [small one](Self::connect) of the store.
///
/// On PostgreSQL, a call is one statement. On MySQL and MariaDB, two, if more than tokens decides a batch under one quota or
/// plan: a mode, an override, changed limits or a clock that was set back. An operator's reads are two as well. On SQLite, a
/// call is a transaction, or one `UPDATE` for a plain request. An operator's change is a transaction.
///
/// The store retries serialization failures and deadlocks with jitter until the deadline. It never repeats a request
/// whose outcome is unknown, and never reports such a request as granted.
#[derive(Debug)]
pub struct SqlStore<DB: Dialect> {
    pub(super) pool: Pool<DB>,
    pub(super) context: DB::CallContext,
    isolation: Option<Isolation>,
    retry: Retry,
    reconnect: Reconnect,
    file: DatabaseFile,
    endpoints: Option<Arc<Endpoints<DB>>>,
    pub(super) plans: KnownPlans,
}

impl<DB: Dialect> SqlStore<DB> {
    /// Sets the deadline by which every call ends, with an error if necessary. Default: 5 s.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.retry.deadline = deadline;
        self
    }

    /// Sets how often the store attempts a call at most, after serialization failures and deadlocks. Default: as often
    /// as the [deadline](Self::deadline) allows.
    #[must_use]
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.retry.attempts = attempts.max(1);
        self
    }

    /// Runs each call in a transaction of this level. Default: the pool's own level, in one round trip.
    ///
    /// Decisions are exact at every level. Higher levels only cost retries. `SQLite` has one level.
    ///
    /// Leave the level out on a store that is `distributed()`. Citus delegates no call in a transaction to the node that has
    /// the key.
    #[must_use]
    pub fn isolation(mut self, isolation: Isolation) -> Self {
        self.isolation = Some(isolation);
        self
    }

    pub(super) fn with(pool: Pool<DB>, context: DB::CallContext) -> Self {
        let file = DatabaseFile::of(&pool);
        let (retry, reconnect) = (Retry::default(), Reconnect::default());
        Self { pool, context, isolation: None, retry, reconnect, file, endpoints: None, plans: KnownPlans::default() }
    }

    /// Takes the options of each new connection from the endpoints.
    pub(super) fn with_endpoints(self, endpoints: Endpoints<DB>) -> Self {
        Self { endpoints: Some(Arc::new(endpoints)), ..self }
    }

    /// The time that checks an operator's ends.
    pub(super) fn now(&self) -> i64 {
        DB::now(&self.context)
    }

    /// Makes an operator's change. A change that was not committed by the deadline is rolled back.
    pub(super) async fn run_change<A, T>(&self, arguments: A, operation: Operation<DB, A, T>) -> Result<T, Error>
    where
        A: Send + Sync + 'static,
        T: Send + 'static,
    {
        let arguments = Arc::new(arguments);
        let attempt = |deadline| {
            let (arguments, context) = (Arc::clone(&arguments), DB::in_callers_transaction(&self.context));
            async move {
                let mut connection = self.acquire(deadline).await?;
                let watch = self.watch(deadline);
                finish_change(deadline, async move |commit_claim: CommitClaim| {
                    let left = deadline.duration_since(Instant::now());
                    let time = ChangeTime { left, commit_claim: &commit_claim };
                    let conversation = DB::run_change(&mut connection, operation, &arguments, &context, time);
                    let result = watch.await_answer(conversation).await;
                    return_connection(connection, result).await
                })
                .await
            }
        };
        self.retry_observed(attempt).await
    }

    /// Runs an operator's read, or a statement that can complete after the deadline.
    pub(super) async fn run_operation<A, T>(&self, arguments: A, operation: Operation<DB, A, T>) -> Result<T, Error>
    where
        A: Send + Sync + 'static,
        T: Send + 'static,
    {
        self.run_statement(arguments, operation, false).await
    }

    /// Runs an operator's statement. `ends_itself` says that the statement leaves no transaction open, under any
    /// settings of the session.
    async fn run_statement<A, T>(
        &self,
        arguments: A,
        operation: Operation<DB, A, T>,
        ends_itself: bool,
    ) -> Result<T, Error>
    where
        A: Send + Sync + 'static,
        T: Send + 'static,
    {
        let arguments = Arc::new(arguments);
        let attempt = |deadline| {
            let arguments = Arc::clone(&arguments);
            async move {
                let mut connection = self.acquire(deadline).await?;
                let (context, watch) = (self.context_until(deadline), self.watch(deadline));
                finish_conversation(deadline, async move {
                    let conversation = async {
                        let is_left_open = !ends_itself && DB::begin_operation(&mut connection).await?;
                        let answer = operation(&mut connection, &arguments, &context).await?;
                        if is_left_open {
                            DB::end_operation(&mut connection).await?;
                        }
                        Ok(answer)
                    };
                    let result = watch.await_answer(conversation).await;
                    return_connection(connection, result).await
                })
                .await
            }
        };
        self.retry_observed(attempt).await
    }

    /// Makes and records the attempts at an operator's statement.
    async fn retry_observed<T, F>(&self, attempt: impl Fn(Instant) -> F + Send + Sync) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Failure>> + Send,
        T: Send,
    {
        let observed = ObservedCall::begin(DB::URL_SCHEMES[0], "operate", 0);
        let attempts = self.retry.run(CallOptions::default(), attempt);
        let attempts_future: AttemptsFuture<'_, T> = Box::pin(observed.in_span(attempts));
        let result = attempts_future.await;
        observed.end(result.is_ok());
        result.map(|(answer, _)| answer)
    }

    async fn call_routine(&self, call: RoutineCall, options: CallOptions) -> Result<(RoutineReply, u32), Error> {
        let observed = ObservedCall::begin(DB::URL_SCHEMES[0], call.name(), call.requests());
        let attempts = self.retry.run(options, |deadline| self.attempt_call(call.clone(), deadline));
        let attempts_future: AttemptsFuture<'_, RoutineReply> = Box::pin(observed.in_span(attempts));
        let result = attempts_future.await;
        observed.end(result.is_ok());
        result
    }

    async fn acquire(&self, deadline: Instant) -> Result<PoolConnection<DB>, Failure> {
        self.file.check(&self.pool)?;
        match self.acquire_from_endpoints(deadline).await {
            Ok(Ok(mut connection)) => match self.file.check_again() {
                Ok(()) => Ok(connection),
                Err(failure) => {
                    connection.close_on_drop();
                    Err(failure)
                }
            },
            Ok(Err(error)) => match classify::<DB>(&error) {
                ErrorClass::NotPermitted => Err(Failure::new(ErrorClass::NotPermitted, error)),
                _ => Err(Failure::new(ErrorClass::Unavailable, error)),
            },
            Err(elapsed) => Err(Failure::new(ErrorClass::Unavailable, elapsed)),
        }
    }

    /// Waits for a connection, for a part of the time at each node if there are several.
    async fn acquire_from_endpoints(
        &self,
        deadline: Instant,
    ) -> Result<Result<PoolConnection<DB>, sqlx::Error>, Elapsed> {
        if let Some(endpoints) = &self.endpoints {
            if let Err(error) = endpoints.prepare(&self.pool) {
                return Ok(Err(error));
            }
            let mut others = endpoints.others();
            while Instant::now() + NODE_PATIENCE < deadline {
                match timeout(NODE_PATIENCE, self.reconnect.acquire(&self.pool)).await {
                    // Such as a node whose name or network is gone.
                    Ok(Err(sqlx::Error::Io(_))) if others > 0 => others -= 1,
                    Ok(acquired) => return Ok(acquired),
                    Err(_) => {}
                }
                if let Err(error) = endpoints.turn(&self.pool) {
                    return Ok(Err(error));
                }
            }
        }
        timeout_at(deadline, self.reconnect.acquire(&self.pool)).await
    }

    /// The context of a call whose caller waits until `deadline`.
    fn context_until(&self, deadline: Instant) -> DB::CallContext {
        DB::with_time_left(&self.context, deadline.duration_since(Instant::now()))
    }

    fn watch(&self, deadline: Instant) -> Watch<DB> {
        let age = self.retry.deadline().max(MIN_WATCHED_AGE);
        Watch { pool: self.pool.clone(), reconnect: self.reconnect.clone(), begins: deadline + age, age }
    }

    async fn attempt_call(&self, call: RoutineCall, deadline: Instant) -> Result<RoutineReply, Failure> {
        let mut connection = self.acquire(deadline).await?;
        let (context, begin) = (self.context_until(deadline), self.isolation.and_then(DB::begin));
        let watch = self.watch(deadline);
        let one_statement = DB::ONE_STATEMENT && begin.is_none();
        let conversation = async move {
            let result = watch.await_answer(async {
                match begin {
                    None => run_routine::<DB>(&mut connection, &call, &context).await,
                    Some(begin) => in_transaction::<DB>(&mut connection, begin, &call, &context).await,
                }
            });
            let result = result.await;
            return_connection(connection, result).await
        };
        if one_statement {
            finish_statement(deadline, conversation).await
        } else {
            finish_conversation(deadline, conversation).await
        }
    }
}

/// The future of an answer and the number of attempts. The box keeps callers' futures small, and the compiler need not
/// look through a driver and its TLS to know that they are `Send`.
type AttemptsFuture<'a, T> = Pin<Box<dyn Future<Output = Result<(T, u32), Error>> + Send + 'a>>;

impl<DB: Dialect> Clone for SqlStore<DB> {
    fn clone(&self) -> Self {
        let (pool, context, reconnect) = (self.pool.clone(), self.context.clone(), self.reconnect.clone());
        let (file, endpoints, plans) = (self.file.clone(), self.endpoints.clone(), self.plans.clone());
        Self { pool, context, reconnect, file, endpoints, plans, ..*self }
    }
}

impl<DB: Dialect> From<Pool<DB>> for SqlStore<DB> {
    fn from(pool: Pool<DB>) -> Self {
        Self::with(pool, DB::CallContext::default())
    }
}

impl<DB: Dialect> sealed::Sealed for SqlStore<DB> {}

impl<DB: Dialect> Store for SqlStore<DB> {
    fn capabilities(&self) -> Capabilities {
        let connections = usize::try_from(self.pool.options().get_max_connections()).unwrap_or(usize::MAX);
        DB::capabilities(&self.context, connections)
    }

    /// Decides in as few calls as possible, one after the other.
    async fn take_checked(&self, takes: Checked<&[Take]>, options: CallOptions) -> Result<Vec<Outcome>, Error> {
        let (groups, mut outcomes) = split_into_calls(takes, MAX_TAKE_ALL);
        for (before, group) in groups.into_iter().enumerate() {
            let batch = CallBatch::of(group);
            let answered = self.call_routine(batch.call(), options).await;
            let entered = answered.and_then(|(reply, attempts)| batch.enter(reply, attempts, &mut outcomes));
            entered.map_err(|error| error.unknown_if_partial(before > 0))?;
        }
        let outcomes: Vec<Outcome> = outcomes.into_iter().flatten().collect();
        for outcome in &outcomes {
            if let Err(TakeError::UnknownPlan { plan: Some(plan), .. }) = outcome {
                self.plans.forget(&plan.without_limit());
            }
        }
        Ok(outcomes)
    }

    /// Makes the adjustments in as few calls as possible, one after the other: all of a call, or none.
    async fn adjust_with(
        &self,
        adjustments: &[Adjustment],
        options: CallOptions,
    ) -> Result<Vec<Result<Adjusted, TakeError>>, Error> {
        let mut adjusted = Vec::with_capacity(adjustments.len());
        for chunk in adjustments.chunks(MAX_ADJUSTMENTS) {
            let is_partial = !adjusted.is_empty();
            let answered = self.call_routine(RoutineCall::Adjust(chunk.into()), options).await;
            let answered = answered.and_then(|(reply, _)| call::adjusted(reply.adjusted()?, chunk));
            adjusted.extend(answered.map_err(|error| error.unknown_if_partial(is_partial))?);
        }
        Ok(adjusted)
    }

    async fn throttle(&self, key: &Key, rule: &Rule, throttle: Throttle) -> Result<bool, Error> {
        let lowered =
            self.run_statement((key.clone(), rule.clone(), throttle.of(key, rule)?), DB::throttle, true).await?;
        throttled(lowered, key, rule)
    }

    fn maintenance(&self) -> Option<&dyn Maintenance> {
        Some(self)
    }
}

impl<DB: Dialect> Maintenance for SqlStore<DB> {
    fn level<'a>(&'a self, key: &'a Key, rule: &'a Rule) -> MaintenanceFuture<'a, BucketLevel, AdminError> {
        Box::pin(level_under(self, key, rule))
    }

    fn window_level<'a>(&'a self, key: &'a Key, window: &'a Window) -> MaintenanceFuture<'a, WindowLevel, AdminError> {
        Box::pin(async move { Ok(window_level_under(self, key, window).await?) })
    }

    /// Limits that are older than a second are read again by a task. Without a runtime, or if that fails, they stay as they are.
    fn known_plan(&self, plan: &Key) -> Option<Limits> {
        let (limits, is_old) = self.plans.find(plan)?;
        if let (true, Ok(runtime)) = (is_old, Handle::try_current()) {
            let (store, plan) = (self.clone(), plan.clone());
            runtime.spawn(async move { drop(store.read_plan(&plan).await) });
        }
        Some(limits)
    }

    fn read_plan<'a>(&'a self, plan: &'a Key) -> MaintenanceFuture<'a, Limits> {
        Box::pin(async {
            let rows = self.run_operation(plan.clone(), DB::plan_limits).await?;
            let limits = plans::limits(plan, rows)?;
            self.plans.keep(plan, limits.clone());
            Ok(limits)
        })
    }

    fn sweep(&self, limit: u32) -> MaintenanceFuture<'_, SweepResult> {
        Box::pin(self.run_operation(limit.max(1), DB::sweep))
    }

    fn record_usage(&self, limit: u32) -> MaintenanceFuture<'_, RecordedUsage> {
        Box::pin(self.run_operation(limit.max(1), DB::record_usage))
    }

    fn count_denials<'a>(&'a self, denials: &'a [(Key, u64)]) -> MaintenanceFuture<'a, ()> {
        Box::pin(async {
            for denials in DenialCount::bounded(denials).chunks(MAX_DENIALS) {
                self.run_operation(denials.to_vec(), DB::count_denials).await?;
            }
            Ok(())
        })
    }
}

impl<DB: Dialect> SharedWindows for SqlStore<DB> {
    async fn count(&self, key: &Key, window: &Window, cost: u64) -> Result<WindowUsage, Error> {
        let cost = i64::try_from(cost).unwrap_or(i64::MAX).min(crate::model::window::MAX_REQUESTS);
        let request = Arc::new(SqlRequest::counting(key, window, cost));
        let (reply, _) =
            self.call_routine(RoutineCall::Window(request, Counting::Count), CallOptions::default()).await?;
        reply.counted()
    }
}

/// Provisions a full bucket.
///
/// A repeated call with the same quota changes nothing. With another quota, the call changes the bucket's limits and
/// keeps its tokens, up to the new capacity.
///
/// The SQL routines `tollgate.create_bucket` (PostgreSQL) and `token_create_bucket` (MySQL) do the same.
///
/// # Errors
///
/// Returns an error if the id is not a valid [`Key`](crate::Key), or if the database cannot be reached or has not been
/// migrated.
pub async fn create_bucket<DB, K>(pool: &Pool<DB>, bucket_id: K, quota: Quota) -> Result<(), AdminError>
where
    DB: Dialect,
    K: TryInto<Key>,
    Error: From<K::Error>,
{
    SqlStore::from(pool.clone()).create_bucket(&bucket_id.try_into().map_err(Error::from)?, quota).await
}

/// Ends a conversation that gets no answer, so that a server that is gone does not keep the connection.
///
/// While the server works on the call, the connection stays in use: each new connection in its place would wait as well,
/// and the server would have ever more sessions.
struct Watch<DB: Dialect> {
    pool: Pool<DB>,
    reconnect: Reconnect,
    /// One deadline after the caller's, or a second.
    begins: Instant,
    /// The least age of the call at that time.
    age: Duration,
}

impl<DB: Dialect> Watch<DB> {
    async fn await_answer<T>(
        self,
        conversation: impl Future<Output = Result<T, sqlx::Error>>,
    ) -> Result<T, sqlx::Error> {
        let mut conversation = pin!(conversation);
        let mut until = self.begins;
        loop {
            match timeout_at(until, &mut conversation).await {
                Ok(answer) => return answer,
                Err(elapsed) if !self.reconnect.is_call_running(&self.pool, self.age).await => {
                    return Err(sqlx::Error::Io(elapsed.into()));
                }
                Err(_) => until = Instant::now() + WATCH_INTERVAL,
            }
        }
    }
}

/// Returns the connection to the pool if it is fit for the next caller, and classifies an error.
async fn return_connection<DB: Dialect, T>(
    mut connection: PoolConnection<DB>,
    result: Result<T, sqlx::Error>,
) -> Result<T, Failure> {
    let error = match result {
        Ok(answer) => return Ok(answer),
        Err(error) => error,
    };
    let class = classify::<DB>(&error);
    let is_closed = error.as_database_error().is_some_and(DB::is_fatal);
    // A demoted server stays read-only, and another server may be behind its name by now.
    if is_closed
        || matches!(class, ErrorClass::ReadOnly | ErrorClass::Unknown)
        || DB::clean_up(&mut connection).await.is_err()
    {
        connection.close_on_drop();
    }
    let code = error.as_database_error().and_then(code_of);
    Err(Failure::new(class, error).with_code(code))
}

/// Calls a routine on a connection.
pub(super) async fn run_routine<DB: Dialect>(
    connection: &mut DB::Connection,
    call: &RoutineCall,
    context: &DB::CallContext,
) -> Result<RoutineReply, sqlx::Error> {
    match call {
        RoutineCall::Each(requests) => DB::take(connection, requests, context).await.map(RoutineReply::Answers),
        RoutineCall::All(requests) => DB::take_all(connection, requests, context).await.map(RoutineReply::Answers),
        RoutineCall::Adjust(adjustments) => {
            DB::adjust(connection, adjustments, context).await.map(RoutineReply::Adjusted)
        }
        RoutineCall::Window(request, counting) => {
            DB::take_window(connection, request, *counting, context).await.map(RoutineReply::WindowUsage)
        }
    }
}

async fn in_transaction<DB: Dialect>(
    connection: &mut DB::Connection,
    begin: SqlStr,
    call: &RoutineCall,
    context: &DB::CallContext,
) -> Result<RoutineReply, sqlx::Error> {
    let mut transaction = connection.begin_with(begin).await?;
    let reply = run_routine::<DB>(&mut transaction, call, &DB::in_callers_transaction(context)).await?;
    transaction.commit().await?;
    Ok(reply)
}

pub(super) fn classify<DB: Dialect>(error: &sqlx::Error) -> ErrorClass {
    match error {
        sqlx::Error::Database(error) => DB::classify(error.as_ref()),
        sqlx::Error::Encode(_) | sqlx::Error::InvalidArgument(_) => ErrorClass::Refused,
        // A row in the file cannot be decoded, so nothing was written.
        sqlx::Error::Decode(error) if error.is::<Error>() => ErrorClass::Refused,
        // The connection broke, or the answer cannot be read. The request may have reached the server.
        _ => ErrorClass::Unknown,
    }
}

/// The least age of a call that the server is asked about. Shorter calls are normal, and MySQL counts whole seconds.
const MIN_WATCHED_AGE: Duration = Duration::from_secs(1);

/// The pause between two questions whether the server still works on a call.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// How many keys' counts of denials one call adds.
const MAX_DENIALS: usize = 1000;

/// How many adjustments one call makes. A call locks each row until its end: on MySQL and MariaDB a quarter of a
/// millisecond for each adjustment.
const MAX_ADJUSTMENTS: usize = 256;
