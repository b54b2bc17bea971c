//! Decisions in a transaction of the caller's.

use std::sync::Arc;
use std::time::Duration;

use sqlx::Connection;

use super::call::{self, Counting, RoutineCall, RoutineReply, SqlRequest};
use super::dialect::{Dialect, Operations};
use super::plans;
use super::retry::Failure;
use super::store::{classify, run_routine};
use crate::model::{Adjusted, Adjustment, Checked, Decision, Error, Outcome, Take, TakeError, TakeInParts};

/// Decides a request on the caller's connection, in the transaction that is open on it.
///
/// A denial takes nothing and writes nothing. A grant belongs to the transaction: the tokens are taken when the
/// transaction commits, and are never taken when it rolls back.
///
/// A grant locks the bucket's row until the transaction ends. On MySQL and MariaDB the request itself locks the row,
/// and on SQLite a grant locks the whole database. Other requests for the bucket wait meanwhile. So take last, and
/// commit soon. Take from several buckets in one request, because two transactions that take from them one by one can
/// deadlock.
///
/// Without an open transaction, the request is decided as a [`Store`](crate::Store) decides it, on this connection. In
/// a session of MySQL or MariaDB with autocommit off, the request begins a transaction, which the caller must end.
///
/// ```no_run
/// use tollgate::{store::take_within, Key, Take};
///
/// # async fn example(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
/// let mut transaction = pool.begin().await?;
/// let take = Take::from(Key::try_from("invoices")?);
/// if take_within(&mut *transaction, &take).await??.is_granted() {
///     sqlx::query("insert into invoices default values").execute(&mut *transaction).await?;
///     transaction.commit().await?;
/// }
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// Returns an error if there is no answer. The request is not retried, because the transaction is the caller's: after
/// [`Contended`](Error::Contended), roll it back and begin a new one.
///
/// # Cancel safety
///
/// If you drop the future, drop the transaction as well: the connection is in the middle of a conversation.
pub async fn take_within<C>(connection: &mut C, take: &Take) -> Result<Outcome, Error>
where
    C: Connection<Database: Dialect<Connection = C>>,
{
    let expanded = under_plans(connection, take).await?;
    let take = match Checked::try_from(expanded.as_ref().unwrap_or(take)) {
        Ok(take) => take,
        Err(error) => return Ok(Err(error)),
    };
    let Some(mut parts) = TakeInParts::of(take) else { return decide(connection, take).await };
    while let Some(part) = parts.next_part() {
        // A failure can end the caller's transaction, and with it the tokens of the other limits.
        let outcome = decide(connection, part.take.as_ref()).await?;
        parts.record(&part, Ok(outcome));
    }
    parts.into_answer()
}

/// The request for each limit of its plans. `None`: each has one.
async fn under_plans<C>(connection: &mut C, take: &Take) -> Result<Option<Take>, Error>
where
    C: Connection<Database: Dialect<Connection = C>>,
{
    let context = <C::Database as Operations>::CallContext::default();
    let mut known = Vec::new();
    for plan in take.plans() {
        let rows = C::Database::plan_limits(connection, plan, &context).await.map_err(failed::<C::Database>)?;
        known.push((plan, plans::limits(plan, rows)?));
    }
    Ok(take.expanded(|plan| known.iter().find(|(other, _)| *other == plan).map(|(_, limits)| limits.clone())))
}

async fn decide<C>(connection: &mut C, take: Checked<&Take>) -> Result<Outcome, Error>
where
    C: Connection<Database: Dialect<Connection = C>>,
{
    if take.is_unlimited() {
        return Ok(Ok(Decision::without_limit()));
    }
    if let Some((limited, places)) = take.limited() {
        let outcome = Box::pin(decide(connection, limited.as_ref())).await?;
        return Ok(outcome.map(|decision| decision.at_places(&places)));
    }
    let request = SqlRequest::from(take);
    if take.window().is_some() {
        let request = Arc::new(request);
        let call = RoutineCall::Window(Arc::clone(&request), Counting::Decide);
        return call::window_outcome(call_routine::<C::Database>(connection, call).await?, &request, 1);
    }
    let requests: Arc<[SqlRequest]> = Arc::new([request]);
    let mut outcomes = if take.limits.len() > 1 {
        let reply = call_routine::<C::Database>(connection, RoutineCall::All(Arc::clone(&requests))).await?;
        call::all_outcomes(reply.answers()?, &requests, 1)?
    } else {
        let reply = call_routine::<C::Database>(connection, RoutineCall::Each(Arc::clone(&requests))).await?;
        call::each_outcomes(reply.answers()?, &requests, 1)?
    };
    outcomes.pop().ok_or_else(|| Error::other(sqlx::Error::RowNotFound))
}

/// Refunds or charges what a grant took, on the caller's connection, in the transaction that is open on it.
///
/// # Errors
///
/// As for [`take_within`].
pub async fn adjust_within<C>(connection: &mut C, adjustment: &Adjustment) -> Result<Result<Adjusted, TakeError>, Error>
where
    C: Connection<Database: Dialect<Connection = C>>,
{
    let adjustments = [adjustment.clone()];
    let reply = call_routine::<C::Database>(connection, RoutineCall::Adjust(Arc::new(adjustments.clone()))).await?;
    let mut adjusted = call::adjusted(reply.adjusted()?, &adjustments)?;
    adjusted.pop().ok_or_else(|| Error::other(sqlx::Error::RowNotFound))
}

async fn call_routine<DB: Dialect>(connection: &mut DB::Connection, call: RoutineCall) -> Result<RoutineReply, Error> {
    let context = DB::in_callers_transaction(&DB::CallContext::default());
    run_routine::<DB>(connection, &call, &context).await.map_err(failed::<DB>)
}

fn failed<DB: Dialect>(error: sqlx::Error) -> Error {
    Failure::new(classify::<DB>(&error), error).into_error(1, Duration::MAX)
}
