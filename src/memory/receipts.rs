use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use uuid::Uuid;

pub(super) use self::room::Room;
use crate::book::{Held, State};
use crate::bucket::{NEVER_NS, Receipt};
use crate::{Key, TakeError};

mod room;

/// What is remembered of grants with an id, and of adjustments.
#[derive(Debug)]
pub(super) struct Receipts {
    held: HashMap<(Uuid, Key), Kept>,
    /// Those that nobody repeats, and that are settled or cancelled: the first to go, the oldest first.
    done: VecDeque<(Uuid, Key)>,
    room: Arc<Room>,
    /// How many there are beyond what is the shard's own.
    lent: usize,
    /// None of them expires before.
    none_expires_before: i64,
}

#[derive(Debug)]
struct Kept {
    held: Held,
    /// Whether the id was made for this request alone.
    fresh: bool,
}

impl Receipts {
    pub(super) fn new(room: Arc<Room>) -> Self {
        Self { held: HashMap::new(), done: VecDeque::new(), room, lent: 0, none_expires_before: NEVER_NS }
    }

    /// Has its part of this room from now on.
    pub(super) fn share(&mut self, room: Arc<Room>) {
        (self.room, self.lent) = (room, 0);
        self.count();
    }

    pub(super) fn len(&self) -> usize {
        self.held.len()
    }

    pub(super) fn find(&self, id: Uuid, key: &Key) -> Option<Held> {
        self.held.get(&(id, key.clone())).map(|kept| kept.held)
    }

    /// One that has not expired.
    pub(super) fn get(&self, id: Uuid, key: &Key, now: i64) -> Option<Held> {
        self.find(id, key).filter(|held| held.expires_at > now)
    }

    /// Whether one may be written, before anything else is. If there is no room, those that have expired are forgotten, and
    /// then those that are done and that nobody repeats; never others: who repeats a request would pay twice.
    pub(super) fn make_room(&mut self, id: Uuid, key: &Key, now: i64) -> Result<(), TakeError> {
        let has_room = |receipts: &Self| receipts.room.is_left(receipts.held.len());
        if !has_room(self) && now >= self.none_expires_before {
            self.sweep(now);
        }
        let fits = |receipts: &Self| has_room(receipts) || receipts.held.contains_key(&(id, key.clone()));
        while !fits(self) {
            let Some(done) = self.done.pop_front() else { return Err(TakeError::TooManyIds(id)) };
            self.held.remove(&done);
            self.count();
        }
        Ok(())
    }

    /// The keys of requests that can be settled.
    pub(super) fn open(&self, now: i64) -> HashSet<&Key> {
        let is_open = |held: &Held| held.state == State::Open && held.expires_at > now;
        self.held.iter().filter(|(_, kept)| is_open(&kept.held)).map(|((_, key), _)| key).collect()
    }

    pub(super) fn grant(&mut self, id: Uuid, key: &Key, receipt: Receipt, fresh: bool, expires_at: i64) {
        self.insert(id, key, Kept { held: Held { receipt, state: State::Open, expires_at }, fresh });
    }

    /// What has become of one.
    pub(super) fn write(&mut self, id: Uuid, key: &Key, held: Held) {
        let fresh = self.held.get(&(id, key.clone())).is_some_and(|kept| kept.fresh);
        // One that was refunded could be refunded again.
        if fresh && matches!(held.state, State::Settled | State::Cancelled) {
            self.done.push_back((id, key.clone()));
        }
        self.insert(id, key, Kept { held, fresh });
    }

    fn insert(&mut self, id: Uuid, key: &Key, kept: Kept) {
        self.none_expires_before = self.none_expires_before.min(kept.held.expires_at);
        self.held.insert((id, key.clone()), kept);
        self.count();
    }

    /// Forgets those that have expired.
    pub(super) fn sweep(&mut self, now: i64) {
        let mut earliest = NEVER_NS;
        self.held.retain(|_, kept| {
            let stays = kept.held.expires_at > now;
            if stays {
                earliest = earliest.min(kept.held.expires_at);
            }
            stays
        });
        self.done.retain(|done| self.held.contains_key(done));
        self.none_expires_before = earliest;
        self.count();
    }

    /// After there are more of them, or fewer.
    fn count(&mut self) {
        self.lent = self.room.lend(self.lent, self.held.len());
    }
}
