use std::sync::Arc;

use super::lane::{Answer, Lane, hand_out};
use crate::{Error, Key, Outcome, Store, Take};

/// Keys that a call beside the lane's own is under way for. Their other requests wait until it is dropped.
#[derive(Debug)]
pub(super) struct Held<S: Store> {
    lane: Arc<Lane<S>>,
    keys: Vec<Key>,
}

impl<S: Store> Held<S> {
    /// Of requests in the order of their keys.
    pub(super) fn new(lane: &Arc<Lane<S>>, takes: &[Take]) -> Self {
        let mut keys: Vec<Key> = takes.iter().map(|take| take.key().clone()).collect();
        keys.dedup();
        lane.queue.lock().hold(&keys);
        Self { lane: Arc::clone(lane), keys }
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
            let (takes, answers) = (takes.to_vec(), answers.by_ref().take(takes.len()).collect());
            let held = Self { lane: Arc::clone(&self.lane), keys: vec![key] };
            tokio::spawn(async move {
                let _turn = held.lane.alone.acquire().await;
                hand_out(held.lane.store.take(&takes).await, answers);
            });
        }
    }
}

impl<S: Store> Drop for Held<S> {
    fn drop(&mut self) {
        if !self.keys.is_empty() {
            self.lane.queue.lock().release(&self.keys);
            self.lane.serve();
        }
    }
}
