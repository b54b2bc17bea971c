use std::hash::BuildHasher;
use std::sync::{Arc, Weak};

use foldhash::fast::RandomState;
use tokio_util::task::TaskTracker;

use crate::admin::{BucketLevel, Swept};
use crate::model::{Adjusted, Adjustment, Error, HoldBack, Key, Outcome, Rule, Take, TakeError, Window, WindowLevel};
use crate::store::{Capabilities, Store};

mod adjusting;
mod held;
mod lane;
mod lanes;
mod leading;
mod queue;
mod undone;

use adjusting::Adjusting;
use lane::Lane;
use lanes::{Callers, Lanes, see_through};
use undone::Turns;

/// A store that asks another one for many callers at once: while calls are under way, requests queue, and the next call
/// carries them all.
///
/// A denial is answered as the store beneath does. No request waits for a timer: it is asked at once, by its own task, if no
/// call for its bucket and few for others are under way. Requests for one bucket are decided in the order in which they came,
/// at most one call for it is under way, and equal ones are one entry of it. A bucket that another transaction holds, or that
/// is slow otherwise, is asked alone, and the others go on without it: see the guarantees for how soon.
///
/// It needs a Tokio runtime with its timer, which goes on being driven as long as anybody asks.
///
/// Requests for several buckets go in calls of their own, if the store decides
/// [many of them in one](Capabilities::most_together) and they neither wait nor have an id. Others for several buckets, those
/// under a sliding window, and requests that came together in one [`take`](Store::take), which is one call already, are asked
/// as they are, beside the calls for others.
///
/// What is cancelled, refunded and settled goes together as well, in calls of its own: at once if none is under way, else in
/// the next one.
///
/// # Cancel safety
///
/// A caller that gives up while it queues takes nothing. Once its request is on the way, the tokens may be taken: the
/// call goes on for the others. What it gives back, or pays for, is given back whether it still waits for that or not, as long
/// as the runtime goes on.
#[derive(Debug)]
pub struct Coalesce<S: Store> {
    store: Arc<S>,
    lanes: Arc<Lanes<S>>,
    most_together: usize,
    hasher: RandomState,
}

impl<S: Store> Coalesce<S> {
    /// A store over another one.
    pub fn new(store: S) -> Self {
        Self::from(Arc::new(store))
    }

    /// The store beneath.
    #[must_use]
    pub fn store(&self) -> &S {
        &self.store
    }

    /// A store over another one, whose calls somebody waits for in the end.
    pub(crate) fn tracked(store: Arc<S>, tasks: &TaskTracker) -> Self {
        let Capabilities { calls_at_once, most_together, .. } = store.capabilities();
        let calls_at_once = calls_at_once.clamp(1, 64);
        let lanes = Arc::new_cyclic(|all: &Weak<Lanes<S>>| {
            let all: Weak<dyn Callers> = all.clone();
            let kinds = [MOST_AT_ONCE, most_together].map(|most_at_once| (most_at_once, Arc::new(Turns::default())));
            let kinds = kinds.into_iter().flat_map(|kind| std::iter::repeat_n(kind, calls_at_once));
            let lane =
                |(most_at_once, turns)| Lane::new(Arc::clone(&store), tasks.clone(), all.clone(), turns, most_at_once);
            let adjusting = Adjusting::new(Arc::clone(&store), tasks.clone(), all.clone());
            let taking = kinds.map(|kind| Arc::new(lane(kind))).collect();
            Lanes { taking, adjusting: Arc::new(adjusting) }
        });
        Self { store, lanes, most_together, hasher: RandomState::default() }
    }

    /// Leaves no call to its caller, who may not be polled any more.
    pub(crate) fn hand_over(&self) {
        self.lanes.hand_over();
    }

    /// Makes a call as it is, beside those for others.
    async fn pass_on<T>(&self, call: impl Future<Output = T>) -> T {
        let lanes = Arc::downgrade(&self.lanes);
        let all: Weak<dyn Callers> = lanes;
        see_through(&all, call).await
    }

    fn lane(&self, take: &Take) -> &Arc<Lane<S>> {
        #[expect(clippy::cast_possible_truncation, reason = "any bits will do")]
        let hash = self.hasher.hash_one(take.key()) as usize;
        let of_a_kind = self.lanes.taking.len() / 2;
        let first = if take.limits.len() == 1 { 0 } else { of_a_kind };
        &self.lanes.taking[first + hash % of_a_kind]
    }
}

impl<S: Store> From<Arc<S>> for Coalesce<S> {
    fn from(store: Arc<S>) -> Self {
        Self::tracked(store, &TaskTracker::new())
    }
}

impl<S: Store> Store for Coalesce<S> {
    /// The store's, but requests queue on the way to it.
    fn capabilities(&self) -> Capabilities {
        Capabilities { in_process: false, ..self.store.capabilities() }
    }

    async fn take(&self, takes: &[Take]) -> Result<Vec<Outcome>, Error> {
        match takes {
            [take] => Ok(vec![self.take_one(take).await?]),
            _ => self.pass_on(self.store.take(takes)).await,
        }
    }

    async fn take_one(&self, take: &Take) -> Result<Outcome, Error> {
        if let Err(error) = take.request() {
            return Ok(Err(error));
        }
        if take.window().is_some() || take.is_unlimited() {
            return self.pass_on(self.store.take_one(take)).await;
        }
        if take.limits.len() == 1 || take.is_momentary() && self.most_together > 1 {
            self.lane(take).ask(take).await
        } else {
            self.pass_on(self.store.take_one(take)).await
        }
    }

    async fn adjust(&self, adjustments: &[Adjustment]) -> Result<Vec<Result<Adjusted, TakeError>>, Error> {
        match adjustments {
            [] => self.store.adjust(adjustments).await,
            _ => self.lanes.adjusting.adjust(adjustments).await,
        }
    }

    async fn hold_back(&self, key: &Key, rule: &Rule, hold: HoldBack) -> Result<bool, Error> {
        self.pass_on(self.store.hold_back(key, rule, hold)).await
    }

    async fn level(&self, key: &Key, rule: &Rule) -> Result<BucketLevel, Error> {
        self.pass_on(self.store.level(key, rule)).await
    }

    async fn window_level(&self, key: &Key, window: &Window) -> Result<WindowLevel, Error> {
        self.pass_on(self.store.window_level(key, window)).await
    }

    async fn sweep(&self, limit: u32) -> Result<Swept, Error> {
        self.pass_on(self.store.sweep(limit)).await
    }

    async fn count_denials(&self, denials: &[(Key, u64)]) -> Result<(), Error> {
        self.pass_on(self.store.count_denials(denials)).await
    }
}

/// How many requests for one bucket each a call carries.
const MOST_AT_ONCE: usize = 1024;
