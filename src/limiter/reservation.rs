use std::iter::repeat;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::{Instant, sleep_until};

use super::policy::by_deadline;
use super::stack::Stack;
use crate::model::{Adjusted, Adjustment, AdjustmentKind, Decision, Error, Receipt, Take, TakeError};
use crate::store::{AnyStore, Store};
use crate::telemetry::{Share, WAITERS};

/// Tokens that were taken for now or for later, or the answer that they were not.
///
/// It is a record, not a guard: dropped, its tokens stay taken, as they do when the process dies.
#[derive(Debug)]
#[must_use = "if it was granted, its tokens are taken: wait for its delay, or cancel it"]
pub struct Reservation<S: Store = AnyStore> {
    store: Arc<Stack<S>>,
    decision: Decision,
    receipts: Vec<Receipt>,
    /// Whether not the same number of tokens was asked for of each bucket.
    has_own_costs: bool,
    /// Whether the request had an id of its own.
    is_remembered: bool,
    since: Instant,
}

impl<S: Store> Reservation<S> {
    pub(super) fn new(store: Arc<Stack<S>>, take: &Take, decision: Decision) -> Self {
        let receipts = Receipt::of(take, &decision);
        // The others follow the first one's cost, unless the request said another.
        let has_own_costs = take.limits[1..].iter().any(|limit| limit.own_cost) || take.limits[0].cost != take.cost;
        Self { store, decision, receipts, has_own_costs, is_remembered: take.id.is_some(), since: Instant::now() }
    }

    /// When its tokens may be used, if not at once.
    fn turn(&self) -> Option<Instant> {
        let wait = Some(self.decision.wait()).filter(|wait| !wait.is_zero());
        wait.and_then(|wait| self.since.checked_add(wait))
    }

    /// Whether the tokens were taken.
    #[must_use]
    pub fn is_granted(&self) -> bool {
        self.decision.is_granted()
    }

    /// How long to wait, from now, before using the tokens; [`Duration::MAX`] if they were not taken.
    #[must_use]
    pub fn delay(&self) -> Duration {
        if self.is_granted() { self.decision.wait().saturating_sub(self.since.elapsed()) } else { Duration::MAX }
    }

    /// Sleeps until the tokens may be used, or returns at once if they were not taken.
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
    /// let reservation = limiter.reserve_all(&request).await?;
    /// reservation.wait().await;
    /// if reservation.is_granted() {
    ///     // serve the request
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn wait(&self) {
        if let Some(turn) = self.turn().filter(|_| self.is_granted()) {
            let _waiting = Share::one(WAITERS);
            sleep_until(turn).await;
        }
    }

    /// The whole answer.
    pub fn decision(&self) -> &Decision {
        &self.decision
    }

    pub(crate) fn into_decision(self) -> Decision {
        self.decision
    }

    /// What was taken, a receipt for each bucket: to cancel, refund or settle it elsewhere, by [`Store::adjust`].
    #[must_use]
    pub fn receipts(&self) -> &[Receipt] {
        &self.receipts
    }

    /// Gives the tokens back unless their time to act has passed, as far as no later request queues behind them, and says
    /// how many that are. At that very instant they are given back, too.
    ///
    /// # Errors
    ///
    /// If there is no answer, or none by the [`deadline`](crate::LimiterBuilder::deadline). It is not asked again then: they
    /// may have been given back. And if a bucket is gone; others of the request have their tokens back then.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the call goes on in a task of its own.
    pub async fn cancel(self) -> Result<u64, Error> {
        Ok(given_back(self.adjust(|receipt, ()| receipt.cancel(), repeat(Some(()))).await?))
    }

    /// Gives tokens back that were not used, and says how many. Of several buckets, each gets so many back.
    ///
    /// # Errors
    ///
    /// [`TakeError::CostsDiffer`] if a limit has a [cost of its own](crate::Limit::cost), whatever that is: what was taken stands
    /// then. And if there is no answer, as for [`cancel`](Self::cancel). A bucket that is gone was full: it gets nothing back.
    ///
    /// # Cancel safety
    ///
    /// As there.
    pub async fn refund(self, unused: u64) -> Result<u64, Error> {
        self.of_one_cost()?;
        self.refund_each(|_| unused).await
    }

    /// The same for each of its buckets, of which not the same number of tokens was left; nothing is done where that is none.
    /// Says how many the one got that got least.
    ///
    /// # Errors
    ///
    /// If there is no answer, as for [`refund`](Self::refund).
    ///
    /// # Cancel safety
    ///
    /// As there.
    pub async fn refund_each(self, unused: impl Fn(&Receipt) -> u64) -> Result<u64, Error> {
        let unused: Vec<u64> = self.receipts.iter().map(unused).collect();
        let unused = unused.into_iter().map(|unused| Some(unused).filter(|unused| *unused > 0));
        Ok(given_back(self.adjust(Receipt::refund, unused).await?))
    }

    /// Pays what the request cost in the end, more or less than was taken, and says how many tokens were given back;
    /// negative: so many more were taken. Of several buckets, what is true of the one that gave back least.
    ///
    /// Only a request with an [id](Take::id) can be settled, and only until that is forgotten: then it is
    /// [`Late`](Adjusted::Late), and what was taken stands.
    ///
    /// # Errors
    ///
    /// [`TakeError::WithoutId`] if the request had none; [`TakeError::CostsDiffer`] if a limit has a
    /// [cost of its own](crate::Limit::cost), whatever that is: the estimate stands then; and as for [`cancel`](Self::cancel).
    ///
    /// # Cancel safety
    ///
    /// As there.
    pub async fn settle(self, used: u64) -> Result<Adjusted, Error> {
        self.of_one_cost()?;
        self.settle_each(|_| Some(used)).await
    }

    /// The same for each of its buckets, of which not the same number of tokens was used. `None`: what was taken of it stands.
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
    /// let call = limiter.reserve_all(&estimate.id(uuid::Uuid::new_v4(), Duration::from_secs(3600))).await?;
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
    /// [`TakeError::WithoutId`] if the request had none; and as for [`cancel`](Self::cancel).
    ///
    /// # Cancel safety
    ///
    /// As there.
    pub async fn settle_each(self, used: impl Fn(&Receipt) -> Option<u64>) -> Result<Adjusted, Error> {
        if !self.is_remembered && !self.receipts.is_empty() {
            return Err(TakeError::WithoutId.into());
        }
        let used: Vec<Option<u64>> = self.receipts.iter().map(used).collect();
        self.adjust(Receipt::settle, used).await
    }

    /// Whether what is true of one of its buckets can be true of all.
    fn of_one_cost(&self) -> Result<(), TakeError> {
        if self.has_own_costs { Err(TakeError::CostsDiffer) } else { Ok(()) }
    }

    /// What became of all of it; of several, what is least.
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
pub(super) struct Turn<S: Store>(Option<Reservation<S>>);

impl<S: Store> Turn<S> {
    pub(super) fn new(reservation: Reservation<S>) -> Self {
        Self(Some(reservation))
    }

    fn reservation(&self) -> &Reservation<S> {
        self.0.as_ref().expect("it is taken when the turn has come")
    }

    pub(super) fn decision(&self) -> &Decision {
        &self.reservation().decision
    }

    /// Sleeps until the tokens may be used.
    pub(super) async fn sleep_until_scheduled(mut self) -> Reservation<S> {
        if let Some(turn) = self.reservation().turn() {
            sleep_until(turn).await;
        }
        self.0.take().expect("it is there until its turn has come")
    }
}

impl<S: Store> Drop for Turn<S> {
    /// Tokens that were there at once are used. A request with an id keeps its tokens: another caller may go on with that id.
    fn drop(&mut self) {
        let left = self.0.take().filter(|reservation| {
            !reservation.is_remembered && !reservation.receipts.is_empty() && !reservation.decision.wait().is_zero()
        });
        // No runtime any more: the process is ending, and the tokens are used.
        if let (Some(reservation), Ok(runtime)) = (left, Handle::try_current()) {
            let tasks = reservation.store.tasks.clone();
            let mut cancel = Box::pin(reservation.cancel());
            // Polled once, it is in the queue before what the caller asks next.
            if cancel.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
                tasks.spawn_on(cancel, &runtime);
            }
        }
    }
}

/// What became of each of them.
pub(super) async fn adjust_each<S: Store>(
    store: &Stack<S>,
    adjustments: Vec<Adjustment>,
) -> Result<Vec<Result<Adjusted, TakeError>>, Error> {
    // A store that does not answer need not be asked about nothing.
    if adjustments.is_empty() {
        return Ok(Vec::new());
    }
    let kinds: Vec<AdjustmentKind> = adjustments.iter().map(Adjustment::kind).collect();
    // The batcher makes the call even if the caller is dropped, at the deadline or before.
    let adjusted = by_deadline(store.deadline, pin!(store.adjust(&adjustments))).await?;
    let adjusted = adjusted.into_iter().zip(kinds).map(|(adjusted, kind)| match (adjusted, kind) {
        // It was full when it was swept: there is nothing to give back to.
        (Err(TakeError::UnknownBucket(_)), AdjustmentKind::Refund(_)) => Ok(Adjusted::Done(0)),
        (adjusted, _) => adjusted,
    });
    Ok(adjusted.collect())
}

/// Of what became of several, what is least.
fn least(adjusted: Vec<Result<Adjusted, TakeError>>) -> Result<Adjusted, TakeError> {
    let adjusted = adjusted.into_iter().collect::<Result<Vec<Adjusted>, TakeError>>()?;
    // Nothing was done to those of which it is said that it is late, or that it is done already: rather that than nothing
    // to be done.
    let least = |adjusted: &Adjusted| match adjusted {
        Adjusted::Done(tokens) => (*tokens, true),
        Adjusted::Late | Adjusted::Repeated => (0, false),
    };
    Ok(adjusted.into_iter().min_by_key(least).unwrap_or(Adjusted::Done(0)))
}
