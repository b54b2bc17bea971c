//! Reservations: granted tokens that a caller can wait for, cancel, refund or settle.

use std::iter::repeat;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::{Instant, sleep_until};

use super::policy::before_deadline;
use super::stack::Stack;
use crate::model::{Adjusted, Adjustment, AdjustmentKind, Decision, Error, Receipt, Take, TakeError};
use crate::store::{AnyStore, Store};
use crate::telemetry::{GaugeShare, WAITERS};

/// Tokens that were taken for now or for later, or a denial.
///
/// A reservation is a record, not a guard: if it is dropped or the process dies, its tokens stay taken.
#[derive(Debug)]
#[must_use = "check is_granted: a denial is not an error, and granted tokens stay taken until they are cancelled"]
pub struct Reservation<S: Store = AnyStore> {
    store: Arc<Stack<S>>,
    decision: Decision,
    receipts: Vec<Receipt>,
    /// Whether the costs of the buckets differ.
    has_own_costs: bool,
    /// Whether the request had an id of its own.
    is_remembered: bool,
    since: Instant,
}

impl<S: Store> Reservation<S> {
    pub(super) fn new(store: Arc<Stack<S>>, take: &Take, decision: Decision) -> Self {
        let receipts = Receipt::of(take, &decision);
        // The other limits follow the first limit's cost, unless the request states another.
        let has_own_costs = take.limits[1..].iter().any(|limit| limit.own_cost) || take.limits[0].cost != take.cost;
        Self { store, decision, receipts, has_own_costs, is_remembered: take.id.is_some(), since: Instant::now() }
    }

    /// The scheduled time, unless the tokens can be used at once.
    fn scheduled_at(&self) -> Option<Instant> {
        let wait = Some(self.decision.wait()).filter(|wait| !wait.is_zero());
        wait.and_then(|wait| self.since.checked_add(wait))
    }

    /// Returns whether the tokens were taken.
    #[must_use]
    pub fn is_granted(&self) -> bool {
        self.decision.is_granted()
    }

    /// Returns the time from now until the tokens can be used. `None` if they were not taken.
    #[must_use]
    pub fn delay(&self) -> Option<Duration> {
        self.is_granted().then(|| self.decision.wait().saturating_sub(self.since.elapsed()))
    }

    /// Sleeps until the tokens can be used. Returns at once if they were not taken.
    ///
    /// # Cancel safety
    ///
    /// If dropped, the tokens stay taken: [`cancel`](Self::cancel) gives them back.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Limiter, MemoryStore};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tollgate::Error> {
    /// let limiter = Limiter::new(MemoryStore::new(), "100/s burst 1")?;
    /// let request = limiter.request("user:42")?.max_wait(Duration::from_secs(1));
    /// let reservation = limiter.reserve_request(&request).await?;
    /// reservation.wait().await;
    /// if reservation.is_granted() {
    ///     // serve the request
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn wait(&self) {
        if let Some(scheduled_at) = self.scheduled_at().filter(|_| self.is_granted()) {
            let _waiting = GaugeShare::one(WAITERS);
            sleep_until(scheduled_at).await;
        }
    }

    /// Returns the decision.
    pub fn decision(&self) -> &Decision {
        &self.decision
    }

    pub(crate) fn into_decision(self) -> Decision {
        self.decision
    }

    /// Returns the receipts of the taken tokens, one for each bucket, to cancel, refund or settle them elsewhere by
    /// [`Store::adjust`].
    #[must_use]
    pub fn receipts(&self) -> &[Receipt] {
        &self.receipts
    }

    /// Until the scheduled time, inclusive, gives the tokens back, except those that later requests queue behind. Returns how
    /// many.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no answer, or none by the [`deadline`](crate::LimiterBuilder::deadline). The call is not
    /// retried: the tokens may have been given back. Also if a bucket does not exist any more; the request's other buckets have
    /// their tokens back then.
    ///
    /// # Cancel safety
    ///
    /// If dropped, the call goes on in a task.
    pub async fn cancel(self) -> Result<u64, Error> {
        Ok(given_back(self.adjust(|receipt, ()| receipt.cancel(), repeat(Some(()))).await?))
    }

    /// Gives unused tokens back, and returns how many. With several buckets, each gets this many back.
    ///
    /// # Errors
    ///
    /// Returns [`TakeError::CostsDiffer`] if a limit has a [cost of its own](crate::Limit::cost), even the same cost; nothing
    /// is given back then. Also if there is no answer, as for [`cancel`](Self::cancel). A bucket that was swept was full, and
    /// gets nothing back.
    ///
    /// # Cancel safety
    ///
    /// As for [`cancel`](Self::cancel).
    pub async fn refund(self, unused: u64) -> Result<u64, Error> {
        self.require_one_cost()?;
        self.refund_each(|_| unused).await
    }

    /// Gives a number of unused tokens back to each bucket, and nothing where the number is 0. Returns the smallest number that a
    /// bucket got back.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no answer, as for [`refund`](Self::refund).
    ///
    /// # Cancel safety
    ///
    /// As for [`cancel`](Self::cancel).
    pub async fn refund_each(self, unused: impl Fn(&Receipt) -> u64) -> Result<u64, Error> {
        let unused: Vec<u64> = self.receipts.iter().map(unused).collect();
        let unused = unused.into_iter().map(|unused| Some(unused).filter(|unused| *unused > 0));
        Ok(given_back(self.adjust(Receipt::refund, unused).await?))
    }

    /// Charges the final cost of the request, more or less than was taken. Returns how many tokens were given back; a negative
    /// number is how many more were taken. With several buckets, returns the result of the bucket that gave back least.
    ///
    /// Only a request with an [id](Take::id) can be settled, and only until the store forgets the id. After that, the result is
    /// [`Late`](Adjusted::Late) and nothing changes.
    ///
    /// # Errors
    ///
    /// Returns [`TakeError::MissingId`] if the request had no id. [`TakeError::CostsDiffer`] if a limit has a
    /// [cost of its own](crate::Limit::cost), even the same cost; the estimate stands then. Also as for
    /// [`cancel`](Self::cancel).
    ///
    /// # Cancel safety
    ///
    /// As for [`cancel`](Self::cancel).
    pub async fn settle(self, used: u64) -> Result<Adjusted, Error> {
        self.require_one_cost()?;
        self.settle_each(|_| Some(used)).await
    }

    /// Charges the final cost of each bucket. `None`: the tokens that were taken from the bucket stand.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Limit, Limiter, MemoryStore, Rule};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tollgate::Error> {
    /// let limiter = Limiter::new(MemoryStore::new(), "50/min")?; // requests
    /// let tokens = Limit::new("account:tokens".try_into()?, Rule::try_from("40000/min")?);
    /// let estimate = limiter.request("account:requests")?.and_limit(tokens.clone().cost(1200));
    /// // An id for each call: one that is there already takes nothing.
    /// let call = limiter.reserve_request(&estimate.id(uuid::Uuid::new_v4(), Duration::from_secs(3600))).await?;
    /// if call.is_granted() {
    ///     let used = 1087; // as the answer says
    ///     call.settle_each(|receipt| (receipt.key() == tokens.key()).then_some(used)).await?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`TakeError::MissingId`] if the request had no id. Also as for [`cancel`](Self::cancel).
    ///
    /// # Cancel safety
    ///
    /// As for [`cancel`](Self::cancel).
    pub async fn settle_each(self, used: impl Fn(&Receipt) -> Option<u64>) -> Result<Adjusted, Error> {
        if !self.is_remembered && !self.receipts.is_empty() {
            return Err(TakeError::MissingId.into());
        }
        let used: Vec<Option<u64>> = self.receipts.iter().map(used).collect();
        self.adjust(Receipt::settle, used).await
    }

    /// Checks that one number of tokens can apply to all buckets.
    fn require_one_cost(&self) -> Result<(), TakeError> {
        if self.has_own_costs { Err(TakeError::CostsDiffer) } else { Ok(()) }
    }

    /// Makes an adjustment for each bucket, and returns the least result.
    async fn adjust<T>(
        self,
        adjustment: impl Fn(Receipt, T) -> Adjustment,
        each: impl IntoIterator<Item = Option<T>>,
    ) -> Result<Adjusted, Error> {
        let each = self.receipts.into_iter().zip(each);
        let adjustments = each.filter_map(|(receipt, tokens)| Some(adjustment(receipt, tokens?)));
        Ok(least(adjust_each(&self.store, adjustments.collect()).await?)?)
    }
}

fn given_back(adjusted: Adjusted) -> u64 {
    match adjusted {
        Adjusted::Done(tokens) => tokens.unsigned_abs(),
        Adjusted::Late | Adjusted::Repeated => 0,
    }
}

/// A reservation whose caller waits for its scheduled time. If it is dropped before, its tokens are given back.
#[derive(Debug)]
pub(super) struct ScheduledReservation<S: Store>(Option<Reservation<S>>);

impl<S: Store> ScheduledReservation<S> {
    pub(super) fn new(reservation: Reservation<S>) -> Self {
        Self(Some(reservation))
    }

    fn reservation(&self) -> &Reservation<S> {
        self.0.as_ref().expect("it is taken at its scheduled time")
    }

    /// Sleeps until the tokens can be used.
    pub(super) async fn sleep_until_scheduled(mut self) -> Reservation<S> {
        if let Some(scheduled_at) = self.reservation().scheduled_at() {
            sleep_until(scheduled_at).await;
        }
        self.0.take().expect("it is there until its scheduled time")
    }
}

impl<S: Store> Drop for ScheduledReservation<S> {
    /// Cancels a reservation whose caller stopped waiting. Tokens that were available at once count as used. A request with an
    /// id keeps its tokens, because a repeated request may use them.
    fn drop(&mut self) {
        let unused = self.0.take().filter(|reservation| {
            !reservation.is_remembered && !reservation.receipts.is_empty() && !reservation.decision.wait().is_zero()
        });
        // Without a runtime the process is ending, and the tokens count as used.
        if let (Some(reservation), Ok(runtime)) = (unused, Handle::try_current()) {
            let tasks = reservation.store.tasks.clone();
            let mut cancel = Box::pin(reservation.cancel());
            // One poll queues the cancellation before the caller's next request.
            if cancel.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
                tasks.spawn_on(cancel, &runtime);
            }
        }
    }
}

/// Makes adjustments by the deadline, and returns each result.
pub(super) async fn adjust_each<S: Store>(
    store: &Stack<S>,
    adjustments: Vec<Adjustment>,
) -> Result<Vec<Result<Adjusted, TakeError>>, Error> {
    // Without adjustments, no call can fail.
    if adjustments.is_empty() {
        return Ok(Vec::new());
    }
    let kinds: Vec<AdjustmentKind> = adjustments.iter().map(Adjustment::kind).collect();
    // The batcher makes the call even if the caller is dropped, at the deadline or before.
    let adjusted = before_deadline(store.deadline, pin!(store.adjust(&adjustments))).await?;
    let adjusted = adjusted.into_iter().zip(kinds).map(|(adjusted, kind)| match (adjusted, kind) {
        // The bucket was full when it was swept, so it gets nothing back.
        (Err(TakeError::UnknownBucket(_)), AdjustmentKind::Refund(_)) => Ok(Adjusted::Done(0)),
        (adjusted, _) => adjusted,
    });
    Ok(adjusted.collect())
}

/// The least of the results.
fn least(adjusted: Vec<Result<Adjusted, TakeError>>) -> Result<Adjusted, TakeError> {
    let adjusted = adjusted.into_iter().collect::<Result<Vec<Adjusted>, TakeError>>()?;
    // Late and repeated adjustments changed nothing. They come before `Done(0)`, because they tell more.
    let least = |adjusted: &Adjusted| match adjusted {
        Adjusted::Done(tokens) => (*tokens, true),
        Adjusted::Late | Adjusted::Repeated => (0, false),
    };
    Ok(adjusted.into_iter().min_by_key(least).unwrap_or(Adjusted::Done(0)))
}
