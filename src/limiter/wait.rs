use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::reservation::{Abandoned, Reservation, Turn};
use super::stack::Stack;
use super::store_clock::StoreClock;
use crate::{Decision, Error, Key, Store, Take, TakeError};

/// Those who wait, in a line for each key: one call of the store at a time carries all that stand there, in their order.
#[derive(Debug)]
pub(super) struct Lanes<S: Store> {
    store: Arc<Stack<S>>,
    waiting: Mutex<Waiting<S>>,
    clock: Mutex<StoreClock>,
}

#[derive(Debug)]
struct Waiting<S: Store> {
    lanes: HashMap<Key, VecDeque<Waiter<S>>>,
    /// How many stand in all of them.
    len: usize,
}

type Answer<S> = Result<Result<Turn<S>, TakeError>, Error>;

#[derive(Debug)]
struct Waiter<S: Store> {
    take: Take,
    until: Option<Instant>,
    abandoned: Abandoned,
    answer: oneshot::Sender<Answer<S>>,
}

impl<S: Store> Lanes<S> {
    pub(super) fn new(store: Arc<Stack<S>>) -> Self {
        let waiting = Waiting { lanes: HashMap::new(), len: 0 };
        Self { store, waiting: Mutex::new(waiting), clock: Mutex::default() }
    }

    /// Stands in line, and reserves. Who leaves before being asked for takes nothing.
    pub(super) async fn reserve(self: &Arc<Self>, take: &Take, abandoned: Abandoned) -> Answer<S> {
        if S::IN_PROCESS {
            // There are no calls to share, and nobody is overtaken on the way.
            return Ok(self.store.take_one(take).await?.map(|decision| self.turn(take, decision, abandoned)));
        }
        let (answer, answered) = oneshot::channel();
        let key = take.key().clone();
        let until = Instant::now().checked_add(take.max_wait);
        let first = self.lock().push(Waiter { take: take.clone(), until, abandoned, answer })?;
        if first {
            // A task of the limiter's own: a caller who gives up does not stop those behind it.
            self.store.tasks.spawn(Arc::clone(self).serve(key));
        }
        // The task that made the call has ended before it had the answer.
        answered.await.unwrap_or_else(|stopped| Err(Error::OutcomeUnknown(Arc::new(stopped))))
    }

    /// Asks for all that stand in a lane, again and again until it is empty.
    async fn serve(self: Arc<Self>, key: Key) {
        let mut serving = Serving { lanes: self, key, done: false };
        let Serving { lanes, key, done } = &mut serving;
        let mut latest = Instant::now();
        loop {
            let Some(waiters) = lanes.lock().next(key) else {
                *done = true;
                return;
            };
            if !waiters.is_empty() {
                lanes.ask(waiters, &mut latest).await;
            }
        }
    }

    /// Asks for all of them. Nobody's turn is before the latest one's until then.
    async fn ask(&self, waiters: Vec<Waiter<S>>, latest: &mut Instant) {
        let asked = Instant::now();
        let left = |waiter: &Waiter<S>| waiter.until.map_or(waiter.take.max_wait, |until| until - asked);
        let takes: Vec<Take> = waiters.iter().map(|waiter| waiter.take.clone().max_wait(left(waiter))).collect();
        let outcomes = self.store.take(&takes).await;
        let mut given_up = Vec::new();
        match outcomes {
            Err(error) => {
                for waiter in waiters {
                    // Nobody waits for it any more.
                    drop(waiter.answer.send(Err(error.clone())));
                }
            }
            Ok(outcomes) => {
                // A store may decide one after the other, and answer when it has decided the last: all wait from then.
                let (decided, answered) =
                    (outcomes.iter().flatten().filter_map(Decision::decided_at).max(), Instant::now());
                let since = decided.map_or(answered, |decided| self.clock.lock().here(decided, asked, answered));
                for ((waiter, take), outcome) in waiters.into_iter().zip(&takes).zip(outcomes) {
                    let reserved = |decision: Decision| {
                        let decision = decision.waiting_from(decided.unwrap_or(0));
                        self.turn(take, decision, waiter.abandoned).since(since).behind(latest)
                    };
                    if let Err(Ok(Ok(turn))) = waiter.answer.send(Ok(outcome.map(reserved))) {
                        given_up.push(turn);
                    }
                }
            }
        }
        // The last one first: then nobody queues behind those that are given back.
        for turn in given_up.into_iter().rev() {
            turn.give_back().await;
        }
    }

    fn turn(&self, take: &Take, decision: Decision, abandoned: Abandoned) -> Turn<S> {
        Turn::new(Reservation::new(Arc::clone(&self.store), take, decision), abandoned)
    }

    fn lock(&self) -> MutexGuard<'_, Waiting<S>> {
        self.waiting.lock()
    }
}

impl<S: Store> Waiting<S> {
    /// Puts somebody at the end of their lane, and says whether nobody serves it.
    fn push(&mut self, waiter: Waiter<S>) -> Result<bool, Error> {
        if self.len >= MOST {
            self.forget_those_who_left();
        }
        if self.len >= MOST {
            return Err(Error::Overloaded(self.len));
        }
        self.len += 1;
        let key = waiter.take.key().clone();
        let first = !self.lanes.contains_key(&key);
        self.lanes.entry(key).or_default().push_back(waiter);
        Ok(first)
    }

    /// Who goes in the next call for a key; `None` if nobody stands there, and so nobody serves the lane from then on.
    fn next(&mut self, key: &Key) -> Option<Vec<Waiter<S>>> {
        let Some(lane) = self.lanes.get_mut(key).filter(|lane| !lane.is_empty()) else {
            self.abandon(key);
            return None;
        };
        let most = lane.len().min(MOST_AT_ONCE);
        self.len -= most;
        Some(lane.drain(..most).filter(|waiter| !waiter.answer.is_closed()).collect())
    }

    /// Sends away who stands in a lane: nobody serves it.
    fn abandon(&mut self, key: &Key) {
        self.len -= self.lanes.remove(key).map_or(0, |lane| lane.len());
    }

    fn forget_those_who_left(&mut self) {
        for lane in self.lanes.values_mut() {
            lane.retain(|waiter| !waiter.answer.is_closed());
        }
        self.len = self.lanes.values().map(VecDeque::len).sum();
    }
}

/// Who serves a lane. If it ends before its time, by a store that panics or a runtime that ends, those who stand there are
/// told, and the next to come begins anew.
struct Serving<S: Store> {
    lanes: Arc<Lanes<S>>,
    key: Key,
    done: bool,
}

impl<S: Store> Drop for Serving<S> {
    fn drop(&mut self) {
        if !self.done {
            self.lanes.lock().abandon(&self.key);
        }
    }
}

/// How many wait at most, for all keys: beyond it the database is too slow for what is asked.
const MOST: usize = 32_768;

/// How many requests one call carries.
const MOST_AT_ONCE: usize = 1000;
