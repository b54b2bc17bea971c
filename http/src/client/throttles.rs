//! Ends of upstream throttles. A request that is scheduled before the end of a throttle reserves again.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::mem::replace;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;
use tollgate::Key;

/// Ends of the throttles of those buckets that requests of a client limit and its clones wait for.
#[derive(Debug, Default)]
pub(super) struct Throttles(Mutex<HashMap<Key, Throttled>>);

#[derive(Debug, Default)]
struct Throttled {
    waiters: usize,
    /// How many times the bucket was throttled.
    count: u64,
    /// Ends of all throttles.
    announced: Ends,
    /// Ends of the throttles that the store has. It schedules later reservations after them.
    stored: Ends,
    /// Waiters to wake, by scheduled time. The address tells waiters with the same time apart.
    sleepers: BTreeMap<(Instant, usize), Arc<Notify>>,
}

impl Throttles {
    /// Records throttles of these keys until the watch is dropped.
    pub(super) fn watch<'a>(&'a self, keys: &'a [Key]) -> Watch<'a> {
        let mut throttled = self.0.lock();
        for key in keys {
            throttled.entry(key.clone()).or_default().waiters += 1;
        }
        let seen = keys.iter().map(|key| throttled[key].count).collect();
        Watch { throttles: self, keys, seen, wake: Arc::default() }
    }

    /// Revokes reservations scheduled before `until`. Wakes no waiter, because the store would schedule it at the same
    /// time again until it has the throttle.
    pub(super) fn announce(&self, key: &Key, until: Instant) {
        if let Some(throttled) = self.0.lock().get_mut(key) {
            throttled.announce(until);
        }
    }

    /// Withdraws an announcement that the store cannot apply.
    pub(super) fn withdraw(&self, key: &Key, until: Instant) {
        if let Some(throttled) = self.0.lock().get_mut(key) {
            throttled.announced.0.retain(|(_, end)| *end != until);
        }
    }

    /// Wakes the waiters scheduled before `until`, now that the store has the throttle. Also revokes reservations that
    /// the store made since the announcement.
    pub(super) fn stored(&self, key: &Key, until: Instant) {
        if let Some(throttled) = self.0.lock().get_mut(key) {
            throttled.announce(until);
            throttled.stored.push(throttled.count, until);
            throttled.sleepers.range(..(until, 0)).for_each(|(_, wake)| wake.notify_one());
        }
    }
}

impl Throttled {
    fn announce(&mut self, until: Instant) {
        self.count += 1;
        self.announced.push(self.count, until);
    }
}

/// Ends of throttles by number. Keeps only those that outlast all later ones.
#[derive(Debug, Default)]
struct Ends(VecDeque<(u64, Instant)>);

impl Ends {
    fn push(&mut self, number: u64, until: Instant) {
        let now = Instant::now();
        while self.0.pop_back_if(|(_, end)| *end <= until.max(now)).is_some() {}
        self.0.push_back((number, until));
    }

    /// Returns the latest end among throttles with a higher number.
    fn latest_after(&self, seen: u64) -> Option<Instant> {
        let after = self.0.partition_point(|(number, _)| *number <= seen);
        self.0.get(after).map(|(_, end)| *end)
    }
}

/// Observes throttles for a request that waits.
#[derive(Debug)]
pub(super) struct Watch<'a> {
    throttles: &'a Throttles,
    keys: &'a [Key],
    /// How often each key had been throttled at the last read.
    seen: Vec<u64>,
    wake: Arc<Notify>,
}

impl<'a> Watch<'a> {
    /// Returns the keys throttled since the last call until after a scheduled time.
    pub(super) fn revoked(&mut self, scheduled: Instant) -> Vec<&'a Key> {
        let throttled = self.throttles.0.lock();
        let revoked = self.keys.iter().zip(&mut self.seen).filter_map(|(key, seen)| {
            let Throttled { count, announced, stored, .. } = &throttled[key];
            let seen = replace(seen, *count);
            // Withdrawing an announcement does not withdraw a stored throttle with the same end.
            (Some(scheduled) < announced.latest_after(seen).max(stored.latest_after(seen))).then_some(key)
        });
        revoked.collect()
    }

    /// Waits until the store throttles an enforced key until after a scheduled time.
    pub(super) async fn until_revoked(&self, scheduled: Instant, is_enforced: impl Fn(&Key) -> bool) {
        let _sleeper = Sleeper::new(self, scheduled);
        while !self.is_revoked(scheduled, &is_enforced) {
            self.wake.notified().await;
        }
    }

    fn is_revoked(&self, scheduled: Instant, is_enforced: impl Fn(&Key) -> bool) -> bool {
        let throttled = self.throttles.0.lock();
        let mut keys = self.keys.iter().zip(&self.seen);
        keys.any(|(key, seen)| Some(scheduled) < throttled[key].stored.latest_after(*seen) && is_enforced(key))
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        let mut throttled = self.throttles.0.lock();
        for key in self.keys {
            if let Some(throttled_key) = throttled.get_mut(key) {
                throttled_key.waiters -= 1;
                if throttled_key.waiters == 0 {
                    throttled.remove(key);
                }
            }
        }
    }
}

/// Registers a waiter to wake, until dropped.
struct Sleeper<'a> {
    watch: &'a Watch<'a>,
    at: (Instant, usize),
}

impl<'a> Sleeper<'a> {
    fn new(watch: &'a Watch<'a>, scheduled: Instant) -> Self {
        let at = (scheduled, Arc::as_ptr(&watch.wake).addr());
        let mut throttled = watch.throttles.0.lock();
        for key in watch.keys {
            throttled.entry(key.clone()).or_default().sleepers.insert(at, Arc::clone(&watch.wake));
        }
        Self { watch, at }
    }
}

impl Drop for Sleeper<'_> {
    fn drop(&mut self) {
        let mut throttled = self.watch.throttles.0.lock();
        for key in self.watch.keys {
            if let Some(throttled_key) = throttled.get_mut(key) {
                throttled_key.sleepers.remove(&self.at);
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
    fn throttle_is_seen_only_by_requests_for_its_key() {
        let (throttles, own, both) = (Throttles::default(), [key(0)], [key(10_000), key(0)]);
        let turn = Instant::now();
        let until = turn + Duration::from_secs(1);
        throttles.announce(&own[0], until);
        let (mut first, mut second) = (throttles.watch(&own), throttles.watch(&both));
        assert!(first.revoked(turn).is_empty(), "that was before");
        for number in 1..10_000 {
            throttles.announce(&key(number), until);
        }
        assert!(first.revoked(turn).is_empty() && second.revoked(turn).is_empty(), "others were");
        throttles.announce(&own[0], until);
        assert_eq!(first.revoked(turn), [&own[0]]);
        assert!(first.revoked(turn).is_empty(), "it asked for another turn since");
        drop(first);
        assert_eq!(second.revoked(turn), [&own[0]]);
        throttles.announce(&both[0], until);
        assert_eq!(second.revoked(turn), [&both[0]]);
        throttles.announce(&both[0], until);
        assert!(second.revoked(until).is_empty(), "its turn comes when it is over");
        drop(second);
        assert!(throttles.0.lock().is_empty(), "no request waits");
    }

    #[test]
    fn reservation_is_revoked_only_by_later_throttles() {
        let (throttles, keys) = (Throttles::default(), [key(0)]);
        let [soon, turn, late] = [1, 2, 60].map(|s| Instant::now() + Duration::from_secs(s));
        let mut watch = throttles.watch(&keys);
        throttles.stored(&keys[0], late);
        assert_eq!(watch.revoked(turn), [&keys[0]]);
        // Tokens given back in the meantime let the store schedule this reservation earlier.
        throttles.stored(&keys[0], soon);
        assert!(!watch.is_revoked(turn, |_| true) && watch.is_revoked(Instant::now(), |_| true));
        assert!(watch.revoked(turn).is_empty());
        for end in [late, turn, soon] {
            throttles.stored(&keys[0], end);
        }
        assert!(watch.is_revoked(turn, |_| true), "the first of them outlasts it");
        assert_eq!(watch.revoked(turn), [&keys[0]]);
        let ends = &throttles.0.lock()[&keys[0]].announced.0;
        assert_eq!(ends.iter().map(|(_, end)| *end).collect::<Vec<_>>(), [late, turn, soon]);
    }

    #[test]
    fn early_waiter_is_woken_when_the_throttle_is_stored() {
        let (throttles, keys) = (Throttles::default(), [key(0), key(1)]);
        let [soon, until, late] = [1, 2, 3].map(|s| Instant::now() + Duration::from_secs(s));
        let watch = throttles.watch(&keys);
        let mut context = Context::from_waker(Waker::noop());
        {
            let (mut first, mut last) =
                (pin!(watch.until_revoked(soon, |_| true)), pin!(watch.until_revoked(late, |_| true)));
            assert!(first.as_mut().poll(&mut context).is_pending() && last.as_mut().poll(&mut context).is_pending());
            throttles.announce(&keys[1], until);
            assert!(first.as_mut().poll(&mut context).is_pending(), "the store would give the same turn again");
            throttles.stored(&keys[1], until);
            assert!(last.as_mut().poll(&mut context).is_pending());
            assert!(first.as_mut().poll(&mut context).is_ready());
            assert!(
                pin!(watch.until_revoked(soon, |_| true)).poll(&mut context).is_ready(),
                "a request that begins to wait then, too"
            );
        }
        assert!(throttles.0.lock().values().all(|throttled| throttled.sleepers.is_empty()));
    }
}
