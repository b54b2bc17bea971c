use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Semaphore, oneshot};
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use super::lanes::{Callers, SLOW, see_through};
use super::leading::Leading;
use super::queue::{MOST, MOST_BEHIND, MOST_HOLDS};
use crate::model::{Adjusted, Adjustment, Error, Key, TakeError};
use crate::store::Store;

/// What is to be given back or paid for: one call at a time, beside those that took too long to wait for. What comes
/// meanwhile goes in the next one, whether its caller still waits for it or not.
#[derive(Debug)]
pub(super) struct Adjusting<S: Store> {
    store: Arc<S>,
    tasks: TaskTracker,
    queue: Mutex<Queue>,
    /// With the others who make calls to the store.
    all: Weak<dyn Callers>,
    /// How many calls may be under way that the next one does not wait for.
    beside: Arc<Semaphore>,
    /// How many calls for one key may be under way after one for many was undone.
    alone: Semaphore,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: Vec<Waiting>,
    /// Keys that are asked for by themselves, and what waits behind them: as long as one is locked, it holds up no other.
    alone: HashMap<Key, Vec<Waiting>>,
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
    pub(super) fn new(store: Arc<S>, tasks: TaskTracker, all: Weak<dyn Callers>) -> Self {
        let (beside, alone) = (Arc::new(Semaphore::new(MOST_HOLDS)), Semaphore::new(MOST_ALONE));
        Self { store, tasks, queue: Mutex::default(), all, beside, alone }
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
                // Unknown is what is said of all then.
                Err(error) if error.is_outcome_unknown() => failed = Some(error),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        match failed {
            None => Ok(adjusted),
            Some(error) => Err(error.after(!adjusted.is_empty())),
        }
    }

    /// The calls, if the task of a caller makes them.
    pub(super) fn led(&self) -> Option<Leading> {
        self.queue.lock().led.take()
    }

    /// Puts adjustments in line; the caller makes the calls if nobody does.
    fn stand(self: &Arc<Self>, waiting: Vec<Waiting>) -> Result<Option<Leading>, Error> {
        let mut queue = self.queue.lock();
        if queue.len() >= MOST {
            return Err(Error::Overloaded(queue.len()));
        }
        let behind = waiting.iter().filter_map(|one| queue.alone.get(one.key())).map(Vec::len).max();
        if let Some(len) = behind.filter(|len| *len >= MOST_BEHIND) {
            return Err(Error::Overloaded(len));
        }
        queue.stand(waiting);
        Ok(self.serve(queue))
    }

    /// Sees to it that what waits is made, and says by which calls if nobody makes them yet.
    fn serve(self: &Arc<Self>, mut queue: MutexGuard<'_, Queue>) -> Option<Leading> {
        if queue.waiting.is_empty() {
            return None;
        }
        if queue.served {
            let led = queue.led.take();
            drop(queue);
            // Whoever waits depends on it from then on, and not on a caller that may not be polled any more.
            if let Some(call) = led {
                call.hand_over();
            }
            return None;
        }
        queue.served = true;
        let serving = self.tasks.track_future(Serving(Some(Arc::clone(self))).go_on());
        let call = Leading::new(serving, self.all.clone());
        queue.led = Some(call.clone());
        Some(call)
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
                return self.end(result, &adjustments, answers);
            }
            if let Some(all) = self.all.upgrade() {
                all.hand_over_taking();
            }
            if let Ok(beside) = Arc::clone(&self.beside).try_acquire_owned() {
                let (adjusting, alone) = (Arc::clone(self), self.hold_if_one(&adjustments));
                self.tasks.spawn(async move {
                    let result = see_through(&adjusting.all, call).await;
                    adjusting.end(result, &adjustments, answers);
                    drop(beside);
                    if let Some(alone) = alone {
                        alone.go_on().await;
                    }
                });
                return;
            }
        }
    }

    /// Leaves the only key of a call that takes long to itself.
    fn hold_if_one(self: &Arc<Self>, adjustments: &[Adjustment]) -> Option<Alone<S>> {
        let key = adjustments.first().filter(|_| is_for_one(adjustments))?.receipt.key.clone();
        let is_new = self.queue.lock().hold(&key, std::iter::empty());
        is_new.then(|| Alone { adjusting: Arc::clone(self), key: Some(key) })
    }

    /// Hands out the answers to a call. If it was undone because of some of its keys, each key is asked for by itself, so that
    /// the others need not share that.
    fn end(
        self: &Arc<Self>,
        result: Result<Vec<Result<Adjusted, TakeError>>, Error>,
        adjustments: &[Adjustment],
        answers: Vec<oneshot::Sender<Answer>>,
    ) {
        // One key alone the store has tried for as long as it may.
        if is_for_one(adjustments) || !result.as_ref().is_err_and(is_of_some) {
            return hand_out(result, answers);
        }
        let each = adjustments.iter().cloned().zip(answers);
        let mut each: Vec<_> = each.map(|(adjustment, answer)| Waiting { adjustment, answer }).collect();
        // A stable sort: those of one key stay in their order.
        each.sort_by(|one, other| one.key().cmp(other.key()));
        while let Some(key) = each.last().map(Waiting::key).cloned() {
            let first = each.partition_point(|other| *other.key() < key);
            if self.queue.lock().hold(&key, each.drain(first..)) {
                let alone = Alone { adjusting: Arc::clone(self), key: Some(key) };
                self.tasks.spawn(alone.go_on());
            }
        }
    }
}

fn is_for_one(adjustments: &[Adjustment]) -> bool {
    adjustments.array_windows().all(|[one, other]| one.receipt.key == other.receipt.key)
}

/// Whether a call was undone, perhaps because of some of what it carried.
fn is_of_some(error: &Error) -> bool {
    matches!(error, Error::Contended { .. } | Error::Database(_))
}

impl Waiting {
    fn key(&self) -> &Key {
        &self.adjustment.receipt.key
    }
}

impl Queue {
    fn len(&self) -> usize {
        self.waiting.len() + self.alone.values().map(Vec::len).sum::<usize>()
    }

    /// Each in line, or behind its key.
    fn stand(&mut self, waiting: Vec<Waiting>) {
        for one in waiting {
            match self.alone.get_mut(one.key()) {
                Some(behind) => behind.push(one),
                None => self.waiting.push(one),
            }
        }
    }

    /// Leaves a key to be asked for by itself, and says whether nobody does so yet. These came before all that waits for it.
    fn hold(&mut self, key: &Key, first: impl Iterator<Item = Waiting>) -> bool {
        let is_new = !self.alone.contains_key(key);
        let behind = self.alone.entry(key.clone()).or_default();
        behind.splice(0..0, first);
        if is_new {
            behind.extend(self.waiting.extract_if(.., |other| other.key() == key));
        }
        is_new
    }

    /// What waits for such a key; if that is nothing, it is as any other from then on.
    fn behind(&mut self, key: &Key) -> Vec<Waiting> {
        let Some(behind) = self.alone.get_mut(key).filter(|behind| !behind.is_empty()) else {
            self.alone.remove(key);
            return Vec::new();
        };
        let most = behind.len().min(MOST_AT_ONCE);
        behind.drain(..most).collect()
    }

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
            let waiting = {
                let mut queue = adjusting.queue.lock();
                (queue.served, queue.led) = (false, None);
                std::mem::take(&mut queue.waiting)
            };
            for Waiting { answer, .. } in waiting {
                let ended = std::io::Error::other("the task that made the calls has ended");
                // Who has given up does not want it any more.
                drop(answer.send(Err(Error::Unavailable(Arc::new(ended)))));
            }
        }
    }
}

/// Whoever asks for one key by itself, until nothing waits for it.
struct Alone<S: Store> {
    adjusting: Arc<Adjusting<S>>,
    /// None: it is as any other again.
    key: Option<Key>,
}

impl<S: Store> Alone<S> {
    async fn go_on(mut self) {
        while let Some(key) = &self.key {
            let turn = self.adjusting.alone.acquire().await;
            let waiting = self.adjusting.queue.lock().behind(key);
            if waiting.is_empty() {
                self.key = None;
                return;
            }
            let (adjustments, answers): (Vec<_>, Vec<_>) =
                waiting.into_iter().map(|Waiting { adjustment, answer }| (adjustment, answer)).unzip();
            let adjusting = &self.adjusting;
            hand_out(see_through(&adjusting.all, adjusting.store.adjust(&adjustments)).await, answers);
            drop(turn);
        }
    }
}

impl<S: Store> Drop for Alone<S> {
    /// If it ends before its time, what waits goes in the next call.
    fn drop(&mut self) {
        let Some(key) = &self.key else { return };
        let mut queue = self.adjusting.queue.lock();
        let waiting = queue.alone.remove(key).unwrap_or_default();
        queue.stand(waiting);
        if let Some(call) = self.adjusting.serve(queue) {
            call.hand_over();
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

/// How many calls for one key may be under way: few enough to leave the host some connections of an ordinary pool, if each waits
/// for a locked row.
const MOST_ALONE: usize = 8;
