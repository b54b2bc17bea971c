//! The in-memory world.

use std::sync::Arc;

use tollgate::{Key, MemoryStore, clock::ManualClock};
use uuid::Uuid;

use super::World;

pub struct Memory {
    store: Arc<MemoryStore<ManualClock>>,
    clock: ManualClock,
}

impl Memory {
    pub fn new() -> Self {
        let clock = ManualClock::default();
        Self { store: Arc::new(MemoryStore::with_clock(clock.clone())), clock }
    }
}

impl World for Memory {
    type Store = Arc<MemoryStore<ManualClock>>;

    fn store(&self) -> Self::Store {
        Arc::clone(&self.store)
    }

    async fn at(&self, now: i64) -> anyhow::Result<()> {
        self.clock.set(now);
        Ok(())
    }

    fn key(&self) -> Key {
        Key::from(Uuid::new_v4())
    }
}
