//! The receipts of a shard, and the bound on how many all shards hold.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use uuid::Uuid;

use crate::model::bucket::{GrantRecord, NEVER_NS};
use crate::model::decide::{State, StoredReceipt};
use crate::model::id::IdOf;
use crate::model::{Key, TakeError};

/// The receipts of a shard: of grants with an id, and of adjustments.
#[derive(Debug)]
pub(super) struct Receipts {
    by_id: HashMap<(Uuid, Key), ReceiptEntry>,
    /// Receipts with an id of this crate's that are settled: no caller repeats them, and they change no more. The
    /// oldest come first. They need no room of other receipts: beyond the shard's own room, the shard forgets the
    /// oldest.
    done: VecDeque<(Uuid, Key)>,
    room: Arc<ReceiptRoom>,
    /// How many receipts the shard holds beyond its own room.
    lent: usize,
    /// No receipt expires before this instant.
    none_expires_before: i64,
}

#[derive(Debug)]
struct ReceiptEntry {
    stored: StoredReceipt,
    id_of: IdOf,
}

impl ReceiptEntry {
    fn is_done(&self) -> bool {
        self.id_of == IdOf::Crate && self.stored.state != State::Open
    }
}

impl Receipts {
    pub(super) fn new(room: Arc<ReceiptRoom>) -> Self {
        Self { by_id: HashMap::new(), done: VecDeque::new(), room, lent: 0, none_expires_before: NEVER_NS }
    }

    /// Uses this room from now on.
    pub(super) fn share(&mut self, room: Arc<ReceiptRoom>) {
        (self.room, self.lent) = (room, 0);
        self.count();
    }

    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }

    pub(super) fn find(&self, id: Uuid, key: &Key) -> Option<StoredReceipt> {
        self.by_id.get(&(id, key.clone())).map(|kept| kept.stored)
    }

    /// Returns a receipt that has not expired.
    pub(super) fn get(&self, id: Uuid, key: &Key, now: i64) -> Option<StoredReceipt> {
        self.find(id, key).filter(|stored| stored.expires_at > now)
    }

    /// Makes room for a receipt that a caller can repeat, before the request changes anything. Without room, forgets
    /// expired receipts, and never others: a repeated request would be charged twice.
    pub(super) fn make_room(&mut self, id: Uuid, key: &Key, now: i64) -> Result<(), TakeError> {
        let has_room = |receipts: &Self| receipts.room.is_left(receipts.repeatable());
        if !has_room(self) && now >= self.none_expires_before {
            self.sweep(now);
        }
        let fits = has_room(self) || self.by_id.contains_key(&(id, key.clone()));
        if fits { Ok(()) } else { Err(TakeError::TooManyIds(id)) }
    }

    /// Returns the keys of requests that can be settled.
    pub(super) fn open(&self, now: i64) -> HashSet<&Key> {
        let is_open = |stored: &StoredReceipt| stored.state == State::Open && stored.expires_at > now;
        self.by_id.iter().filter(|(_, kept)| is_open(&kept.stored)).map(|((_, key), _)| key).collect()
    }

    pub(super) fn grant(&mut self, id: Uuid, key: &Key, grant: GrantRecord, id_of: IdOf, expires_at: i64) {
        self.insert(id, key, ReceiptEntry { stored: StoredReceipt { grant, state: State::Open, expires_at }, id_of });
    }

    /// Writes what an adjustment made of a receipt. The receipt of the request, if there is one, says whose id it is.
    pub(super) fn write(&mut self, id: Uuid, key: &Key, stored: StoredReceipt, id_of: IdOf) {
        let id_of = self.by_id.get(&(id, key.clone())).map_or(id_of, |kept| kept.id_of);
        self.insert(id, key, ReceiptEntry { stored, id_of });
    }

    fn insert(&mut self, id: Uuid, key: &Key, kept: ReceiptEntry) {
        self.none_expires_before = self.none_expires_before.min(kept.stored.expires_at);
        let (receipt, is_done) = ((id, key.clone()), kept.is_done());
        if self.by_id.insert(receipt.clone(), kept).is_some_and(|before| before.is_done()) {
            // The earlier receipt had expired, and a request used its id again.
            self.done.retain(|done| *done != receipt);
        }
        if is_done {
            self.done.push_back(receipt);
        }
        self.count();
    }

    /// Forgets expired receipts.
    pub(super) fn sweep(&mut self, now: i64) {
        let mut earliest = NEVER_NS;
        self.by_id.retain(|_, kept| {
            let stays = kept.stored.expires_at > now;
            if stays {
                earliest = earliest.min(kept.stored.expires_at);
            }
            stays
        });
        self.done.retain(|done| self.by_id.contains_key(done));
        self.none_expires_before = earliest;
        self.count();
    }

    /// Enforces the limits after the number of receipts has changed.
    fn count(&mut self) {
        while self.done.len() > self.room.own
            && let Some(oldest) = self.done.pop_front()
        {
            self.by_id.remove(&oldest);
        }
        self.lent = self.room.lend(self.lent, self.repeatable());
    }

    /// Returns how many receipts need room.
    fn repeatable(&self) -> usize {
        self.by_id.len() - self.done.len()
    }
}

/// The room for receipts that a caller can repeat, of all shards of a store.
///
/// Half of the room is divided among the shards, so that no shard can use up another one's part. All shards share the
/// other half, because all requests for one key are in one shard.
#[derive(Debug)]
pub(super) struct ReceiptRoom {
    own: usize,
    common: usize,
    lent: AtomicUsize,
}

impl ReceiptRoom {
    /// Creates room for `each` receipts a shard, if the shards were equally full.
    pub(super) fn new(each: usize, shards: usize) -> Arc<Self> {
        let own = each.div_ceil(2);
        Arc::new(Self { own, common: (each - own) * shards, lent: AtomicUsize::new(0) })
    }

    /// Returns whether a shard with `len` receipts can add one. Shards that ask at the same time can all get the last
    /// place.
    fn is_left(&self, len: usize) -> bool {
        len < self.own || self.lent.load(Ordering::Relaxed) < self.common
    }

    /// Accounts for a shard that now has `len` receipts and had borrowed `before`. Returns how much the shard borrows
    /// from now on.
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
