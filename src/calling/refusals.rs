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
    /// From now until it is dropped, refusals of these keys are seen.
    pub(super) fn watch<'a>(&'a self, keys: &'a [Key]) -> Watch<'a> {
        let mut awaited = self.0.lock();
        for key in keys {
            awaited.entry(key.clone()).or_default().waiters += 1;
        }
        let seen = keys.iter().map(|key| awaited[key].refused).sum();
        Watch { refusals: self, keys, seen }
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
    keys: &'a [Key],
    /// Of all of them.
    seen: u64,
}

impl Watch<'_> {
    /// Whether somebody was refused since it was asked last.
    pub(super) fn were_any(&mut self) -> bool {
        let awaited = self.refusals.0.lock();
        let refused = self.keys.iter().map(|key| awaited[key].refused).sum();
        std::mem::replace(&mut self.seen, refused) != refused
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

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u32) -> Key {
        Key::try_from(format!("host:{number}")).unwrap()
    }

    #[test]
    fn refusals_are_seen_by_those_who_wait_for_that_key_and_by_nobody_else() {
        let (refusals, own, both) = (Refusals::default(), [key(0)], [key(10_000), key(0)]);
        refusals.add(&own[0]);
        let (mut first, mut second) = (refusals.watch(&own), refusals.watch(&both));
        assert!(!first.were_any(), "that was before");
        for number in 1..10_000 {
            refusals.add(&key(number));
        }
        assert!(!first.were_any() && !second.were_any(), "others were");
        refusals.add(&own[0]);
        assert!(first.were_any());
        assert!(!first.were_any(), "it asked for another turn since");
        drop(first);
        assert!(second.were_any());
        refusals.add(&both[0]);
        assert!(second.were_any());
        drop(second);
        assert!(refusals.0.lock().is_empty(), "nobody waits");
    }
}
