use std::collections::HashMap;
use std::mem::replace;

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
        let seen = keys.iter().map(|key| awaited[key].refused).collect();
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
    /// Of each of them.
    seen: Vec<u64>,
}

impl<'a> Watch<'a> {
    /// Of which of them somebody was refused since it was asked last.
    pub(super) fn refused(&mut self) -> Vec<&'a Key> {
        let awaited = self.refusals.0.lock();
        let news = self.keys.iter().zip(&mut self.seen).filter_map(|(key, seen)| {
            let refused = awaited[key].refused;
            (replace(seen, refused) != refused).then_some(key)
        });
        news.collect()
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
        assert!(first.refused().is_empty(), "that was before");
        for number in 1..10_000 {
            refusals.add(&key(number));
        }
        assert!(first.refused().is_empty() && second.refused().is_empty(), "others were");
        refusals.add(&own[0]);
        assert_eq!(first.refused(), [&own[0]]);
        assert!(first.refused().is_empty(), "it asked for another turn since");
        drop(first);
        assert_eq!(second.refused(), [&own[0]]);
        refusals.add(&both[0]);
        assert_eq!(second.refused(), [&both[0]]);
        drop(second);
        assert!(refusals.0.lock().is_empty(), "nobody waits");
    }
}
