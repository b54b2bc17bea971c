use std::collections::{HashMap, VecDeque};
use std::mem::{replace, take};
use std::sync::Arc;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::reservation::Turn;
use super::turns::Turns;
use crate::model::{Error, Key, Take, TakeError};
use crate::store::{Capabilities, Store};

/// Those who wait, in a lane for each key.
#[derive(Debug)]
pub(super) struct Waiting<S: Store> {
    lanes: HashMap<Key, Lane<S>>,
    /// How many stand in all of them.
    len: usize,
    /// How many found no room since those who left made some.
    refused: usize,
    /// How many requests for several buckets each are one call.
    most_together: usize,
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

/// What goes in one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Requests for one bucket each.
    One,
    /// For several each: a store decides many of them at once, but has none of them wait.
    Several,
    /// What it decides by itself: if another call fails, its tokens are not lost, too.
    Alone,
}

impl<S: Store> Default for Lane<S> {
    fn default() -> Self {
        Self { waiting: VecDeque::new(), turns: Turns::default(), served: false, forgotten: false }
    }
}

pub(super) type Answer<S> = Result<Result<Turn<S>, TakeError>, Error>;

#[derive(Debug)]
pub(super) struct Waiter<S: Store> {
    pub(super) take: Take,
    pub(super) until: Option<Instant>,
    pub(super) answer: oneshot::Sender<Answer<S>>,
}

impl<S: Store> Waiting<S> {
    pub(super) fn new(capabilities: Capabilities) -> Self {
        Self { lanes: HashMap::new(), len: 0, refused: 0, most_together: capabilities.most_together.max(1) }
    }

    /// The turns of those who went on from a lane; who serves it has them.
    pub(super) fn turns(&mut self, key: &Key) -> Turns {
        self.lanes.get_mut(key).map(|lane| take(&mut lane.turns)).unwrap_or_default()
    }

    /// Whether a lane is gone, or somebody is about to forget it.
    pub(super) fn is_forgotten(&self, key: &Key) -> bool {
        self.lanes.get(key).is_none_or(|lane| lane.forgotten)
    }

    /// Puts somebody at the end of their lane, and says whether nobody serves it; who asks has to.
    pub(super) fn push(&mut self, waiter: Waiter<S>) -> Result<bool, Error> {
        let was_full = self.len >= MOST;
        // To look at all for each of thousands would hold up those who are served.
        if was_full && (self.refused < 8 || self.refused.is_multiple_of(64)) {
            self.forget_those_who_left();
        }
        if self.len >= MOST {
            self.refused += 1;
            return Err(Error::Overloaded(self.len));
        }
        if was_full || self.len < MOST / 2 {
            self.refused = 0;
        }
        self.len += 1;
        let key = waiter.take.key().clone();
        let lane = self.lanes.entry(key).or_default();
        lane.waiting.push_back(waiter);
        Ok(!replace(&mut lane.served, true))
    }

    /// Who goes in the next call for a key; `None` if nobody stands there, and so nobody serves the lane from then on.
    pub(super) fn next(&mut self, key: &Key, most: usize, turns: &mut Turns) -> Option<Vec<Waiter<S>>> {
        let lane = self.lanes.get_mut(key)?;
        if lane.waiting.is_empty() {
            (lane.turns, lane.served) = (take(turns), false);
            return None;
        }
        let kind = lane.waiting[0].kind();
        let most = match kind {
            Kind::One => most,
            Kind::Several => self.most_together,
            Kind::Alone => 1,
        };
        let follows = |waiter: &Waiter<S>, before: &Waiter<S>| match kind {
            Kind::Several => waiter.waits_behind(before),
            _ => waiter.kind() == kind,
        };
        let pairs = lane.waiting.iter().zip(lane.waiting.iter().skip(1));
        let most = 1 + pairs.take(most - 1).take_while(|(before, waiter)| follows(waiter, before)).count();
        self.len -= most;
        Some(lane.waiting.drain(..most).filter(|waiter| !waiter.answer.is_closed()).collect())
    }

    /// Forgets a lane if nobody stands or waits there any more; else says until when somebody does, if nobody serves it,
    /// who would forget it afterwards.
    pub(super) fn forget(&mut self, key: &Key) -> Option<Instant> {
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

    /// Nobody is about to forget a lane any more: if somebody waits there still, who serves it next has to.
    pub(super) fn leave(&mut self, key: &Key) {
        if self.forget(key).is_some()
            && let Some(lane) = self.lanes.get_mut(key)
        {
            lane.forgotten = false;
        }
    }

    /// How many keys have a lane.
    #[cfg(test)]
    pub(super) fn lanes(&self) -> usize {
        self.lanes.len()
    }

    /// Tells those who stand in a lane for longer than they would wait what those were told who were asked for: the store does
    /// not answer.
    pub(super) fn tell_overdue(&mut self, key: &Key, error: &Error) {
        let Some(lane) = self.lanes.get_mut(key) else { return };
        let (overdue, waiting) = take(&mut lane.waiting).into_iter().partition(Waiter::is_overdue);
        lane.waiting = waiting;
        self.len -= overdue.len();
        tell_unasked(overdue, error);
    }

    /// Sends away who stands in a lane: nobody serves it.
    pub(super) fn abandon(&mut self, key: &Key) {
        let waiting = self.lanes.remove(key).map_or_else(VecDeque::new, |lane| lane.waiting);
        self.len -= waiting.len();
        let ended = std::io::Error::other("the task that made the calls has ended");
        tell(waiting, &Error::Unavailable(Arc::new(ended)));
    }

    fn forget_those_who_left(&mut self) {
        for lane in self.lanes.values_mut() {
            lane.waiting.retain(|waiter| !waiter.answer.is_closed());
        }
        self.len = self.lanes.values().map(|lane| lane.waiting.len()).sum();
    }
}

impl<S: Store> Waiter<S> {
    pub(super) fn kind(&self) -> Kind {
        match self.take.limits.len() {
            _ if self.take.window().is_some() => Kind::Alone,
            1 => Kind::One,
            _ if self.take.id.is_some() => Kind::Alone,
            _ => Kind::Several,
        }
    }

    /// Whether it is under the same several limits as another one that is before it, and finds no tokens if that does not.
    fn waits_behind(&self, before: &Self) -> bool {
        let limits = || self.take.limits().zip(before.take.limits());
        self.kind() == Kind::Several
            && self.take.limits.len() == before.take.limits.len()
            && limits().all(|(own, other)| own.key() == other.key() && own.rule() == other.rule())
            && limits().all(|(own, other)| own.tokens() >= other.tokens() && own.kept() >= other.kept())
    }

    /// Whether it has waited for as long as it would.
    pub(super) fn is_overdue(&self) -> bool {
        self.until.is_some_and(|until| until <= Instant::now())
    }
}

/// Why there is no answer. Who has given up does not want it any more.
pub(super) fn tell<S: Store>(waiters: impl IntoIterator<Item = Waiter<S>>, error: &Error) {
    for waiter in waiters {
        drop(waiter.answer.send(Err(error.clone())));
    }
}

/// The same to those who were not asked for: nothing of theirs was taken, whatever is known of the others.
pub(super) fn tell_unasked<S: Store>(waiters: impl IntoIterator<Item = Waiter<S>>, error: &Error) {
    let known = if error.is_outcome_unknown() { Error::Unavailable(Arc::new(error.clone())) } else { error.clone() };
    tell(waiters, &known);
}

/// How many wait at most, for all keys: beyond it the database is too slow for what is asked.
const MOST: usize = 32_768;
