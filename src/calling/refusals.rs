use std::collections::HashMap;

use foldhash::fast::RandomState;
use parking_lot::Mutex;

use crate::Key;

/// How often others have refused requests in this process, by the keys that somebody waits for: who was given a turn before
/// that asks for another one.
#[derive(Debug, Default)]
pub(super) struct Refusals(Mutex<HashMap<Key, Awaited, RandomState>>);

#[derive(Debug, Default)]
struct Awaited {
    waiters: usize,
    refused: u64,
}

impl Refusals {
    /// From now until it is dropped, refusals of this key are seen.
    pub(super) fn watch<'a>(&'a self, key: &'a Key) -> Watch<'a> {
        let mut keys = self.0.lock();
        let awaited = keys.entry(key.clone()).or_default();
        awaited.waiters += 1;
        Watch { refusals: self, key, seen: awaited.refused }
    }

    pub(super) fn add(&self, key: &Key) {
        if let Some(awaited) = self.0.lock().get_mut(key) {
            awaited.refused += 1;
        }
    }
}

/// Somebody who waits for a turn.
#[derive(Debug)]
pub(super) struct Watch<'a> {
    refusals: &'a Refusals,
    key: &'a Key,
    seen: u64,
}

impl Watch<'_> {
    /// Whether somebody was refused since it was asked last.
    pub(super) fn was_refused(&mut self) -> bool {
        let refused = self.refusals.0.lock().get(self.key).map_or(self.seen, |awaited| awaited.refused);
        std::mem::replace(&mut self.seen, refused) != refused
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        let mut keys = self.refusals.0.lock();
        if let Some(awaited) = keys.get_mut(self.key) {
            awaited.waiters -= 1;
            if awaited.waiters == 0 {
                keys.remove(self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u32) -> Key {
        Key::try_from(format!("host:{number}")).unwrap()
    }

    #[test]
    fn refusals_are_seen_by_those_who_wait_for_that_key_and_by_nobody_else() {
        let (refusals, own) = (Refusals::default(), key(0));
        refusals.add(&own);
        let (mut first, mut second) = (refusals.watch(&own), refusals.watch(&own));
        assert!(!first.was_refused(), "that was before");
        for number in 1..10_000 {
            refusals.add(&key(number));
        }
        assert!(!first.was_refused(), "others were");
        refusals.add(&own);
        assert!(first.was_refused());
        assert!(!first.was_refused(), "it asked for another turn since");
        drop(first);
        assert!(second.was_refused());
        drop(second);
        assert!(refusals.0.lock().is_empty(), "nobody waits");
    }
}
