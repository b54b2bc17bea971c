use std::collections::HashMap;

use uuid::Uuid;

use crate::Key;
use crate::book::{Held, State};
use crate::bucket::Receipt;

/// What is remembered of grants with an id, and of adjustments.
#[derive(Debug, Default)]
pub(super) struct Receipts {
    held: HashMap<(Uuid, Key), Held>,
    /// How many there may be before the expired ones are forgotten.
    sweep_above: usize,
}

impl Receipts {
    pub(super) fn find(&self, id: Uuid, key: &Key) -> Option<Held> {
        self.held.get(&(id, key.clone())).copied()
    }

    /// One that has not expired.
    pub(super) fn get(&self, id: Uuid, key: &Key, now: i64) -> Option<Held> {
        self.find(id, key).filter(|held| held.expires_at > now)
    }

    pub(super) fn open(&mut self, id: Uuid, key: &Key, receipt: Receipt, expires_at: i64, now: i64) {
        self.write(id, key, Held { receipt, state: State::Open, expires_at }, now);
    }

    pub(super) fn write(&mut self, id: Uuid, key: &Key, held: Held, now: i64) {
        if self.held.len() > self.sweep_above {
            self.sweep(now);
            self.sweep_above = 2 * self.held.len() + FEW;
        }
        self.held.insert((id, key.clone()), held);
    }

    /// Forgets those that have expired, and says how many.
    pub(super) fn sweep(&mut self, now: i64) -> usize {
        let before = self.held.len();
        self.held.retain(|_, held| held.expires_at > now);
        before - self.held.len()
    }
}

const FEW: usize = 1000;
