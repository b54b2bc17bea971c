//! The batcher: requests of many callers share calls to the store, which run in tasks.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::yield_now;
use tokio::time::{Instant, timeout};
use tokio_util::task::TaskTracker;

use crate::model::{
    Adjusted, Adjustment, Checked, Decision, Error, Key, Outcome, Receipt, Rule, Take, TakeError, Throttle,
};
use crate::store::{CallOptions, Capabilities, Maintenance, Store, sealed};
use crate::telemetry::{GaugeShare, QUEUE};

mod queue;
mod ticket;

use queue::{Batch, Flight, Queue, Queued};
use ticket::{Kind, MaxBatches, TakeAnswer, Ticket};

/// Batches the requests of many callers into few calls to the underlying store.
///
/// Requests that arrive while calls are in flight share the next call. No request waits for a timer: while few requests
/// wait or are in flight, each starts its own call. Requests for one key keep their order, and at most one call carries a
/// key. A locked bucket delays no other bucket. Design: `design/batching.md`.
///
/// Waits, cancels, refunds and settlements are batched in the same way. Requests under a sliding window that do not wait go
/// directly to the store. So do several takes in one [`take`](Store::take), which is one call already.
///
/// Calls run in tasks, so a `Batcher` needs a Tokio runtime with a timer. Use a batcher in one runtime only: when the runtime
/// ends, all waiting requests fail.
///
/// # Errors
///
/// Returns [`Error::Overloaded`] if 32,768 requests wait, or 16,384 for one key. Adjustments have room for twice as many.
///
/// # Cancel safety
///
/// A caller that is dropped before its call takes nothing. Afterwards the call continues for the other callers, and can take
/// the tokens. Tokens that the caller would have had to wait for are given back. Adjustments are always made.
#[derive(Debug)]
pub struct Batcher<S: Store> {
    state: Arc<BatcherState<S>>,
}

#[derive(Debug)]
struct BatcherState<S: Store> {
    store: Arc<S>,
    queue: Mutex<Queue<Ticket>>,
    /// The length of the queue, for the metrics.
    gauge: Mutex<GaugeShare>,
    tasks: TaskTracker,
    most: MaxBatches,
    /// Whether a rolled-back call is repeated key by key. False for a store that makes one call at a time, because a lock
    /// blocks the whole store.
    isolates_keys: bool,
}

impl<S: Store> Batcher<S> {
    /// Creates a batcher over a store.
    pub fn new(store: S) -> Self {
        Self::from(Arc::new(store))
    }

    /// Returns the underlying store.
    #[must_use]
    pub fn store(&self) -> &S {
        &self.state.store
    }

    /// Creates a batcher whose calls run in tasks of a tracker.
    pub(crate) fn tracked(store: Arc<S>, tasks: &TaskTracker) -> Self {
        let capabilities = store.capabilities();
        let (most, Capabilities { concurrent_calls, max_keys, .. }) = (MaxBatches::from(capabilities), capabilities);
        let concurrent_calls = concurrent_calls.clamp(1, 64);
        let (queue, gauge) = (Mutex::new(Queue::new(concurrent_calls, max_keys)), Mutex::new(GaugeShare::of(QUEUE)));
        let (tasks, isolates_keys) = (tasks.clone(), concurrent_calls > 1);
        Self { state: Arc::new(BatcherState { store, queue, gauge, tasks, most, isolates_keys }) }
    }
}

impl<S: Store> From<Arc<S>> for Batcher<S> {
    fn from(store: Arc<S>) -> Self {
        Self::tracked(store, &TaskTracker::new())
    }
}

impl<S: Store> sealed::Sealed for Batcher<S> {}

impl<S: Store> Store for Batcher<S> {
    /// Returns the store's capabilities, but never `in_process`, because requests queue.
    fn capabilities(&self) -> Capabilities {
        Capabilities { in_process: false, ..self.state.store.capabilities() }
    }

    async fn take_checked(&self, takes: Checked<&[Take]>, options: CallOptions) -> Result<Vec<Outcome>, Error> {
        match takes.one() {
            Some(take) => Ok(vec![self.take_one_checked(take, options).await?]),
            None => self.state.store.take_checked(takes, options).await,
        }
    }

    async fn take_one_checked(&self, take: Checked<&Take>, options: CallOptions) -> Result<Outcome, Error> {
        if take.is_unlimited() || (take.window().is_some() && take.max_wait.is_zero()) {
            return self.state.store.take_one_checked(take, options).await;
        }
        let overdue_at = overdue_at(&take);
        // Takes from several buckets share calls only if they do not wait. So a request that can wait is first decided without
        // its wait.
        if !take.max_wait.is_zero() && take.limits.len() > 1 && self.state.most.take_all > 1 && take.id.is_none() {
            let without_wait = take.cloned().max_wait(Duration::ZERO);
            let outcome = self.state.enqueue(without_wait.as_ref(), overdue_at).await?;
            if !outcome.as_ref().is_ok_and(|decision| !decision.is_granted()) {
                return Ok(outcome);
            }
        }
        self.state.enqueue(take, overdue_at).await
    }

    async fn adjust_with(
        &self,
        adjustments: &[Adjustment],
        options: CallOptions,
    ) -> Result<Vec<Result<Adjusted, TakeError>>, Error> {
        match adjustments {
            [] => self.state.store.adjust_with(adjustments, options).await,
            _ => self.state.adjust(adjustments).await,
        }
    }

    async fn throttle(&self, key: &Key, rule: &Rule, throttle: Throttle) -> Result<bool, Error> {
        self.state.store.throttle(key, rule, throttle).await
    }

    fn maintenance(&self) -> Option<&dyn Maintenance> {
        self.state.store.maintenance()
    }
}

impl<S: Store> BatcherState<S> {
    /// Waits for the outcome of a request. `overdue_at`: the end of the caller's `max_wait`.
    async fn enqueue(self: &Arc<Self>, take: Checked<&Take>, overdue_at: Option<Instant>) -> Result<Outcome, Error> {
        let (sender, receiver) = oneshot::channel();
        {
            // The ticket has its own request, because the call can outlive the caller.
            let ticket = Ticket::take(take.cloned(), overdue_at, self.most, sender);
            let mut queue = self.queue.lock();
            if let Some(len) = queue.full(take.key(), MAX_WAITING) {
                return Err(Error::Overloaded(len));
            }
            queue.push(ticket);
            self.start_calls(queue);
        }
        let mut pending = Pending { state: self, take: take.get(), receiver, is_answered: false };
        let answer = (&mut pending.receiver).await;
        pending.is_answered = true;
        answer.unwrap_or_else(|dropped| Err(Error::OutcomeUnknown(Arc::new(dropped))))
    }

    async fn adjust(self: &Arc<Self>, adjustments: &[Adjustment]) -> Result<Vec<Result<Adjusted, TakeError>>, Error> {
        let receivers: Vec<_> = {
            let mut queue = self.queue.lock();
            for adjustment in adjustments {
                // Adjustments have twice the room of takes, so that a flood of takes does not block refunds.
                if let Some(len) = queue.full(&adjustment.receipt.key, 2 * MAX_WAITING) {
                    return Err(Error::Overloaded(len));
                }
            }
            let push = |adjustment: &Adjustment| {
                let (sender, receiver) = oneshot::channel();
                queue.push(Ticket::adjust(adjustment.clone(), self.most, sender));
                receiver
            };
            let receivers = adjustments.iter().map(push).collect();
            self.start_calls(queue);
            receivers
        };
        let (mut adjusted, mut failed) = (Vec::with_capacity(adjustments.len()), None);
        for receiver in receivers {
            match receiver.await.unwrap_or_else(|dropped| Err(Error::OutcomeUnknown(Arc::new(dropped)))) {
                Ok(one) => adjusted.push(one),
                // One unknown outcome makes the outcome of the whole call unknown.
                Err(error) if error.is_outcome_unknown() => failed = Some(error),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        match failed {
            None => Ok(adjusted),
            Some(error) => Err(error.unknown_if_partial(!adjusted.is_empty())),
        }
    }

    /// Gives back reserved tokens of a dropped caller, ahead of the other requests for their keys.
    fn give_back(self: &Arc<Self>, refunds: impl IntoIterator<Item = Adjustment>) {
        let mut queue = self.queue.lock();
        // `push_front` reverses the order, so the latest reservation is cancelled first.
        for refund in refunds {
            queue.push_front(Ticket::adjust(refund, self.most, oneshot::channel().0));
        }
        self.start_calls(queue);
    }

    /// Starts calls in tasks until the queue has no next one.
    fn start_calls(self: &Arc<Self>, mut queue: MutexGuard<'_, Queue<Ticket>>) {
        // Outside a runtime, requests wait until another call starts or ends inside one.
        if let Ok(runtime) = Handle::try_current() {
            while let Some(Batch { requests, flight }) = queue.next() {
                let call = CallTask { state: Arc::clone(self), tickets: requests, flight: Some(flight) };
                // A runtime that is shutting down drops the task at once, and the drop locks the queue.
                MutexGuard::unlocked(&mut queue, || self.tasks.spawn_on(call.run(), &runtime));
            }
        }
        self.gauge.lock().set(queue.len());
    }
}

/// A caller that waits for its answer.
struct Pending<'a, S: Store> {
    state: &'a Arc<BatcherState<S>>,
    take: &'a Take,
    receiver: oneshot::Receiver<TakeAnswer>,
    is_answered: bool,
}

impl<S: Store> Drop for Pending<'_, S> {
    fn drop(&mut self) {
        if self.is_answered {
            return;
        }
        self.receiver.close();
        match self.receiver.try_recv() {
            Ok(Ok(Ok(decision))) => {
                let refunds: Vec<Adjustment> = refunds(self.take, &decision).collect();
                if !refunds.is_empty() {
                    self.state.give_back(refunds);
                }
            }
            Ok(_) => {}
            Err(_) => self.state.queue.lock().count_cancelled(),
        }
    }
}

/// The end of the caller's `max_wait`, if the caller waits. A wait beyond all instants has none.
fn overdue_at(take: &Take) -> Option<Instant> {
    if take.max_wait.is_zero() { None } else { Instant::now().checked_add(take.max_wait) }
}

/// Cancels the reservation of a dropped caller that would have had to wait. A request with an id keeps its tokens, because a
/// retry can continue with the id.
fn refunds(take: &Take, decision: &Decision) -> impl Iterator<Item = Adjustment> {
    let gives_back = decision.is_granted() && !decision.wait().is_zero() && take.id.is_none();
    let receipts = if gives_back { Receipt::of(take, decision) } else { Vec::new() };
    receipts.into_iter().map(Receipt::cancel)
}

/// A task that makes calls while requests wait. If the store panics or the runtime ends, the keys of the task are free for the
/// next call.
struct CallTask<S: Store> {
    state: Arc<BatcherState<S>>,
    /// Not sent yet.
    tickets: Vec<Ticket>,
    flight: Option<Flight<Key>>,
}

/// How a call ended.
enum CallEnd {
    Answered,
    /// One key is locked.
    Locked,
    /// Some of the keys made the call fail, so nothing was done for these requests.
    RolledBack(Vec<Ticket>),
}

impl<S: Store> CallTask<S> {
    async fn run(mut self) {
        while let Some(flight) = &self.flight {
            let (is_shared, keys) = (flight.is_shared(), flight.keys.len());
            let answered = self.tickets.len();
            let ended = match std::mem::take(&mut self.tickets) {
                tickets if tickets.is_empty() => CallEnd::Answered,
                mut tickets => {
                    let now = Instant::now();
                    for ticket in &mut tickets {
                        ticket.shorten_wait(now);
                    }
                    // Takes from several buckets can differ in all but their first bucket, so one key can be split, too.
                    let can_split = tickets.len() > 1 && (keys > 1 || tickets[0].kind() == Kind::TakeAll);
                    let options = CallOptions { fail_fast_on_lock: can_split && self.state.isolates_keys };
                    let called = match tickets[0].kind() {
                        Kind::Adjust => self.adjust(tickets, options).await,
                        _ => self.take(tickets, options).await,
                    };
                    match called {
                        Ok(()) => CallEnd::Answered,
                        Err((error, tickets)) => self.fail(&error, tickets, options),
                    }
                }
            };
            // Few callers get calls of their own again. An empty call always takes the requests that it was started for.
            let coalesces = is_shared
                && matches!(ended, CallEnd::Answered)
                && (answered == 0 || !self.state.queue.lock().has_few_requests());
            if coalesces {
                self.coalesce(answered).await;
            }
            self.finish_call(ended, coalesces);
        }
    }

    async fn take(&mut self, tickets: Vec<Ticket>, options: CallOptions) -> Result<(), (Error, Vec<Ticket>)> {
        let (mut takes, mut replies) = (Checked::with_capacity(tickets.len()), Vec::with_capacity(tickets.len()));
        for (take, reply) in tickets.into_iter().filter_map(Ticket::into_take) {
            takes.push(take);
            replies.push(reply);
        }
        let state = Arc::clone(&self.state);
        let outcomes = match self.wait_for(state.store.take_checked(takes.as_slice(), options)).await {
            Ok(outcomes) => outcomes,
            Err(error) => return Err((error, takes.into_iter().zip(replies).map(Ticket::from).collect())),
        };
        // Waits start at the last decision of the call, because it is nearest to the answer.
        let answered_at = outcomes.iter().flatten().filter_map(Decision::decided_at).max();
        let mut abandoned = Vec::new();
        for ((take, reply), outcome) in takes.iter().zip(replies).zip(outcomes) {
            let outcome = outcome.map(|decision| match answered_at {
                Some(answered_at) if !decision.wait().is_zero() => decision.waiting_from(answered_at),
                _ => decision,
            });
            if let Err(Ok(Ok(decision))) = reply.answer.send(Ok(outcome)) {
                abandoned.extend(refunds(take, &decision));
            }
        }
        if !abandoned.is_empty() {
            self.state.give_back(abandoned);
        }
        Ok(())
    }

    async fn adjust(&mut self, tickets: Vec<Ticket>, options: CallOptions) -> Result<(), (Error, Vec<Ticket>)> {
        let (adjustments, replies): (Vec<Adjustment>, Vec<_>) =
            tickets.into_iter().filter_map(Ticket::into_adjustment).unzip();
        let state = Arc::clone(&self.state);
        let adjusted = match self.wait_for(state.store.adjust_with(&adjustments, options)).await {
            Ok(adjusted) => adjusted,
            Err(error) => return Err((error, adjustments.into_iter().zip(replies).map(Ticket::from).collect())),
        };
        for (reply, adjusted) in replies.into_iter().zip(adjusted) {
            // A dropped caller needs no answer.
            drop(reply.answer.send(Ok(adjusted)));
        }
        Ok(())
    }

    /// Waits for the store. Once the call is [old](OLD_CALL_AGE), other calls start beside it.
    async fn wait_for<T>(&mut self, call: impl Future<Output = T>) -> T {
        let mut call = Box::pin(call);
        if let Ok(called) = timeout(OLD_CALL_AGE, &mut call).await {
            return called;
        }
        if let Some(flight) = &mut self.flight {
            let mut queue = self.state.queue.lock();
            queue.mark_old(flight);
            self.state.start_calls(queue);
        }
        call.await
    }

    /// Answers the requests of a failed call, unless the call is repeated key by key.
    fn fail(&self, error: &Error, tickets: Vec<Ticket>, options: CallOptions) -> CallEnd {
        let is_locked = self.state.isolates_keys && matches!(error, Error::Contended { .. });
        if options.fail_fast_on_lock && (is_locked || matches!(error, Error::Database(_))) {
            return CallEnd::RolledBack(tickets);
        }
        if error.is_failure() {
            self.fail_overdue(error);
        }
        for ticket in tickets {
            ticket.fail(error.clone());
        }
        if is_locked { CallEnd::Locked } else { CallEnd::Answered }
    }

    /// Fails requests that have waited for their `max_wait`, because each further call can take as long to fail.
    fn fail_overdue(&self, error: &Error) {
        let now = Instant::now();
        let keys = self.flight.as_ref().map_or(&[][..], |flight| &flight.keys);
        let mut queue = self.state.queue.lock();
        let overdue = queue.remove_overdue(keys, |ticket| ticket.is_overdue(now));
        self.state.gauge.lock().set(queue.len());
        drop(queue);
        // These requests were not part of the call, so their outcome is known.
        let known =
            if error.is_outcome_unknown() { Error::Unavailable(Arc::new(error.clone())) } else { error.clone() };
        for ticket in overdue {
            ticket.fail(known.clone());
        }
    }

    /// Yields until the callers that were just answered have asked again, because larger calls cost less per request.
    async fn coalesce(&self, answered: usize) {
        let mut waiting = self.state.queue.lock().len();
        for _ in 0..MAX_YIELDS {
            yield_now().await;
            let before = std::mem::replace(&mut waiting, self.state.queue.lock().len());
            if waiting >= answered && waiting == before {
                break;
            }
        }
    }

    /// Ends the call and prepares the next one. `has_coalesced`: whether requests have been coalesced for the next one.
    fn finish_call(&mut self, ended: CallEnd, has_coalesced: bool) {
        let Some(flight) = self.flight.take() else { return };
        let mut queue = self.state.queue.lock();
        let filled = match ended {
            CallEnd::Answered if has_coalesced => queue.fill_next(flight),
            CallEnd::Answered | CallEnd::Locked => {
                queue.finish(flight, matches!(ended, CallEnd::Locked));
                None
            }
            CallEnd::RolledBack(tickets) => {
                queue.roll_back(flight, tickets);
                None
            }
        };
        if let Some(Batch { requests, flight }) = filled.or_else(|| queue.next()) {
            (self.tickets, self.flight) = (requests, Some(flight));
        }
        self.state.start_calls(queue);
    }
}

impl<S: Store> Drop for CallTask<S> {
    fn drop(&mut self) {
        let Some(flight) = self.flight.take() else { return };
        let is_made = self.tickets.is_empty() && !flight.keys.is_empty();
        let mut queue = self.state.queue.lock();
        queue.finish(flight, false);
        if is_made {
            return self.state.start_calls(queue);
        }
        // The call was not sent, so the runtime runs no more tasks.
        let waiting = queue.drain();
        self.state.gauge.lock().set(queue.len());
        drop(queue);
        self.tickets.drain(..).chain(waiting).for_each(|ticket| ticket.fail(stopped()));
    }
}

fn stopped() -> Error {
    Error::Unavailable(Arc::new(std::io::Error::other("the runtime that makes the calls has ended")))
}

/// Maximum number of takes in the queue. Beyond it, the database is too slow for the load.
const MAX_WAITING: usize = 32_768;

/// An older call does not count as in flight.
const OLD_CALL_AGE: Duration = Duration::from_millis(25);

const MAX_YIELDS: usize = 8;
