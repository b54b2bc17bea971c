use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::yield_now;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use super::held::Held;
use super::lanes::{Callers, SLOW, see_through};
use super::leading::Leading;
use super::queue::{FEW, Queue, Waiting, is_for_one};
use super::undone::Turns;
use crate::model::take::IfLocked;
use crate::model::{Error, Outcome, Take};
use crate::store::Store;

pub(super) type Answer = oneshot::Sender<Result<Outcome, Error>>;
type Answered = oneshot::Receiver<Result<Outcome, Error>>;

/// One call at a time for those who wait in a queue, beside the calls that took too long to wait for.
#[derive(Debug)]
pub(super) struct Lane<S: Store> {
    pub(super) store: Arc<S>,
    pub(super) queue: Mutex<Queue>,
    /// What it does beside its callers.
    pub(super) tasks: TaskTracker,
    /// With all others over the same store.
    pub(super) all: Weak<dyn Callers>,
    pub(super) turns: Arc<Turns>,
}

impl<S: Store> Lane<S> {
    pub(super) fn new(
        store: Arc<S>,
        tasks: TaskTracker,
        all: Weak<dyn Callers>,
        turns: Arc<Turns>,
        most_at_once: usize,
    ) -> Self {
        Self { store, queue: Mutex::new(Queue::new(most_at_once)), tasks, all, turns }
    }

    /// Asks for one caller: at once while few do, and else along with others.
    pub(super) async fn ask(self: &Arc<Self>, take: &Take) -> Result<Outcome, Error> {
        let answered = match self.stand(take)? {
            (Some(call), answered) => see_through(&self.all, call.make(answered)).await,
            (None, answered) => answered.await,
        };
        // The task that made the call has ended before it had the answer.
        answered.unwrap_or_else(|stopped| Err(Error::OutcomeUnknown(Arc::new(stopped))))
    }

    /// Where the answer comes, and the call that brings it if it is the caller's own.
    fn stand(self: &Arc<Self>, take: &Take) -> Result<(Option<Leading>, Answered), Error> {
        let (answer, answered) = oneshot::channel();
        // Each call says it anew: equal requests go together.
        let waiting = Waiting { take: Take { if_locked: IfLocked::Retry, ..take.clone() }, answer };
        let mut queue = self.queue.lock();
        if queue.need_not_wait(take) {
            let call = self.tasks.track_future(Held::of(self, take.key()).ask(waiting));
            let call = Leading::new(call, self.all.clone());
            queue.lead(take.key(), call.clone());
            return Ok((Some(call), answered));
        }
        let (before, unserved) = (queue.push(waiting)?, queue.is_unserved());
        drop(queue);
        if let Some(call) = before {
            call.hand_over();
        }
        if unserved {
            self.serve();
        }
        Ok((None, answered))
    }

    /// Begins to serve those who wait.
    pub(super) fn serve(self: &Arc<Self>) {
        let serving = Serving(Some(Arc::clone(self)));
        if let Ok(runtime) = Handle::try_current() {
            self.tasks.spawn_on(serving.go_on(), &runtime);
        }
    }

    /// Asks for all of them, and goes on without the answer if they are few or that takes too long.
    async fn call(self: &Arc<Self>, waiting: Vec<Waiting>) {
        // Where nobody asks again in parts, the store tries for as long as it may.
        let if_locked = if self.asks_in_parts() { IfLocked::Fail } else { IfLocked::Retry };
        let (takes, answers): (Vec<Take>, Vec<Answer>) =
            waiting.into_iter().map(|Waiting { take, answer }| (Take { if_locked, ..take }, answer)).unzip();
        let takes = Arc::new(takes);
        let (store, asked) = (Arc::clone(&self.store), Arc::clone(&takes));
        let mut call = Box::pin(async move { store.take(&asked).await });
        if takes.len() <= FEW && takes.iter().all(is_for_one) && all_differ(&takes) && self.queue.lock().may_hold() {
            let held = Held::new(self, &takes);
            self.tasks.spawn(async move { held.wait(call, &takes, answers).await });
            return;
        }
        let result = loop {
            if let Ok(result) = timeout(SLOW, &mut call).await {
                break result;
            }
            if let Some(all) = self.all.upgrade() {
                all.hand_over();
            }
            if self.queue.lock().may_hold() {
                let held = Held::new(self, &takes);
                self.tasks.spawn(async move { held.wait(call, &takes, answers).await });
                return;
            }
        };
        if self.is_undone(&result) {
            Held::new(self, &takes).end(result, &takes, answers);
        } else {
            hand_out(result, answers);
        }
    }

    /// Whether a call came to nothing as somebody holds some of its buckets. A store of one call at a time is locked as a whole:
    /// no part of the call would fare better.
    pub(super) fn is_undone<T>(&self, result: &Result<T, Error>) -> bool {
        matches!(result, Err(Error::Contended { .. })) && self.asks_in_parts()
    }

    fn asks_in_parts(&self) -> bool {
        self.store.capabilities().calls_at_once > 1
    }
}

/// Whoever makes the calls of a lane. If it ends before its time, by a store that panics or a runtime that ends, those
/// who wait are told, and the next to come begins anew.
struct Serving<S: Store>(Option<Arc<Lane<S>>>);

impl<S: Store> Serving<S> {
    /// Makes calls until nobody waits.
    async fn go_on(mut self) {
        let Some(lane) = &self.0 else { return };
        loop {
            gather(lane).await;
            let waiting = {
                let mut queue = lane.queue.lock();
                let waiting = queue.next();
                if waiting.is_empty() && queue.is_done() {
                    break;
                }
                waiting
            };
            if !waiting.is_empty() {
                lane.call(waiting).await;
            }
        }
        self.0 = None;
    }
}

impl<S: Store> Drop for Serving<S> {
    fn drop(&mut self) {
        if let Some(lane) = &self.0 {
            lane.queue.lock().abandon();
        }
    }
}

/// Lets those whom the last answers woke ask again, while more and more do: a fuller call costs each of them less.
async fn gather<S: Store>(lane: &Lane<S>) {
    let mut waiting = lane.queue.lock().len();
    for _ in 0..MOST_YIELDS {
        yield_now().await;
        let now = lane.queue.lock().len();
        if now == std::mem::replace(&mut waiting, now) {
            break;
        }
    }
}

/// Whether each is for a bucket of its own, of requests in the order of their keys.
fn all_differ(takes: &[Take]) -> bool {
    takes.array_windows().all(|[one, other]| one.key() != other.key())
}

pub(super) fn hand_out(result: Result<Vec<Outcome>, Error>, answers: Vec<Answer>) {
    // Who has given up does not want it any more.
    match result {
        Ok(outcomes) => {
            for (answer, outcome) in answers.into_iter().zip(outcomes) {
                drop(answer.send(Ok(outcome)));
            }
        }
        Err(error) => {
            for answer in answers {
                drop(answer.send(Err(error.clone())));
            }
        }
    }
}

const MOST_YIELDS: usize = 8;
