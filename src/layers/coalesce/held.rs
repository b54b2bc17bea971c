use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use super::lane::{Answer, Lane, hand_out};
use super::lanes::see_through;
use super::queue::{Waiting, is_for_one};
use super::undone::{Undone, again};
use crate::model::{Error, Key, Outcome, Take};
use crate::store::Store;

/// Keys that a call beside the lane's own is under way for. Their other requests wait until it is dropped.
#[derive(Debug)]
pub(super) struct Held<S: Store> {
    lane: Arc<Lane<S>>,
    /// Often one: whoever asks alone allocates no list.
    keys: SmallVec<[Key; 1]>,
}

impl<S: Store> Held<S> {
    /// Of requests in the order of their keys.
    pub(super) fn new(lane: &Arc<Lane<S>>, takes: &[Take]) -> Self {
        let mut keys: SmallVec<[Key; 1]> = takes.iter().map(|take| take.key().clone()).collect();
        keys.dedup();
        lane.queue.lock().hold(&keys);
        Self { lane: Arc::clone(lane), keys }
    }

    /// Of one key, which the queue holds already.
    pub(super) fn of(lane: &Arc<Lane<S>>, key: &Key) -> Self {
        Self { lane: Arc::clone(lane), keys: smallvec![key.clone()] }
    }

    /// Asks for one request.
    pub(super) async fn ask(self, Waiting { take, answer }: Waiting) {
        let outcome = self.lane.store.take_one(&take).await;
        if self.lane.is_undone(&outcome) {
            self.undo(Vec::new());
        } else {
            drop(self);
        }
        // Who has given up does not want it any more.
        drop(answer.send(outcome));
    }

    /// Waits for a call, and hands out the answers as [`end`](Self::end) does.
    pub(super) async fn wait(
        self,
        call: impl Future<Output = Result<Vec<Outcome>, Error>>,
        takes: &[Take],
        answers: Vec<Answer>,
    ) {
        let result = see_through(&self.lane.all, call).await;
        self.end(result, takes, answers);
    }

    /// Hands out the answers to a call. If it was undone because some of its buckets could not be had, they are asked for in
    /// [parts](Undone), so that the others need not share that.
    pub(super) fn end(self, result: Result<Vec<Outcome>, Error>, takes: &[Take], answers: Vec<Answer>) {
        // One request, or several for one bucket alone, the store has tried for as long as it may.
        let is_for_one = takes.len() < 2 || self.keys.len() < 2 && takes.iter().all(is_for_one);
        let is_undone = self.lane.is_undone(&result);
        if is_undone && !is_for_one {
            return self.undo(again(takes, answers));
        }
        hand_out(result, answers);
        if is_undone {
            self.undo(Vec::new());
        }
    }

    /// Leaves the keys to others, with what is still to be asked for them.
    fn undo(mut self, waiting: Vec<Waiting>) {
        Undone::new(&self.lane, std::mem::take(&mut self.keys).into_vec(), waiting).ask_in_parts();
    }
}

impl<S: Store> Drop for Held<S> {
    fn drop(&mut self) {
        let unserved = {
            let mut queue = self.lane.queue.lock();
            queue.end_hold();
            queue.release(&self.keys)
        };
        if unserved {
            self.lane.serve();
        }
    }
}
