use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use super::lane::{Answer, Lane, hand_out};
use super::lanes::see_through;
use super::queue::Waiting;
use crate::take::IfLocked;
use crate::{Error, Key, Outcome, Store, Take};

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
        drop(self);
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

    /// Hands out the answers to a call. If it was undone because some of its buckets could not be had, each bucket is asked
    /// by itself, so that the others need not share that.
    pub(super) fn end(mut self, result: Result<Vec<Outcome>, Error>, takes: &[Take], answers: Vec<Answer>) {
        let contended = matches!(result, Err(Error::Contended { .. }));
        // One request, or several for one bucket alone, the store has tried for as long as it may.
        let is_for_one = self.keys.len() < 2 && takes.iter().all(|take| take.limits.len() == 1);
        if !contended || takes.len() < 2 || is_for_one {
            return hand_out(result, answers);
        }
        self.lane.queue.lock().split(self.keys.len());
        let mut answers = answers.into_iter();
        let of_a_key = takes.chunk_by(|one, other| one.key() == other.key());
        for (key, takes) in std::mem::take(&mut self.keys).into_iter().zip(of_a_key) {
            let again = |take: &Take| Take { if_locked: IfLocked::Retry, ..take.clone() };
            let asked: Vec<_> = takes.iter().map(again).zip(answers.by_ref()).collect();
            let held = Self { lane: Arc::clone(&self.lane), keys: smallvec![key] };
            let asking = async move {
                let _turn = held.lane.alone.acquire().await;
                // Whoever gave up while they queued takes nothing.
                let (takes, answers): (Vec<Take>, Vec<_>) =
                    asked.into_iter().filter(|(_, answer)| !answer.is_closed()).unzip();
                if !takes.is_empty() {
                    hand_out(see_through(&held.lane.all, held.lane.store.take(&takes)).await, answers);
                }
            };
            self.lane.tasks.spawn(asking);
        }
    }
}

impl<S: Store> Drop for Held<S> {
    fn drop(&mut self) {
        if !self.keys.is_empty() {
            let unserved = self.lane.queue.lock().release(&self.keys);
            if unserved {
                self.lane.serve();
            }
        }
    }
}
