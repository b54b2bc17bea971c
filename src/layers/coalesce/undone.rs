use std::sync::Arc;

use tokio::sync::Semaphore;

use super::lane::{Answer, Lane, hand_out};
use super::lanes::see_through;
use super::queue::Waiting;
use crate::model::take::IfLocked;
use crate::model::{Key, Take};
use crate::store::Store;

/// Keys of a call that was undone as another transaction holds some of their buckets. They are asked for in smaller calls, and
/// the locked ones each by itself in the end; their other requests wait until it is dropped.
#[derive(Debug)]
pub(super) struct Undone<S: Store> {
    lane: Arc<Lane<S>>,
    /// In their order; none: others ask for them.
    keys: Vec<Key>,
}

/// How many calls may be under way for what was undone, of all lanes of a kind. Few, as each may wait for a locked row with one of
/// the host's connections.
#[derive(Debug)]
pub(super) struct Turns {
    /// For several keys each: they fail soon if one is locked.
    parts: Semaphore,
    /// For one key each, which may wait for as long as the store does.
    alone: Semaphore,
}

impl Default for Turns {
    fn default() -> Self {
        Self { parts: Semaphore::new(4), alone: Semaphore::new(4) }
    }
}

impl<S: Store> Undone<S> {
    /// Of keys that are held, and the requests of the call.
    pub(super) fn new(lane: &Arc<Lane<S>>, keys: Vec<Key>, waiting: Vec<Waiting>) -> Self {
        lane.queue.lock().put_back(waiting);
        Self { lane: Arc::clone(lane), keys }
    }

    /// Asks for all of them, in calls for fewer.
    pub(super) fn ask_in_parts(mut self) {
        let keys = std::mem::take(&mut self.keys);
        let most = match keys.len() {
            1 | 2 => 1,
            3..=SOME => 2,
            _ => SOME,
        };
        for keys in keys.chunks(most) {
            let part = Self { lane: Arc::clone(&self.lane), keys: keys.to_vec() };
            if part.is_awaited() {
                self.lane.tasks.spawn(part.ask());
            }
        }
    }

    /// Whether there is anything to ask.
    fn is_awaited(&self) -> bool {
        self.lane.queue.lock().is_behind(&self.keys)
    }

    async fn ask(self) {
        let is_one = self.keys.len() == 1;
        let turns = &self.lane.turns;
        let (turns, if_locked) = if is_one { (&turns.alone, IfLocked::Retry) } else { (&turns.parts, IfLocked::Fail) };
        while self.is_awaited() {
            let turn = turns.acquire().await;
            let waiting = self.lane.queue.lock().behind(&self.keys);
            if waiting.is_empty() {
                return;
            }
            let (takes, answers): (Vec<Take>, Vec<Answer>) =
                waiting.into_iter().map(|Waiting { take, answer }| (Take { if_locked, ..take }, answer)).unzip();
            let result = see_through(&self.lane.all, self.lane.store.take(&takes)).await;
            drop(turn);
            let undone = self.lane.is_undone(&result);
            if undone && !is_one {
                let waiting = again(&takes, answers);
                self.lane.queue.lock().put_back(waiting);
                return self.ask_in_parts();
            }
            hand_out(result, answers);
            // Along with others it would undo their call as well.
            if !undone {
                return;
            }
        }
    }
}

impl<S: Store> Drop for Undone<S> {
    fn drop(&mut self) {
        let unserved = !self.keys.is_empty() && self.lane.queue.lock().release(&self.keys);
        if unserved {
            self.lane.serve();
        }
    }
}

/// The requests of a call again. Each call says anew what is to be done if a bucket is locked: equal requests go together.
pub(super) fn again(takes: &[Take], answers: Vec<Answer>) -> Vec<Waiting> {
    let asked = |take: &Take| Take { if_locked: IfLocked::Retry, ..take.clone() };
    takes.iter().map(asked).zip(answers).map(|(take, answer)| Waiting { take, answer }).collect()
}

/// How many keys are so few that they are asked for two by two next: of a few that are locked, no more than as many others
/// are held up, after as many calls as these are.
const SOME: usize = 32;
