use std::collections::{HashMap, VecDeque};
use std::mem::{replace, take};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};

use super::reservation::{Abandoned, Reservation, Turn};
use super::stack::Stack;
use super::store_clock::StoreClock;
use super::turns::Turns;
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
    lanes: HashMap<Key, Lane<S>>,
    /// How many stand in all of them.
    len: usize,
}

#[derive(Debug)]
struct Lane<S: Store> {
    waiting: VecDeque<Waiter<S>>,
    /// When those go on who have their answers.
    turns: Turns,
    /// Whether somebody asks for those who wait.
    served: bool,
    /// Whether somebody is about to forget it.
    forgotten: bool,
}

impl<S: Store> Default for Lane<S> {
    fn default() -> Self {
        Self { waiting: VecDeque::new(), turns: Turns::default(), served: false, forgotten: false }
    }
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
        if self.store.capabilities().in_process {
            // There are no calls to share, and nobody is overtaken on the way.
            return Ok(self.store.take_one(take).await?.map(|decision| self.turn(take, decision, abandoned)));
        }
        let (answer, answered) = oneshot::channel();
        let key = take.key().clone();
        let until = Instant::now().checked_add(take.max_wait);
        let unserved = self.lock().push(Waiter { take: take.clone(), until, abandoned, answer })?;
        if unserved {
            // A task of the limiter's own: a caller who gives up does not stop those behind it.
            let serving = Serving { lanes: Arc::clone(self), key, done: false };
            if let Ok(runtime) = Handle::try_current() {
                self.store.tasks.spawn_on(serving.go_on(), &runtime);
            }
        }
        // The task that made the call has ended before it had the answer.
        answered.await.unwrap_or_else(|stopped| Err(Error::OutcomeUnknown(Arc::new(stopped))))
    }

    /// Asks for all of them, who go on in their order.
    async fn ask(&self, waiters: Vec<Waiter<S>>, turns: &mut Turns) {
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
                        let turn = self.turn(take, decision, waiter.abandoned).since(since);
                        // Of several limits another one may be what somebody ahead waits for.
                        if take.limits.len() == 1 { turn.behind(turns, waiter.until) } else { turn }
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
    /// Puts somebody at the end of their lane, and says whether nobody serves it; who asks has to.
    fn push(&mut self, waiter: Waiter<S>) -> Result<bool, Error> {
        if self.len >= MOST {
            self.forget_those_who_left();
        }
        if self.len >= MOST {
            return Err(Error::Overloaded(self.len));
        }
        self.len += 1;
        let key = waiter.take.key().clone();
        let lane = self.lanes.entry(key).or_default();
        lane.waiting.push_back(waiter);
        Ok(!replace(&mut lane.served, true))
    }

    /// Who goes in the next call for a key; `None` if nobody stands there, and so nobody serves the lane from then on.
    fn next(&mut self, key: &Key, most: usize, turns: &mut Turns) -> Option<Vec<Waiter<S>>> {
        let lane = self.lanes.get_mut(key)?;
        if lane.waiting.is_empty() {
            (lane.turns, lane.served) = (take(turns), false);
            return None;
        }
        // What the store decides by itself is asked for by itself: if another call fails, its tokens are not lost, too.
        let is_alone = |waiter: &Waiter<S>| waiter.take.limits.len() > 1 || waiter.take.window().is_some();
        let together = lane.waiting.iter().take(most).take_while(|waiter| !is_alone(waiter)).count();
        let most = together.max(1);
        self.len -= most;
        Some(lane.waiting.drain(..most).filter(|waiter| !waiter.answer.is_closed()).collect())
    }

    /// Forgets a lane if nobody stands or waits there any more; else says until when somebody does, if nobody serves it,
    /// who would forget it afterwards.
    fn forget(&mut self, key: &Key) -> Option<Instant> {
        let lane = self.lanes.get_mut(key)?;
        lane.forgotten = !lane.served;
        if lane.served {
            return None;
        }
        let latest = lane.turns.latest();
        if latest.is_none() {
            self.lanes.remove(key);
        }
        latest
    }

    /// Sends away who stands in a lane: nobody serves it.
    fn abandon(&mut self, key: &Key) {
        let waiting = self.lanes.remove(key).map_or_else(VecDeque::new, |lane| lane.waiting);
        self.len -= waiting.len();
        for waiter in waiting {
            let ended = std::io::Error::other("the task that made the calls has ended");
            // Who has given up does not want it any more.
            drop(waiter.answer.send(Err(Error::Unavailable(Arc::new(ended)))));
        }
    }

    fn forget_those_who_left(&mut self) {
        for lane in self.lanes.values_mut() {
            lane.waiting.retain(|waiter| !waiter.answer.is_closed());
        }
        self.len = self.lanes.values().map(|lane| lane.waiting.len()).sum();
    }
}

/// Who serves a lane. If it ends before its time, by a store that panics or a runtime that ends, those who stand there are
/// told, and the next to come begins anew.
struct Serving<S: Store> {
    lanes: Arc<Lanes<S>>,
    key: Key,
    done: bool,
}

impl<S: Store> Serving<S> {
    /// Asks for all that stand in the lane, again and again until it is empty.
    async fn go_on(mut self) {
        let mut turns =
            self.lanes.lock().lanes.get_mut(&self.key).map(|lane| take(&mut lane.turns)).unwrap_or_default();
        let mut most = FIRST_AT_ONCE;
        loop {
            let Some(waiters) = self.lanes.lock().next(&self.key, most, &mut turns) else { break };
            if !waiters.is_empty() {
                self.lanes.ask(waiters, &mut turns).await;
            }
            most = (2 * most).min(MOST_AT_ONCE);
        }
        self.done = true;
        let mut waiting = self.lanes.lock();
        let is_forgotten = waiting.lanes.get(&self.key).is_none_or(|lane| lane.forgotten);
        if let Some(latest) = waiting.forget(&self.key).filter(|_| !is_forgotten) {
            // Not one of the tasks that somebody waits for in the end.
            tokio::spawn(forget(Arc::downgrade(&self.lanes), self.key.clone(), latest));
        }
    }
}

/// Forgets a lane once those have gone on who wait there.
async fn forget<S: Store>(lanes: Weak<Lanes<S>>, key: Key, mut latest: Instant) {
    loop {
        sleep_until(latest.max(Instant::now() + SOON)).await;
        let Some(later) = lanes.upgrade().and_then(|lanes| lanes.lock().forget(&key)) else { return };
        latest = later;
    }
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

/// How many requests the first call carries, and each later one twice as many: the first in line are due before the answer to a
/// call for all.
const FIRST_AT_ONCE: usize = 16;

/// How many requests one call carries.
const MOST_AT_ONCE: usize = 1000;

/// Who goes on takes a moment to do so.
const SOON: Duration = Duration::from_millis(10);
