//! The queue of the batcher: one queue per key, from which the calls in flight take their batches.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

use foldhash::fast::RandomState;

/// A request that can wait in a [`Queue`].
pub(super) trait Queued {
    type Key: Clone + Eq + Hash;
    type Kind: Copy + Eq;

    fn key(&self) -> &Self::Key;

    /// A call carries requests of one kind.
    fn kind(&self) -> Self::Kind;

    /// Maximum number of requests of its kind in one call.
    fn max_batch(&self) -> usize;

    /// Maximum number of requests in a call for an isolated key.
    fn max_isolated(&self) -> usize;

    /// Whether `later`, of the same key and kind, can follow in the same call.
    fn is_joined_by(&self, later: &Self) -> bool;

    /// Whether its caller was dropped.
    fn is_cancelled(&self) -> bool;
}

/// Requests that wait for a call, in a queue for each key. Design: `design/batching.md`.
///
/// At most one call at a time carries a key, so requests for one key keep their order.
#[derive(Debug)]
pub(super) struct Queue<T: Queued> {
    key_queues: HashMap<T::Key, KeyQueue<T>, RandomState>,
    /// Buffers of removed key queues, for reuse.
    spare: Vec<VecDeque<T>>,
    /// Keys that can join the next batch: requests wait, and no call is in flight.
    ready: VecDeque<T::Key>,
    /// Keys that get calls of their own, because their last call met a lock or was rolled back.
    isolated: VecDeque<T::Key>,
    waiting: usize,
    cancelled: usize,
    max_batch_calls: usize,
    /// Maximum number of keys in one call.
    max_keys: usize,
    batch_calls: Calls,
    isolated_calls: Calls,
    /// Whether a call waits to be filled.
    is_coalescing: bool,
}

#[derive(Debug)]
struct KeyQueue<T> {
    waiting: VecDeque<T>,
    /// Number of requests at the front that were in a call that was rolled back. They are called in isolation.
    rolled_back: usize,
    is_called: bool,
}

#[derive(Debug, Default)]
struct Calls {
    in_flight: usize,
    /// Number of requests in these calls.
    requests: usize,
    /// Calls that have taken longer than [`OLD_CALL_AGE`](super::OLD_CALL_AGE).
    old: usize,
}

/// The requests of one call, grouped by key. Empty if [`Queue::fill_next`] is to fill the call.
#[derive(Debug)]
pub(super) struct Batch<T: Queued> {
    pub(super) requests: Vec<T>,
    pub(super) flight: Flight<T::Key>,
}

/// A call in flight, for [`Queue::finish`].
#[derive(Debug)]
pub(super) struct Flight<K> {
    pub(super) keys: Vec<K>,
    is_isolated: bool,
    requests: usize,
    is_old: bool,
}

impl<K> Flight<K> {
    /// Whether the call carries more than one request, or waits to be filled.
    pub(super) fn is_shared(&self) -> bool {
        !self.is_isolated && self.requests != 1
    }
}

impl<T: Queued> Queue<T> {
    /// Creates a queue that keeps `max_batch_calls` calls in flight while requests wait, each for up to `max_keys` keys.
    pub(super) fn new(max_batch_calls: usize, max_keys: usize) -> Self {
        Self {
            key_queues: HashMap::default(),
            spare: Vec::new(),
            ready: VecDeque::new(),
            isolated: VecDeque::new(),
            waiting: 0,
            cancelled: 0,
            max_batch_calls,
            max_keys,
            batch_calls: Calls::default(),
            isolated_calls: Calls::default(),
            is_coalescing: false,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.waiting
    }

    /// Returns the length of the queue, or of the key's own, if it leaves no room for another request of the key.
    pub(super) fn full(&mut self, key: &T::Key, max_waiting: usize) -> Option<usize> {
        let len = |queue: &Self| {
            let key_queue = queue.key_queues.get(key).map_or(0, |key_queue| key_queue.waiting.len());
            Some(queue.waiting)
                .filter(|all| *all >= max_waiting)
                .or_else(|| Some(key_queue).filter(|key_queue| *key_queue >= max_waiting / 2))
        };
        let full = len(self)?;
        if self.cancelled < MIN_CANCELLED {
            return Some(full);
        }
        self.prune_cancelled();
        len(self)
    }

    pub(super) fn push(&mut self, request: T) {
        self.key_queue(request.key()).push_back(request);
    }

    /// Puts a request ahead of all others for its key.
    pub(super) fn push_front(&mut self, request: T) {
        self.key_queue(request.key()).push_front(request);
    }

    fn key_queue(&mut self, key: &T::Key) -> &mut VecDeque<T> {
        self.waiting += 1;
        let key_queue = self.key_queues.entry(key.clone()).or_insert_with(|| {
            self.ready.push_back(key.clone());
            KeyQueue { waiting: self.spare.pop().unwrap_or_default(), rolled_back: 0, is_called: false }
        });
        &mut key_queue.waiting
    }

    /// Counts a caller that was dropped before its answer.
    pub(super) fn count_cancelled(&mut self) {
        self.cancelled += 1;
    }

    /// Returns the next call, if one can start. Calls a key at once if it waits alone while requests are few, or if no call
    /// carries more than one key. Otherwise returns an empty call, which coalesces requests until
    /// [`fill_next`](Self::fill_next). At most one call at a time is empty.
    pub(super) fn next(&mut self) -> Option<Batch<T>> {
        if self.isolated_calls.has_room(MAX_ISOLATED_CALLS)
            && let Some(batch) = self.isolated_batch()
        {
            return Some(batch);
        }
        if self.ready.len() == 1 && self.has_few_requests() {
            return self.batch();
        }
        if self.max_keys == 1 {
            return if self.batch_calls.has_room(self.max_batch_calls) { self.batch() } else { None };
        }
        if self.is_coalescing || self.ready.is_empty() || !self.batch_calls.has_room(self.max_batch_calls) {
            return None;
        }
        self.is_coalescing = true;
        Some(self.start(Vec::new(), Vec::new(), false))
    }

    /// Whether the requests that wait or are in flight are so few that each can have a call of its own, which takes less time
    /// than a shared one.
    pub(super) fn has_few_requests(&self) -> bool {
        let max_solo_calls = if self.max_batch_calls == 1 { 1 } else { MAX_SOLO_CALLS };
        self.waiting + self.batch_calls.requests <= self.batch_calls.limit(max_solo_calls)
    }

    /// Ends a call that is answered or still empty, and fills the next one in its place.
    pub(super) fn fill_next(&mut self, flight: Flight<T::Key>) -> Option<Batch<T>> {
        self.finish(flight, false);
        if self.batch_calls.has_room(self.max_batch_calls) { self.batch() } else { None }
    }

    /// Fills a call from the ready keys, oldest first. Keys whose first request is of another kind keep their places. The call
    /// takes an equal share of all requests that wait or are in flight, so that calls have about the same size.
    fn batch(&mut self) -> Option<Batch<T>> {
        let share = (self.waiting + self.batch_calls.requests).div_ceil(self.max_batch_calls);
        let (mut requests, mut keys, mut passed) = (Vec::new(), Vec::new(), Vec::new());
        while passed.len() < MAX_PASSED
            && let Some(key) = self.ready.pop_front()
        {
            let Some(front) = self.front(&key) else { continue };
            if requests.first().is_some_and(|first: &T| first.kind() != front.kind()) {
                passed.push(key);
                continue;
            }
            let max_batch = front.max_batch().min(share);
            if requests.is_empty() {
                requests.reserve_exact(max_batch);
            }
            self.call(&key, &mut requests, T::max_batch);
            keys.push(key);
            if requests.len() >= max_batch || keys.len() >= self.max_keys {
                break;
            }
        }
        for key in passed.into_iter().rev() {
            self.ready.push_front(key);
        }
        if keys.is_empty() { None } else { Some(self.start(requests, keys, false)) }
    }

    fn isolated_batch(&mut self) -> Option<Batch<T>> {
        while let Some(key) = self.isolated.pop_front() {
            if self.front(&key).is_some() {
                let mut requests = Vec::new();
                self.call(&key, &mut requests, T::max_isolated);
                return Some(self.start(requests, vec![key], true));
            }
        }
        None
    }

    /// Returns the first request of a key that is not cancelled. Removes the key's queue if there is none.
    fn front(&mut self, key: &T::Key) -> Option<&T> {
        let key_queue = self.key_queues.get_mut(key)?;
        while key_queue.waiting.pop_front_if(|request| request.is_cancelled()).is_some() {
            key_queue.rolled_back = key_queue.rolled_back.saturating_sub(1);
            self.waiting -= 1;
            self.cancelled = self.cancelled.saturating_sub(1);
        }
        if key_queue.waiting.is_empty() {
            self.remove(key);
        }
        self.key_queues.get(key)?.waiting.front()
    }

    fn remove(&mut self, key: &T::Key) {
        if let Some(KeyQueue { waiting, .. }) = self.key_queues.remove(key)
            && self.spare.len() < MAX_SPARE
            && waiting.capacity() <= MAX_SPARE_CAPACITY
        {
            self.spare.push(waiting);
        }
    }

    /// Moves the first requests of a key to a call, as many as can share it. Moves the very first even if it was cancelled
    /// since [`front`](Self::front), so that each key of a call has a request.
    fn call(&mut self, key: &T::Key, requests: &mut Vec<T>, max: impl Fn(&T) -> usize) {
        let Some(key_queue) = self.key_queues.get_mut(key) else { return };
        key_queue.is_called = true;
        let first = requests.len();
        while let Some(next) = key_queue.waiting.front() {
            let joins = requests.get(first).is_none_or(|first| first.kind() == next.kind() && first.is_joined_by(next));
            if !joins || requests.first().is_some_and(|first| requests.len() >= max(first)) {
                break;
            }
            let Some(request) = key_queue.waiting.pop_front() else { break };
            self.waiting -= 1;
            key_queue.rolled_back = key_queue.rolled_back.saturating_sub(1);
            if requests.len() > first && request.is_cancelled() {
                self.cancelled = self.cancelled.saturating_sub(1);
            } else {
                requests.push(request);
            }
        }
    }

    fn start(&mut self, requests: Vec<T>, keys: Vec<T::Key>, is_isolated: bool) -> Batch<T> {
        let flight = Flight { keys, requests: requests.len(), is_isolated, is_old: false };
        self.calls(is_isolated).start(requests.len());
        Batch { requests, flight }
    }

    /// Counts a call as old, so that another one can start beside it. Beyond [`MAX_OLD_CALLS`], a call for one key counts as
    /// isolated, because its row is probably locked.
    pub(super) fn mark_old(&mut self, flight: &mut Flight<T::Key>) {
        flight.is_old = true;
        let has_room = self.isolated_calls.old < MAX_OLD_CALLS && self.max_batch_calls > 1;
        if !flight.is_isolated && flight.keys.len() == 1 && self.batch_calls.old >= MAX_OLD_CALLS && has_room {
            flight.is_isolated = true;
            self.batch_calls.end(flight.requests);
            self.isolated_calls.start(flight.requests);
        }
        self.calls(flight.is_isolated).old += 1;
    }

    /// Ends a call. `is_locked`: another transaction held one of the rows, so the next call for each key is isolated.
    pub(super) fn finish(&mut self, flight: Flight<T::Key>, is_locked: bool) {
        let Flight { keys, requests, is_isolated, is_old } = flight;
        self.is_coalescing &= !keys.is_empty();
        let calls = self.calls(is_isolated);
        calls.end(requests);
        calls.old -= usize::from(is_old);
        for key in keys {
            let Some(key_queue) = self.key_queues.get_mut(&key) else { continue };
            key_queue.is_called = false;
            key_queue.rolled_back = key_queue.rolled_back.min(key_queue.waiting.len());
            if key_queue.waiting.is_empty() {
                self.remove(&key);
            } else if is_locked || key_queue.rolled_back > 0 {
                self.isolated.push_back(key);
            } else {
                self.ready.push_back(key);
            }
        }
    }

    /// Ends a call that was rolled back. Its requests go ahead of all others for their keys, in one call for each key.
    pub(super) fn roll_back(&mut self, flight: Flight<T::Key>, requests: Vec<T>) {
        for request in requests.into_iter().rev() {
            if let Some(key_queue) = self.key_queues.get_mut(request.key()) {
                key_queue.rolled_back += 1;
            }
            self.push_front(request);
        }
        self.finish(flight, true);
    }

    /// Removes requests of these keys that have waited too long.
    pub(super) fn remove_overdue(&mut self, keys: &[T::Key], is_overdue: impl Fn(&T) -> bool) -> Vec<T> {
        let mut overdue = Vec::new();
        for key in keys {
            if let Some(key_queue) = self.key_queues.get_mut(key) {
                let waiting = std::mem::take(&mut key_queue.waiting);
                let (late, left): (Vec<T>, Vec<T>) = waiting.into_iter().partition(&is_overdue);
                overdue.extend(late);
                key_queue.waiting = left.into();
            }
        }
        self.waiting -= overdue.len();
        overdue
    }

    /// Removes all requests, for a runtime that has ended.
    pub(super) fn drain(&mut self) -> Vec<T> {
        let all: Vec<T> = self.key_queues.values_mut().flat_map(|key_queue| key_queue.waiting.drain(..)).collect();
        self.key_queues.retain(|_, key_queue| key_queue.is_called);
        self.ready.clear();
        self.isolated.clear();
        (self.waiting, self.cancelled) = (0, 0);
        all
    }

    fn prune_cancelled(&mut self) {
        for key_queue in self.key_queues.values_mut() {
            key_queue.waiting.retain(|request| !request.is_cancelled());
        }
        self.waiting = self.key_queues.values().map(|key_queue| key_queue.waiting.len()).sum();
        self.cancelled = 0;
    }

    fn calls(&mut self, is_isolated: bool) -> &mut Calls {
        if is_isolated { &mut self.isolated_calls } else { &mut self.batch_calls }
    }
}

impl Calls {
    fn has_room(&self, max_calls: usize) -> bool {
        self.in_flight < self.limit(max_calls)
    }

    fn limit(&self, max_calls: usize) -> usize {
        max_calls + self.old.min(MAX_OLD_CALLS)
    }

    fn start(&mut self, requests: usize) {
        self.in_flight += 1;
        self.requests += requests;
    }

    fn end(&mut self, requests: usize) {
        self.in_flight -= 1;
        self.requests -= requests;
    }
}

/// Up to this many requests that wait or are in flight have calls of their own.
const MAX_SOLO_CALLS: usize = 4;

/// Maximum number of calls for isolated keys in flight.
const MAX_ISOLATED_CALLS: usize = 4;

/// Maximum number of old calls that others can start beside. Each holds a connection of the host's pool.
const MAX_OLD_CALLS: usize = 4;

/// Maximum number of keys of another kind that a batch passes over.
const MAX_PASSED: usize = 1024;

/// A full queue removes cancelled requests once this many callers were dropped.
const MIN_CANCELLED: usize = 512;

/// Maximum number and capacity of the buffers that are kept for reuse.
const MAX_SPARE: usize = 1024;
const MAX_SPARE_CAPACITY: usize = 4;

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::{Batch, MAX_ISOLATED_CALLS, MAX_OLD_CALLS, MAX_SOLO_CALLS, Queue, Queued};

    const MAX_BATCH: usize = 5;
    const BATCH_CALLS: usize = 2;

    #[derive(Clone, Copy, Debug, PartialEq)]
    struct NumberedRequest {
        key: u8,
        kind: u8,
        cost: u8,
        number: usize,
        is_cancelled: bool,
    }

    impl Queued for NumberedRequest {
        type Key = u8;
        type Kind = u8;

        fn key(&self) -> &u8 {
            &self.key
        }

        fn kind(&self) -> u8 {
            self.kind
        }

        fn max_batch(&self) -> usize {
            MAX_BATCH
        }

        fn max_isolated(&self) -> usize {
            if self.kind == 0 { MAX_BATCH } else { 1 }
        }

        fn is_joined_by(&self, later: &Self) -> bool {
            self.cost == later.cost
        }

        fn is_cancelled(&self) -> bool {
            self.is_cancelled
        }
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Push { key: u8, kind: u8, cost: u8, is_cancelled: bool },
        Fill,
        Age(usize),
        BucketAnswer(usize),
        RollBack(usize),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let push = (prop_oneof![0..6_u8, 0..64_u8], 0..2_u8, 0..2_u8, prop::bool::weighted(0.1));
        let step = prop_oneof![
            6 => push.prop_map(|(key, kind, cost, is_cancelled)| Step::Push { key, kind, cost, is_cancelled }),
            2 => Just(Step::Fill),
            2 => any::<usize>().prop_map(Step::Age),
            3 => any::<usize>().prop_map(Step::BucketAnswer),
            1 => any::<usize>().prop_map(Step::RollBack),
        ];
        prop::collection::vec(step, 0..200)
    }

    /// A queue, the calls in flight, and the requests of each key in the order of their answers.
    struct Model {
        queue: Queue<NumberedRequest>,
        flying: Vec<Batch<NumberedRequest>>,
        /// The call that waits to be filled.
        empty: Option<Batch<NumberedRequest>>,
        answered: HashMap<u8, Vec<usize>>,
    }

    impl Model {
        fn start(&mut self, batch: Batch<NumberedRequest>) {
            if batch.requests.is_empty() {
                assert!(self.empty.replace(batch).is_none(), "one empty call at a time");
                return;
            }
            let Batch { requests, flight } = &batch;
            assert!((1..=MAX_BATCH).contains(&requests.len()));
            assert!(requests.iter().all(|request| request.kind == requests[0].kind), "{requests:?}");
            let joins = |[one, next]: &[NumberedRequest; 2]| one.key != next.key || one.cost == next.cost;
            assert!(requests.array_windows().all(joins), "{requests:?}");
            let flies = |key| self.flying.iter().any(|other| other.flight.keys.contains(key));
            assert!(!flight.keys.iter().any(flies), "one call for a key at a time");
            self.flying.push(batch);
            let most = MAX_SOLO_CALLS + MAX_OLD_CALLS + MAX_ISOLATED_CALLS + MAX_OLD_CALLS;
            assert!(self.flying.len() <= most, "{} calls", self.flying.len());
        }

        fn fill(&mut self) {
            if let Some(batch) = self.empty.take().and_then(|Batch { flight, .. }| self.queue.fill_next(flight)) {
                self.start(batch);
            }
            self.start_all();
        }

        fn start_all(&mut self) {
            while let Some(batch) = self.queue.next() {
                self.start(batch);
            }
        }

        fn answer(&mut self, at: usize) {
            let Batch { requests, flight } = self.flying.swap_remove(at);
            for request in requests {
                self.answered.entry(request.key).or_default().push(request.number);
            }
            if let Some(filled) = self.queue.fill_next(flight) {
                self.start(filled);
            }
            self.start_all();
        }

        fn step(&mut self, number: usize, step: Step) {
            match step {
                Step::Push { key, kind, cost, is_cancelled } => {
                    self.queue.push(NumberedRequest { key, kind, cost, number, is_cancelled });
                    self.start_all();
                }
                Step::Fill => self.fill(),
                _ if self.flying.is_empty() => {}
                Step::Age(at) => {
                    let at = at % self.flying.len();
                    if !self.flying[at].flight.is_old {
                        self.queue.mark_old(&mut self.flying[at].flight);
                        self.start_all();
                    }
                }
                Step::BucketAnswer(at) => self.answer(at % self.flying.len()),
                Step::RollBack(at) => {
                    let Batch { requests, flight } = self.flying.swap_remove(at % self.flying.len());
                    self.queue.roll_back(flight, requests);
                    self.start_all();
                }
            }
        }
    }

    proptest! {
        #[test]
        fn requests_of_a_key_are_answered_once_and_in_order(steps in steps()) {
            let (queue, flying, answered) = (Queue::new(BATCH_CALLS, usize::MAX), Vec::new(), HashMap::new());
            let mut model = Model { queue, flying, empty: None, answered };
            let mut expected: HashMap<u8, Vec<usize>> = HashMap::new();
            for (number, step) in steps.into_iter().enumerate() {
                if let Step::Push { key, is_cancelled: false, .. } = step {
                    expected.entry(key).or_default().push(number);
                }
                model.step(number, step);
            }
            while !model.flying.is_empty() || model.empty.is_some() {
                model.fill();
                if !model.flying.is_empty() {
                    model.answer(0);
                }
            }
            prop_assert_eq!(model.answered, expected);
            prop_assert_eq!((model.queue.len(), model.queue.key_queues.len()), (0, 0));
        }
    }

    fn request(key: u8, number: usize) -> NumberedRequest {
        NumberedRequest { key, kind: 0, cost: 1, number, is_cancelled: false }
    }

    /// A request that is cancelled as soon as the queue has checked it.
    struct Leaving(Cell<bool>);

    impl Queued for Leaving {
        type Key = u8;
        type Kind = u8;

        fn key(&self) -> &u8 {
            &0
        }

        fn kind(&self) -> u8 {
            0
        }

        fn max_batch(&self) -> usize {
            1
        }

        fn max_isolated(&self) -> usize {
            1
        }

        fn is_joined_by(&self, _: &Self) -> bool {
            true
        }

        fn is_cancelled(&self) -> bool {
            self.0.replace(true)
        }
    }

    #[test]
    fn caller_that_leaves_as_its_batch_is_filled_blocks_no_key() {
        let mut queue = Queue::new(BATCH_CALLS, usize::MAX);
        for _ in 0..2 {
            queue.push(Leaving(Cell::new(false)));
            let Batch { requests, flight } = queue.next().expect("one that was there");
            assert_eq!(requests.len(), 1);
            queue.finish(flight, false);
        }
    }

    #[test]
    fn rolled_back_requests_go_first_and_key_by_key() {
        let mut queue = Queue::new(BATCH_CALLS, usize::MAX);
        for request in [request(1, 0), request(2, 1), request(1, 2)] {
            queue.push(request);
        }
        let Batch { requests, flight } = queue.batch().expect("two keys");
        queue.push(request(1, 3));
        queue.roll_back(flight, requests);
        let numbers = |batch: Option<Batch<NumberedRequest>>| {
            batch.map(|batch| batch.requests.iter().map(|request| request.number).collect())
        };
        assert_eq!(numbers(queue.next()), Some(vec![0, 2, 3]));
        assert_eq!(numbers(queue.next()), Some(vec![1]));
    }

    #[test]
    fn few_requests_are_called_alone_and_many_together() {
        let mut queue = Queue::new(BATCH_CALLS, usize::MAX);
        let push = |queue: &mut Queue<NumberedRequest>, key| {
            queue.push(request(key, 0));
            queue.next()
        };
        let alone: Vec<_> = (1..=4).filter_map(|key| push(&mut queue, key)).collect();
        assert!(alone.iter().all(|Batch { requests, .. }| requests.len() == 1), "{alone:?}");
        assert_eq!(alone.len(), 4);
        for key in 5..=10 {
            assert!(push(&mut queue, key).is_none(), "four calls are in flight");
        }
        for Batch { flight, .. } in alone {
            queue.finish(flight, false);
        }
        let empty = queue.next().expect("there is room");
        assert!(empty.requests.is_empty(), "{empty:?}");
        assert!(queue.next().is_none(), "one empty call at a time");
        let half = queue.fill_next(empty.flight).expect("requests wait");
        let empty = queue.next().expect("there is room for another call");
        let rest = queue.fill_next(empty.flight).expect("requests wait");
        assert_eq!((half.requests.len(), rest.requests.len()), (3, 3), "each call has its share");
        // The callers of the first half ask again, one of them beside a call that carries three.
        queue.finish(half.flight, false);
        let alone = push(&mut queue, 1).expect("four requests in all");
        assert_eq!(alone.requests.len(), 1);
    }

    #[test]
    fn store_on_several_servers_gets_one_key_in_each_of_many_calls() {
        let calls = 3;
        let mut queue = Queue::new(calls, 1);
        for number in 0..5_u8 {
            queue.push(request(number, number.into()));
            queue.push(request(number, number.into()));
        }
        let started: Vec<_> = std::iter::from_fn(|| queue.next()).collect();
        assert_eq!(started.len(), calls);
        assert!(started.iter().all(|batch| batch.flight.keys.len() == 1 && batch.requests.len() == 2));
        for Batch { flight, .. } in started {
            queue.finish(flight, false);
        }
        assert_eq!(std::iter::from_fn(|| queue.next()).count(), 2, "the keys that waited");
    }

    #[test]
    fn old_calls_leave_room_for_others() {
        let mut queue = Queue::new(BATCH_CALLS, usize::MAX);
        for key in 0..MAX_OLD_CALLS + MAX_SOLO_CALLS {
            queue.push(request(u8::try_from(key).expect("few"), 0));
            let Batch { requests, mut flight } = queue.next().expect("a call of its own");
            assert_eq!(requests.len(), 1);
            if key < MAX_OLD_CALLS {
                queue.mark_old(&mut flight);
            }
        }
        queue.push(request(99, 0));
        assert!(queue.next().is_none());
    }

    #[test]
    fn rolled_back_requests_are_isolated_until_the_last() {
        let mut queue = Queue::new(BATCH_CALLS, usize::MAX);
        // Requests of this kind are isolated one at a time.
        let alone = |number| NumberedRequest { kind: 1, ..request(1, number) };
        (0..3).for_each(|number| queue.push(alone(number)));
        let Batch { requests, flight } = queue.next().expect("one key");
        queue.push(alone(3));
        queue.roll_back(flight, requests);
        for number in 0..3 {
            let Batch { requests, flight } = queue.next().expect("an isolated call");
            assert!(flight.is_isolated && requests == [alone(number)], "{requests:?}");
            queue.finish(flight, false);
        }
        assert!(queue.next().is_some_and(|batch| !batch.flight.is_isolated));
    }

    #[test]
    fn locked_keys_that_were_called_alone_leave_room_for_others() {
        let mut queue = Queue::new(BATCH_CALLS, usize::MAX);
        for key in 0..10 {
            queue.push(request(key, 0));
            let Batch { mut flight, .. } = queue.next().expect("a call of its own");
            queue.mark_old(&mut flight);
        }
        queue.push(request(10, 0));
        assert!(queue.next().is_some_and(|Batch { requests, .. }| requests.len() == 1));
    }

    #[test]
    fn full_queue_makes_room_once_many_callers_have_gone() {
        let mut queue = Queue::new(BATCH_CALLS, usize::MAX);
        let cancelled = |number| NumberedRequest { is_cancelled: true, ..request(1, number) };
        (0..1000).for_each(|number| queue.push(cancelled(number)));
        assert_eq!(queue.full(&1, 1000), Some(1000));
        assert_eq!(queue.full(&1, 2000), Some(1000), "half of it is one key's");
        assert_eq!(queue.full(&2, 2000), None);
        (0..512).for_each(|_| queue.count_cancelled());
        assert_eq!(queue.full(&1, 1000), None);
    }
}
