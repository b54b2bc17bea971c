use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use super::lane::{MOST_ALONE, SLOW};
use super::leading::Leading;
use super::queue::{MOST, MOST_HOLDS};
use crate::{Adjusted, Adjustment, Error, Store, TakeError};

/// What is to be given back or paid for: one call at a time, beside those that took too long to wait for. What comes
/// meanwhile goes in the next one, whether its caller still waits for it or not.
#[derive(Debug)]
pub(super) struct Adjusting<S: Store> {
    store: Arc<S>,
    tasks: TaskTracker,
    queue: Mutex<Queue>,
    /// How many calls may be under way, or undone and made again key by key, that the next one does not wait for.
    beside: Arc<Semaphore>,
    /// How many calls for one key may be under way after one for many was undone.
    alone: Semaphore,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: Vec<Waiting>,
    /// Whether somebody makes calls for those that wait.
    served: bool,
    /// The calls, if the task of a caller makes them.
    led: Option<Leading>,
}

#[derive(Debug)]
struct Waiting {
    adjustment: Adjustment,
    answer: oneshot::Sender<Answer>,
}

type Answer = Result<Result<Adjusted, TakeError>, Error>;

impl<S: Store> Adjusting<S> {
    pub(super) fn new(store: Arc<S>, tasks: TaskTracker) -> Self {
        let (beside, alone) = (Arc::new(Semaphore::new(MOST_HOLDS)), Semaphore::new(MOST_ALONE));
        Self { store, tasks, queue: Mutex::default(), beside, alone }
    }

    /// Makes adjustments: at once if no call is under way, and else along with others.
    pub(super) async fn adjust(
        self: &Arc<Self>,
        adjustments: &[Adjustment],
    ) -> Result<Vec<Result<Adjusted, TakeError>>, Error> {
        let waiting = adjustments.iter().cloned().map(|adjustment| {
            let (answer, answered) = oneshot::channel();
            (Waiting { adjustment, answer }, answered)
        });
        let (waiting, answered): (Vec<_>, Vec<_>) = waiting.unzip();
        let mut call = self.stand(waiting)?;
        let (mut adjusted, mut failed) = (Vec::with_capacity(adjustments.len()), None);
        for answered in answered {
            let answer = match call.take() {
                // The others' answers come with the first one, or of calls that somebody else makes.
                Some(call) => call.make(answered).await,
                None => answered.await,
            };
            // The task that made the call has ended before it had the answer.
            match answer.unwrap_or_else(|stopped| Err(Error::OutcomeUnknown(Arc::new(stopped)))) {
                Ok(one) => adjusted.push(one),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        match failed {
            None => Ok(adjusted),
            Some(error) => Err(error.after(!adjusted.is_empty())),
        }
    }

    /// Puts adjustments in line; the caller makes the calls if nobody does.
    fn stand(self: &Arc<Self>, waiting: Vec<Waiting>) -> Result<Option<Leading>, Error> {
        let mut queue = self.queue.lock();
        if queue.waiting.len() >= MOST {
            return Err(Error::Overloaded(queue.waiting.len()));
        }
        queue.waiting.extend(waiting);
        if queue.served {
            let led = queue.led.take();
            drop(queue);
            // Whoever waits depends on it from then on, and not on a caller that may not be polled any more.
            if let Some(call) = led {
                call.hand_over();
            }
            return Ok(None);
        }
        queue.served = true;
        let call = Leading::new(self.tasks.track_future(Serving(Some(Arc::clone(self))).go_on()));
        queue.led = Some(call.clone());
        Ok(Some(call))
    }

    /// Makes one call, and goes on without the answer if that takes too long.
    async fn call(self: &Arc<Self>, waiting: Vec<Waiting>) {
        let (adjustments, answers): (Vec<Adjustment>, Vec<_>) =
            waiting.into_iter().map(|Waiting { adjustment, answer }| (adjustment.fail_if_locked(), answer)).unzip();
        let adjustments = Arc::new(adjustments);
        let (store, asked) = (Arc::clone(&self.store), Arc::clone(&adjustments));
        let mut call = Box::pin(async move { store.adjust(&asked).await });
        loop {
            if let Ok(result) = timeout(SLOW, &mut call).await {
                return self.end(result, &adjustments, answers, None).await;
            }
            if let Ok(beside) = Arc::clone(&self.beside).try_acquire_owned() {
                let adjusting = Arc::clone(self);
                let rest = async move { adjusting.end(call.await, &adjustments, answers, Some(beside)).await };
                self.tasks.spawn(rest);
                return;
            }
        }
    }

    /// Hands out the answers to a call. If it was undone because some of its keys could not be had, each key is asked for by
    /// itself, so that the others need not share that.
    async fn end(
        self: &Arc<Self>,
        result: Result<Vec<Result<Adjusted, TakeError>>, Error>,
        adjustments: &[Adjustment],
        answers: Vec<oneshot::Sender<Answer>>,
        beside: Option<OwnedSemaphorePermit>,
    ) {
        let is_for_one = adjustments.array_windows().all(|[one, other]| one.receipt.key == other.receipt.key);
        // One key alone the store has tried for as long as it may.
        if is_for_one || !matches!(result, Err(Error::Contended { .. })) {
            return hand_out(result, answers);
        }
        let beside = match beside {
            Some(beside) => Some(beside),
            None => Arc::clone(&self.beside).acquire_owned().await.ok(),
        };
        let beside = Arc::new(beside);
        let mut each: Vec<_> = adjustments.iter().cloned().zip(answers).collect();
        // A stable sort: those of one key stay in their order.
        each.sort_by(|(one, _), (other, _)| one.receipt.key.cmp(&other.receipt.key));
        while let Some((last, _)) = each.last() {
            let first = each.partition_point(|(other, _)| other.receipt.key < last.receipt.key);
            let (adjustments, answers): (Vec<_>, Vec<_>) = each.drain(first..).unzip();
            let (adjusting, beside) = (Arc::clone(self), Arc::clone(&beside));
            self.tasks.spawn(async move {
                let _turn = adjusting.alone.acquire().await;
                hand_out(adjusting.store.adjust(&adjustments).await, answers);
                drop(beside);
            });
        }
    }
}

impl Queue {
    /// What goes in the next call; if that is nothing, nobody makes calls from then on.
    fn next(&mut self) -> Vec<Waiting> {
        if self.waiting.is_empty() {
            (self.served, self.led) = (false, None);
        }
        let most = self.waiting.len().min(MOST_AT_ONCE);
        self.waiting.drain(..most).collect()
    }
}

/// Whoever makes the calls. If it ends before its time, by a store that panics or a runtime that ends, those that wait are told,
/// and the next to come begins anew.
struct Serving<S: Store>(Option<Arc<Adjusting<S>>>);

impl<S: Store> Serving<S> {
    /// Makes calls until nothing waits.
    async fn go_on(mut self) {
        let Some(adjusting) = &self.0 else { return };
        loop {
            let waiting = adjusting.queue.lock().next();
            if waiting.is_empty() {
                break;
            }
            adjusting.call(waiting).await;
        }
        self.0 = None;
    }
}

impl<S: Store> Drop for Serving<S> {
    fn drop(&mut self) {
        if let Some(adjusting) = &self.0 {
            let Queue { waiting, .. } = std::mem::take(&mut *adjusting.queue.lock());
            for Waiting { answer, .. } in waiting {
                let ended = std::io::Error::other("the task that made the calls has ended");
                // Who has given up does not want it any more.
                drop(answer.send(Err(Error::Unavailable(Arc::new(ended)))));
            }
        }
    }
}

fn hand_out(result: Result<Vec<Result<Adjusted, TakeError>>, Error>, answers: Vec<oneshot::Sender<Answer>>) {
    // Who has given up does not want it any more.
    match result {
        Ok(adjusted) => {
            for (answer, adjusted) in answers.into_iter().zip(adjusted) {
                drop(answer.send(Ok(adjusted)));
            }
        }
        Err(error) => {
            for answer in answers {
                drop(answer.send(Err(error.clone())));
            }
        }
    }
}

/// How many adjustments a call carries: as many as a database makes in one transaction.
const MOST_AT_ONCE: usize = 256;
