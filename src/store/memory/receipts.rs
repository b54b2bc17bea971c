use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use uuid::Uuid;

use crate::model::bucket::{NEVER_NS, Receipt};
use crate::model::decide::{Held, State};
use crate::model::take::IdOf;
use crate::model::{Key, TakeError};

/// What is remembered of grants with an id, and of adjustments.
#[derive(Debug)]
pub(super) struct Receipts {
    held: HashMap<(Uuid, Key), Kept>,
    /// Those that nobody repeats, and that nothing becomes of any more, the oldest first. They take no room of others: beyond
    /// what is the shard's own, the oldest are forgotten.
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
    id_of: IdOf,
}

impl Kept {
    fn is_done(&self) -> bool {
        self.id_of == IdOf::Crate && self.held.state != State::Open
    }
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

    /// Whether one may be written that somebody may repeat, before anything else is. If there is no room, those that have
    /// expired are forgotten, and never others: who repeats a request would pay twice.
    pub(super) fn make_room(&mut self, id: Uuid, key: &Key, now: i64) -> Result<(), TakeError> {
        let has_room = |receipts: &Self| receipts.room.is_left(receipts.repeatable());
        if !has_room(self) && now >= self.none_expires_before {
            self.sweep(now);
        }
        let fits = has_room(self) || self.held.contains_key(&(id, key.clone()));
        if fits { Ok(()) } else { Err(TakeError::TooManyIds(id)) }
    }

    /// The keys of requests that can be settled.
    pub(super) fn open(&self, now: i64) -> HashSet<&Key> {
        let is_open = |held: &Held| held.state == State::Open && held.expires_at > now;
        self.held.iter().filter(|(_, kept)| is_open(&kept.held)).map(|((_, key), _)| key).collect()
    }

    pub(super) fn grant(&mut self, id: Uuid, key: &Key, receipt: Receipt, id_of: IdOf, expires_at: i64) {
        self.insert(id, key, Kept { held: Held { receipt, state: State::Open, expires_at }, id_of });
    }

    /// What has become of one; whose id it is, is for the request to say, if that is remembered.
    pub(super) fn write(&mut self, id: Uuid, key: &Key, held: Held, id_of: IdOf) {
        let id_of = self.held.get(&(id, key.clone())).map_or(id_of, |kept| kept.id_of);
        self.insert(id, key, Kept { held, id_of });
    }

    fn insert(&mut self, id: Uuid, key: &Key, kept: Kept) {
        self.none_expires_before = self.none_expires_before.min(kept.held.expires_at);
        let (receipt, is_done) = ((id, key.clone()), kept.is_done());
        if self.held.insert(receipt.clone(), kept).is_some_and(|before| before.is_done()) {
            // It had expired, and somebody asked with its id.
            self.done.retain(|done| *done != receipt);
        }
        if is_done {
            self.done.push_back(receipt);
        }
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
        while self.done.len() > self.room.own
            && let Some(oldest) = self.done.pop_front()
        {
            self.held.remove(&oldest);
        }
        self.lent = self.room.lend(self.lent, self.repeatable());
    }

    /// How many there are that need room.
    fn repeatable(&self) -> usize {
        self.held.len() - self.done.len()
    }
}

/// How many requests that somebody may repeat all shards of a store remember. Half of it is theirs, each its part, so that
/// nobody is kept out by those of another shard; half is for whichever need more: those for one key are all in one shard.
#[derive(Debug)]
pub(super) struct Room {
    own: usize,
    common: usize,
    lent: AtomicUsize,
}

impl Room {
    /// For so many in each shard, if they were all alike.
    pub(super) fn new(each: usize, shards: usize) -> Arc<Self> {
        let own = each.div_ceil(2);
        Arc::new(Self { own, common: (each - own) * shards, lent: AtomicUsize::new(0) })
    }

    /// Whether a shard with so many may have one more. Several that ask at once may all have the last one.
    fn is_left(&self, len: usize) -> bool {
        len < self.own || self.lent.load(Ordering::Relaxed) < self.common
    }

    /// A shard has so many now, and had borrowed that much; says how much it borrows from now on.
    fn lend(&self, before: usize, len: usize) -> usize {
        let lent = len.saturating_sub(self.own);
        if lent > before {
            self.lent.fetch_add(lent - before, Ordering::Relaxed);
        } else if lent < before {
            self.lent.fetch_sub(before - lent, Ordering::Relaxed);
        }
        lent
    }
}
