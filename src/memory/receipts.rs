use std::collections::{HashMap, HashSet};

use uuid::Uuid;

use crate::book::{Held, State};
use crate::bucket::{NEVER_NS, Receipt};
use crate::{Key, TakeError};

/// What is remembered of grants with an id, and of adjustments.
#[derive(Debug)]
pub(super) struct Receipts {
    held: HashMap<(Uuid, Key), Held>,
    pub(super) most: usize,
    /// None of them expires before.
    none_expires_before: i64,
}

impl Receipts {
    pub(super) fn new(most: usize) -> Self {
        Self { held: HashMap::new(), most, none_expires_before: NEVER_NS }
    }

    pub(super) fn len(&self) -> usize {
        self.held.len()
    }

    pub(super) fn find(&self, id: Uuid, key: &Key) -> Option<Held> {
        self.held.get(&(id, key.clone())).copied()
    }

    /// One that has not expired.
    pub(super) fn get(&self, id: Uuid, key: &Key, now: i64) -> Option<Held> {
        self.find(id, key).filter(|held| held.expires_at > now)
    }

    /// Whether one may be written, before anything else is. If there is no room, those that have expired are forgotten,
    /// and never others: who repeats a request would pay twice.
    pub(super) fn make_room(&mut self, id: Uuid, key: &Key, now: i64) -> Result<(), TakeError> {
        if self.held.len() >= self.most && now >= self.none_expires_before {
            self.sweep(now);
        }
        let fits = self.held.len() < self.most || self.held.contains_key(&(id, key.clone()));
        if fits { Ok(()) } else { Err(TakeError::TooManyIds(id)) }
    }

    /// The keys of requests that can be settled.
    pub(super) fn open(&self, now: i64) -> HashSet<&Key> {
        let open = self.held.iter().filter(|(_, held)| held.state == State::Open && held.expires_at > now);
        open.map(|((_, key), _)| key).collect()
    }

    pub(super) fn grant(&mut self, id: Uuid, key: &Key, receipt: Receipt, expires_at: i64) {
        self.write(id, key, Held { receipt, state: State::Open, expires_at });
    }

    pub(super) fn write(&mut self, id: Uuid, key: &Key, held: Held) {
        self.none_expires_before = self.none_expires_before.min(held.expires_at);
        self.held.insert((id, key.clone()), held);
    }

    /// Forgets those that have expired.
    pub(super) fn sweep(&mut self, now: i64) {
        let mut earliest = NEVER_NS;
        self.held.retain(|_, held| {
            let stays = held.expires_at > now;
            if stays {
                earliest = earliest.min(held.expires_at);
            }
            stays
        });
        self.none_expires_before = earliest;
    }
}
