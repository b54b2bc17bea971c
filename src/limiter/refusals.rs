use std::collections::{BTreeMap, HashMap, VecDeque};
use std::mem::replace;
use std::sync::Arc;

use foldhash::fast::RandomState;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::Key;

/// Until when others refuse requests of clients of this limiter and its clones, by the keys that somebody waits for: who was given
/// a turn that comes before asks for another one.
#[derive(Debug, Default)]
pub(crate) struct Refusals(Mutex<HashMap<Key, Awaited, RandomState>>);

#[derive(Debug, Default)]
struct Awaited {
    waiters: usize,
    refused: u64,
    /// The ends of all refusals.
    until: Ends,
    /// And of those that the store knows: whoever asks from then on is held back by it.
    held: Ends,
    /// Whom to wake, by their turns; several may have one.
    asleep: BTreeMap<(Instant, usize), Arc<Notify>>,
}

impl Refusals {
    /// From now until it is dropped, refusals of these keys are seen.
    pub(crate) fn watch<'a>(&'a self, keys: &'a [Key]) -> Watch<'a> {
        let mut awaited = self.0.lock();
        for key in keys {
            awaited.entry(key.clone()).or_default().waiters += 1;
        }
        let seen = keys.iter().map(|key| awaited[key].refused).collect();
        Watch { refusals: self, keys, seen, wakes: Arc::default() }
    }

    /// Turns before `until` are worth nothing any more, and the store does not know yet: nobody asks it again before they have to.
    pub(crate) fn add(&self, key: &Key, until: Instant) {
        if let Some(awaited) = self.0.lock().get_mut(key) {
            awaited.add(until);
        }
    }

    /// They are worth what they were: the store can hold nobody back.
    pub(crate) fn withdraw(&self, key: &Key, until: Instant) {
        if let Some(awaited) = self.0.lock().get_mut(key) {
            awaited.until.0.retain(|(_, end)| *end != until);
        }
    }

    /// The store knows: neither are those that it has given meanwhile, and nobody need wait for them.
    pub(crate) fn is_held(&self, key: &Key, until: Instant) {
        if let Some(awaited) = self.0.lock().get_mut(key) {
            awaited.add(until);
            awaited.held.push(awaited.refused, until);
            awaited.asleep.range(..(until, 0)).for_each(|(_, wakes)| wakes.notify_one());
        }
    }
}

impl Awaited {
    fn add(&mut self, until: Instant) {
        self.refused += 1;
        self.until.push(self.refused, until);
    }
}

/// When refusals end, by their numbers; only those that outlast all that came after them.
#[derive(Debug, Default)]
struct Ends(VecDeque<(u64, Instant)>);

impl Ends {
    fn push(&mut self, number: u64, until: Instant) {
        let now = Instant::now();
        while self.0.pop_back_if(|(_, end)| *end <= until.max(now)).is_some() {}
        self.0.push_back((number, until));
    }

    /// The latest of those that came after so many.
    fn latest_after(&self, seen: u64) -> Option<Instant> {
        let after = self.0.partition_point(|(number, _)| *number <= seen);
        self.0.get(after).map(|(_, end)| *end)
    }
}

/// Somebody who waits for a turn.
#[derive(Debug)]
pub(crate) struct Watch<'a> {
    refusals: &'a Refusals,
    keys: &'a [Key],
    /// How many refusals of each of them were there when it was asked.
    seen: Vec<u64>,
    wakes: Arc<Notify>,
}

impl<'a> Watch<'a> {
    /// Of which of them somebody has been refused, since it was asked last, until after this turn.
    pub(crate) fn refused(&mut self, turn: Instant) -> Vec<&'a Key> {
        let awaited = self.refusals.0.lock();
        let news = self.keys.iter().zip(&mut self.seen).filter_map(|(key, seen)| {
            let Awaited { refused, until, held, .. } = &awaited[key];
            let seen = replace(seen, *refused);
            // What is held is not withdrawn with another one's end.
            (Some(turn) < until.latest_after(seen).max(held.latest_after(seen))).then_some(key)
        });
        news.collect()
    }

    /// Returns once that is so of one that counts, and the store knows: whoever waits for this turn need not do so any longer.
    pub(crate) async fn is_void(&self, turn: Instant, counts: impl Fn(&Key) -> bool) {
        let _asleep = Asleep::new(self, turn);
        while !self.is_held(turn, &counts) {
            self.wakes.notified().await;
        }
    }

    fn is_held(&self, turn: Instant, counts: impl Fn(&Key) -> bool) -> bool {
        let awaited = self.refusals.0.lock();
        let mut keys = self.keys.iter().zip(&self.seen);
        keys.any(|(key, seen)| Some(turn) < awaited[key].held.latest_after(*seen) && counts(key))
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        let mut awaited = self.refusals.0.lock();
        for key in self.keys {
            if let Some(of_key) = awaited.get_mut(key) {
                of_key.waiters -= 1;
                if of_key.waiters == 0 {
                    awaited.remove(key);
                }
            }
        }
    }
}

/// Is woken, until it is dropped.
struct Asleep<'a> {
    watch: &'a Watch<'a>,
    at: (Instant, usize),
}

impl<'a> Asleep<'a> {
    fn new(watch: &'a Watch<'a>, turn: Instant) -> Self {
        let at = (turn, Arc::as_ptr(&watch.wakes).addr());
        let mut awaited = watch.refusals.0.lock();
        for key in watch.keys {
            awaited.entry(key.clone()).or_default().asleep.insert(at, Arc::clone(&watch.wakes));
        }
        Self { watch, at }
    }
}

impl Drop for Asleep<'_> {
    fn drop(&mut self) {
        let mut awaited = self.watch.refusals.0.lock();
        for key in self.watch.keys {
            if let Some(of_key) = awaited.get_mut(key) {
                of_key.asleep.remove(&self.at);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Waker};
    use std::time::Duration;

    use super::*;

    fn key(number: u32) -> Key {
        Key::try_from(format!("host:{number}")).unwrap()
    }

    #[test]
    fn refusals_are_seen_by_those_who_wait_for_that_key_and_by_nobody_else() {
        let (refusals, own, both) = (Refusals::default(), [key(0)], [key(10_000), key(0)]);
        let turn = Instant::now();
        let until = turn + Duration::from_secs(1);
        refusals.add(&own[0], until);
        let (mut first, mut second) = (refusals.watch(&own), refusals.watch(&both));
        assert!(first.refused(turn).is_empty(), "that was before");
        for number in 1..10_000 {
            refusals.add(&key(number), until);
        }
        assert!(first.refused(turn).is_empty() && second.refused(turn).is_empty(), "others were");
        refusals.add(&own[0], until);
        assert_eq!(first.refused(turn), [&own[0]]);
        assert!(first.refused(turn).is_empty(), "it asked for another turn since");
        drop(first);
        assert_eq!(second.refused(turn), [&own[0]]);
        refusals.add(&both[0], until);
        assert_eq!(second.refused(turn), [&both[0]]);
        refusals.add(&both[0], until);
        assert!(second.refused(until).is_empty(), "its turn comes when it is over");
        drop(second);
        assert!(refusals.0.lock().is_empty(), "nobody waits");
    }

    #[test]
    fn a_turn_is_void_by_what_was_refused_after_it_was_given_and_not_by_what_was_before() {
        let (refusals, keys) = (Refusals::default(), [key(0)]);
        let [soon, turn, late] = [1, 2, 60].map(|s| Instant::now() + Duration::from_secs(s));
        let mut watch = refusals.watch(&keys);
        refusals.is_held(&keys[0], late);
        assert_eq!(watch.refused(turn), [&keys[0]]);
        // Somebody gave back what held it until then, so the store gave this turn nevertheless.
        refusals.is_held(&keys[0], soon);
        assert!(!watch.is_held(turn, |_| true) && watch.is_held(Instant::now(), |_| true));
        assert!(watch.refused(turn).is_empty());
        for end in [late, turn, soon] {
            refusals.is_held(&keys[0], end);
        }
        assert!(watch.is_held(turn, |_| true), "the first of them outlasts it");
        assert_eq!(watch.refused(turn), [&keys[0]]);
        let ends = &refusals.0.lock()[&keys[0]].until.0;
        assert_eq!(ends.iter().map(|(_, end)| *end).collect::<Vec<_>>(), [late, turn, soon]);
    }

    #[test]
    fn who_waits_is_woken_when_the_store_knows_that_the_turn_comes_too_early() {
        let (refusals, keys) = (Refusals::default(), [key(0), key(1)]);
        let [soon, until, late] = [1, 2, 3].map(|s| Instant::now() + Duration::from_secs(s));
        let watch = refusals.watch(&keys);
        let mut context = Context::from_waker(Waker::noop());
        {
            let (mut first, mut last) = (pin!(watch.is_void(soon, |_| true)), pin!(watch.is_void(late, |_| true)));
            assert!(first.as_mut().poll(&mut context).is_pending() && last.as_mut().poll(&mut context).is_pending());
            refusals.add(&keys[1], until);
            assert!(first.as_mut().poll(&mut context).is_pending(), "the store would give the same turn again");
            refusals.is_held(&keys[1], until);
            assert!(last.as_mut().poll(&mut context).is_pending());
            assert!(first.as_mut().poll(&mut context).is_ready());
            assert!(pin!(watch.is_void(soon, |_| true)).poll(&mut context).is_ready(), "also who begins to wait then");
        }
        assert!(refusals.0.lock().values().all(|awaited| awaited.asleep.is_empty()));
    }
}
