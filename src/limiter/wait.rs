use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::reservation::{Reservation, Turn};
use super::stack::Stack;
use crate::{Decision, Error, Key, Store, Take, TakeError};

/// Those who wait, in a line for each key: one call of the store at a time carries all that stand there, in their order.
#[derive(Debug)]
pub(super) struct Lanes<S: Store> {
    store: Arc<Stack<S>>,
    lanes: Mutex<HashMap<Key, VecDeque<Waiter<S>>>>,
}

type Answer<S> = Result<Result<Turn<S>, TakeError>, Error>;

#[derive(Debug)]
struct Waiter<S: Store> {
    take: Take,
    until: Option<Instant>,
    answer: oneshot::Sender<Answer<S>>,
}

impl<S: Store> Lanes<S> {
    pub(super) fn new(store: Arc<Stack<S>>) -> Self {
        Self { store, lanes: Mutex::default() }
    }

    /// Stands in line, and reserves.
    pub(super) async fn reserve(self: &Arc<Self>, take: Take) -> Answer<S> {
        let (answer, answered) = oneshot::channel();
        let key = take.key().clone();
        let waiter = Waiter { until: Instant::now().checked_add(take.max_wait), take, answer };
        let first = {
            let mut lanes = self.lock();
            let first = !lanes.contains_key(&key);
            lanes.entry(key.clone()).or_default().push_back(waiter);
            first
        };
        if first {
            // A task of the limiter's own: a caller who gives up does not stop those behind it.
            tokio::spawn(Arc::clone(self).serve(key));
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
            let waiters: Vec<Waiter<S>> = {
                let mut waiting = lanes.lock();
                let Some(lane) = waiting.get_mut(key).filter(|lane| !lane.is_empty()) else {
                    waiting.remove(key);
                    *done = true;
                    return;
                };
                let most = lane.len().min(MOST_AT_ONCE);
                lane.drain(..most).filter(|waiter| !waiter.answer.is_closed()).collect()
            };
            if !waiters.is_empty() {
                lanes.ask(waiters, &mut latest).await;
            }
        }
    }

    /// Asks for all of them. Nobody's turn is before the latest one's until then.
    async fn ask(&self, waiters: Vec<Waiter<S>>, latest: &mut Instant) {
        let now = Instant::now();
        let left = |waiter: &Waiter<S>| waiter.until.map_or(waiter.take.max_wait, |until| until - now);
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
                let decided = outcomes.iter().flatten().filter_map(Decision::decided_at).max().unwrap_or(0);
                for ((waiter, take), outcome) in waiters.into_iter().zip(&takes).zip(outcomes) {
                    let reserved = |decision: Decision| {
                        let decision = decision.waiting_from(decided);
                        let turn = Turn::new(Reservation::new(Arc::clone(&self.store), take, decision));
                        turn.behind(latest)
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

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, VecDeque<Waiter<S>>>> {
        self.lanes.lock()
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
            self.lanes.lock().remove(&self.key);
        }
    }
}

/// How many requests one call carries.
const MOST_AT_ONCE: usize = 1000;
