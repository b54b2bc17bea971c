use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use tokio::sync::oneshot;

use super::leading::Leading;
use crate::model::{Error, Key, Outcome, Take};
use crate::telemetry::{QUEUE, Share};

/// A caller who waits for an answer.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) take: Take,
    pub(super) answer: oneshot::Sender<Result<Outcome, Error>>,
}

impl Waiting {
    /// Whether a later request for the same bucket may go in the same call.
    fn goes_with(&self, later: &Self) -> bool {
        match (self.take.is_momentary(), later.take.is_momentary()) {
            // Equal ones are one entry; those for several buckets each are entries of their own anyway.
            (true, true) => self.take.limits.len() > 1 || self.take == later.take,
            (one, other) => one == other,
        }
    }
}

/// Those who wait for the calls of a lane, in the order in which they came.
#[derive(Debug)]
pub(super) struct Queue {
    /// How many requests one call carries.
    most_at_once: usize,
    waiting: VecDeque<Waiting>,
    /// Keys that a call beside the lane's own is under way for.
    busy: HashMap<Key, Behind>,
    /// How many stand here in all.
    len: usize,
    /// The same, for those who watch.
    shown: Share,
    /// How many found no room since those who gave up made some.
    refused: usize,
    /// Whether somebody makes calls for those who wait.
    served: bool,
    /// How many calls are under way that keys are held for.
    holds: usize,
}

/// Who waits until a call beside the lane's own has ended.
#[derive(Debug, Default)]
struct Behind {
    waiting: Vec<Waiting>,
    /// The call, if the task of its caller makes it.
    call: Option<Leading>,
}

impl Queue {
    pub(super) fn new(most_at_once: usize) -> Self {
        let (waiting, busy) = (VecDeque::new(), HashMap::new());
        Self { most_at_once, waiting, busy, len: 0, shown: Share::of(QUEUE), refused: 0, served: false, holds: 0 }
    }

    /// Stands in line, and says which call has to be handed over: whoever waits depends on it from then on.
    pub(super) fn push(&mut self, waiting: Waiting) -> Result<Option<Leading>, Error> {
        let is_full = |queue: &Self| {
            let behind = queue.busy.get(waiting.take.key()).map_or(0, |behind| behind.waiting.len());
            if queue.len >= MOST { Some(queue.len) } else { Some(behind).filter(|behind| *behind >= MOST_BEHIND) }
        };
        // To look through the whole line for each of thousands would hold up those who are served.
        let was_full = is_full(self).is_some();
        if was_full && (self.refused < 8 || self.refused.is_multiple_of(64)) {
            self.forget_those_who_gave_up();
        }
        if let Some(len) = is_full(self) {
            self.refused += 1;
            return Err(Error::Overloaded(len));
        }
        // Not for one that another key's line has room for.
        if was_full || self.len < MOST_BEHIND {
            self.refused = 0;
        }
        self.len += 1;
        self.shown.set(self.len);
        Ok(self.stand(waiting))
    }

    fn stand(&mut self, waiting: Waiting) -> Option<Leading> {
        let Some(behind) = self.busy.get_mut(waiting.take.key()) else {
            self.waiting.push_back(waiting);
            return None;
        };
        behind.waiting.push(waiting);
        behind.call.take()
    }

    /// Whether a request need wait for nobody: so few are under way that a call of its own is no loss.
    pub(super) fn need_not_wait(&self, take: &Take) -> bool {
        is_for_one(take)
            && !self.served
            && self.waiting.is_empty()
            && self.holds < FEW
            && !self.busy.contains_key(take.key())
    }

    /// The calls that tasks of their callers make.
    pub(super) fn led(&mut self) -> Vec<Leading> {
        self.busy.values_mut().filter_map(|behind| behind.call.take()).collect()
    }

    /// Holds the key for a call that the task of its caller makes.
    pub(super) fn lead(&mut self, key: &Key, call: Leading) {
        self.holds += 1;
        self.busy.insert(key.clone(), Behind { waiting: Vec::new(), call: Some(call) });
    }

    /// Whether somebody waits and nobody makes calls; who asks has to [serve](super::lane::Lane::serve) them.
    pub(super) fn is_unserved(&mut self) -> bool {
        !self.waiting.is_empty() && !std::mem::replace(&mut self.served, true)
    }

    /// Whether nobody waits, and so nobody makes calls from then on.
    pub(super) fn is_done(&mut self) -> bool {
        self.served = !self.waiting.is_empty();
        !self.served
    }

    /// Sends everybody away who waits for the next call: nobody makes it.
    pub(super) fn abandon(&mut self) {
        self.len -= self.waiting.len();
        self.shown.set(self.len);
        self.served = false;
        for waiting in self.waiting.drain(..) {
            let ended = std::io::Error::other("the task that made the calls has ended");
            // Who has given up does not want it any more.
            drop(waiting.answer.send(Err(Error::Unavailable(Arc::new(ended)))));
        }
    }

    fn forget_those_who_gave_up(&mut self) {
        self.waiting.retain(|waiting| !waiting.answer.is_closed());
        for behind in self.busy.values_mut() {
            behind.waiting.retain(|waiting| !waiting.answer.is_closed());
        }
        self.len = self.waiting.len() + self.busy.values().map(|behind| behind.waiting.len()).sum::<usize>();
        self.shown.set(self.len);
    }

    /// How many wait for the next call.
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Who goes in the next call, in the order of their keys: of each bucket only what can be answered together.
    pub(super) fn next(&mut self) -> Vec<Waiting> {
        let most = self.waiting.len().min(self.most_at_once);
        let mut all: Vec<(usize, Waiting)> = self.waiting.drain(..most).enumerate().collect();
        self.len -= all.len();
        all.retain(|(_, waiting)| !waiting.answer.is_closed());
        let Some((_, oldest)) = all.first() else {
            self.shown.set(self.len);
            return Vec::new();
        };
        // The oldest says of which kind the call is, so that none is passed over for ever.
        let momentary = oldest.take.is_momentary();
        all.sort_unstable_by(|(place, one), (other_place, other)| {
            one.take.key().cmp(other.take.key()).then(place.cmp(other_place))
        });
        let (mut call, mut later): (Vec<Waiting>, Vec<(usize, Waiting)>) = (Vec::with_capacity(all.len()), Vec::new());
        for (place, waiting) in all {
            let key = waiting.take.key();
            let behind = later.last().is_some_and(|(_, other)| other.take.key() == key);
            let goes = match call.last().filter(|other| other.take.key() == key) {
                Some(before) => before.goes_with(&waiting),
                None => waiting.take.is_momentary() == momentary,
            };
            if goes && !behind {
                call.push(waiting);
            } else {
                later.push((place, waiting));
            }
        }
        later.sort_unstable_by_key(|(place, _)| *place);
        self.len += later.len();
        self.shown.set(self.len);
        for (_, waiting) in later.into_iter().rev() {
            self.waiting.push_front(waiting);
        }
        call
    }

    /// Whether there may be one more call that keys are held for.
    pub(super) fn may_hold(&self) -> bool {
        self.holds < MOST_HOLDS
    }

    /// Leaves the keys' requests waiting until [`release`](Self::release).
    pub(super) fn hold(&mut self, keys: &[Key]) {
        self.holds += 1;
        self.busy.extend(keys.iter().map(|key| (key.clone(), Behind::default())));
        // Some may have come since the call was made up.
        for waiting in std::mem::take(&mut self.waiting) {
            self.stand(waiting);
        }
    }

    /// Puts requests back whose call was undone, before what came since for their keys, which stay [held](Self::hold) without a
    /// call. They are in the order of their keys.
    pub(super) fn put_back(&mut self, undone: Vec<Waiting>) {
        self.len += undone.len();
        self.shown.set(self.len);
        let mut undone = undone.into_iter().peekable();
        while let Some(first) = undone.next() {
            let key = first.take.key().clone();
            let mut of_key = vec![first];
            of_key.extend(std::iter::from_fn(|| undone.next_if(|other| *other.take.key() == key)));
            self.busy.entry(key).or_default().waiting.splice(0..0, of_key);
        }
    }

    /// Whether anybody waits for one of the held keys.
    pub(super) fn is_behind(&self, keys: &[Key]) -> bool {
        keys.iter().filter_map(|key| self.busy.get(key)).any(|behind| !behind.waiting.is_empty())
    }

    /// What goes in one call for held keys: of each what can be answered together.
    pub(super) fn behind(&mut self, keys: &[Key]) -> Vec<Waiting> {
        let mut call: Vec<Waiting> = Vec::new();
        for key in keys {
            let Some(behind) = self.busy.get_mut(key) else { continue };
            let before = behind.waiting.len();
            behind.waiting.retain(|waiting| !waiting.answer.is_closed());
            self.len -= before - behind.waiting.len();
            let kind = call.first().or_else(|| behind.waiting.first()).map(|first| first.take.is_momentary());
            let goes = |first: &Waiting, other: &Waiting| {
                Some(first.take.is_momentary()) == kind && (std::ptr::eq(first, other) || first.goes_with(other))
            };
            let together = behind.waiting.iter().take_while(|other| goes(&behind.waiting[0], other)).count();
            let room = self.most_at_once.saturating_sub(call.len());
            call.extend(behind.waiting.drain(..together.min(room)));
        }
        self.len -= call.len();
        self.shown.set(self.len);
        call
    }

    /// A call that keys are held for has ended.
    pub(super) fn end_hold(&mut self) {
        self.holds -= 1;
    }

    /// Lets the keys' requests go with the next call, and says whether nobody makes it, as [`is_unserved`](Self::is_unserved) does.
    pub(super) fn release(&mut self, keys: &[Key]) -> bool {
        for key in keys {
            self.waiting.extend(self.busy.remove(key).unwrap_or_default().waiting);
        }
        self.is_unserved()
    }
}

/// How many wait at most: beyond it the database is too slow for what is asked.
pub(super) const MOST: usize = 32_768;

/// How many wait at most behind one call: those for other buckets find room still.
pub(super) const MOST_BEHIND: usize = MOST / 4;

/// How many calls may be under way that the lane does not wait for; the next one it waits for, however long. Those for what was
/// undone have turns of their own.
pub(super) const MOST_HOLDS: usize = 5;

/// Whether it holds all its buckets' places in line: those of several buckets stand in that of their first.
pub(super) fn is_for_one(take: &Take) -> bool {
    take.limits.len() == 1
}

/// How many requests are so few that each is decided sooner by a call of its own than by the next one for many. The calls leave
/// room for one beside them that is slow.
pub(super) const FEW: usize = MOST_HOLDS - 1;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::sync::oneshot;
    use uuid::Uuid;

    use super::{MOST, MOST_BEHIND, Queue, Waiting};
    use crate::model::{Key, Take};

    fn key(key: &str) -> Key {
        Key::try_from(key).unwrap()
    }

    fn push(queue: &mut Queue, take: Take) -> oneshot::Receiver<Result<crate::model::Outcome, crate::model::Error>> {
        let (answer, answered) = oneshot::channel();
        assert!(queue.push(Waiting { take, answer }).unwrap().is_none());
        answered
    }

    fn next(queue: &mut Queue) -> String {
        let call = queue.next();
        call.iter().fold(String::new(), |call, Waiting { take, .. }| format!("{call}{}{} ", take.key(), take.cost))
    }

    #[test]
    fn a_call_carries_what_is_equal_of_each_bucket_and_the_rest_keeps_its_order() {
        let mut queue = Queue::new(1024);
        let takes = [("b", 1), ("a", 1), ("b", 1), ("b", 2), ("b", 1), ("a", 1)];
        let _kept: Vec<_> = takes.map(|(k, cost)| push(&mut queue, Take::from(key(k)).cost(cost))).into();
        assert_eq!([next(&mut queue), next(&mut queue), next(&mut queue)], ["a1 a1 b1 b1 ", "b2 ", "b1 "]);
        assert_eq!((queue.len(), queue.len), (0, 0));
    }

    #[test]
    fn requests_that_wait_or_have_an_id_go_in_calls_of_their_own_in_their_turn() {
        let mut queue = Queue::new(1024);
        let wait = |cost| Take::from(key("a")).cost(cost).max_wait(Duration::from_secs(1));
        let once = Take::from(key("a")).cost(3).id(Uuid::nil(), Duration::ZERO);
        let takes = [Take::from(key("b")), wait(1), wait(2), once, Take::from(key("a")), wait(4)];
        let _kept: Vec<_> = takes.map(|take| push(&mut queue, take)).into();
        assert_eq!([next(&mut queue), next(&mut queue), next(&mut queue)], ["b1 ", "a1 a2 a3 ", "a1 "]);
        assert_eq!(next(&mut queue), "a4 ");
    }

    #[test]
    fn who_gives_up_in_line_is_not_asked_for() {
        let mut queue = Queue::new(1024);
        drop(push(&mut queue, Take::from(key("a"))));
        assert!(queue.next().is_empty());
        assert_eq!(queue.len, 0);
    }

    #[test]
    fn a_key_that_is_held_waits_for_its_release_behind_what_came_before() {
        let mut queue = Queue::new(1024);
        let _kept = [1, 2].map(|cost| push(&mut queue, Take::from(key("a")).cost(cost)));
        let _other = push(&mut queue, Take::from(key("b")));
        queue.hold(&[key("a")]);
        let _later = push(&mut queue, Take::from(key("a")).cost(3));
        assert_eq!(next(&mut queue), "b1 ");
        queue.release(&[key("a")]);
        assert_eq!([next(&mut queue), next(&mut queue), next(&mut queue)], ["a1 ", "a2 ", "a3 "]);
        assert_eq!(queue.len, 0);
    }

    #[test]
    fn what_was_undone_goes_before_what_came_since() {
        let mut queue = Queue::new(1024);
        let _kept: Vec<_> =
            [("a", 1), ("a", 1), ("b", 2)].map(|(k, cost)| push(&mut queue, Take::from(key(k)).cost(cost))).into();
        let undone = queue.next();
        let keys = [key("a"), key("b")];
        queue.hold(&keys);
        let _later: Vec<_> =
            [("b", 3), ("a", 1), ("a", 4)].map(|(k, cost)| push(&mut queue, Take::from(key(k)).cost(cost))).into();
        queue.put_back(undone);
        assert_eq!(queue.len, 6);
        let mut behind = || {
            queue
                .behind(&keys)
                .iter()
                .fold(String::new(), |call, one| format!("{call}{}{} ", one.take.key(), one.take.cost))
        };
        assert_eq!([behind(), behind(), behind()], ["a1 a1 a1 b2 ", "a4 b3 ", ""]);
        assert_eq!((queue.len, queue.is_behind(&keys)), (0, false));
    }

    #[test]
    fn those_behind_one_call_leave_room_for_others() {
        let mut queue = Queue::new(1024);
        queue.hold(&[key("a")]);
        let mut behind: Vec<_> = (0..MOST_BEHIND).map(|_| push(&mut queue, Take::from(key("a")))).collect();
        let (answer, _answered) = oneshot::channel();
        let error = queue.push(Waiting { take: Take::from(key("a")), answer }).unwrap_err();
        assert!(error.to_string().starts_with("8192 requests wait"), "{error}");
        push(&mut queue, Take::from(key("b")));
        // Whoever has left waits no more.
        behind.truncate(10);
        push(&mut queue, Take::from(key("a")));
    }

    #[test]
    fn a_full_line_takes_no_more_on_until_some_give_up() {
        let mut queue = Queue::new(1024);
        let waiting: Vec<_> = (0..MOST).map(|_| push(&mut queue, Take::from(key("a")))).collect();
        let (answer, _answered) = oneshot::channel();
        let error = queue.push(Waiting { take: Take::from(key("b")), answer }).unwrap_err();
        assert!(error.to_string().starts_with("32768 requests wait"), "{error}");
        drop(waiting);
        push(&mut queue, Take::from(key("b")));
    }
}
