use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until, timeout};

use super::lane::{Answer, Kind, Waiter, Waiting, tell, tell_unasked};
use super::reservation::{Reservation, Turn};
use super::stack::Stack;
use super::store_clock::StoreClock;
use super::turns::Turns;
use crate::model::{Decision, Error, Key, Outcome, Take};
use crate::store::Store;

/// Those who wait, in a line for each key: one call of the store at a time carries all that stand there, in their order.
#[derive(Debug)]
pub(super) struct Lanes<S: Store> {
    store: Arc<Stack<S>>,
    waiting: Mutex<Waiting<S>>,
    clock: Mutex<StoreClock>,
}

impl<S: Store> Lanes<S> {
    pub(super) fn new(store: Arc<Stack<S>>) -> Self {
        let waiting = Mutex::new(Waiting::new(store.capabilities()));
        Self { store, waiting, clock: Mutex::default() }
    }

    /// Returns when an answer was decided that is there now.
    pub(super) fn decided_here(&self, decided: i64, asked: Instant) -> Instant {
        self.clock.lock().here(decided, asked, Instant::now())
    }

    /// Stands in line, and reserves. Who leaves before being asked for takes nothing.
    pub(super) async fn reserve(self: &Arc<Self>, take: &Take) -> Answer<S> {
        if self.store.capabilities().in_process {
            // There are no calls to share, and nobody is overtaken on the way.
            return Ok(self.store.take_one(take).await?.map(|decision| self.turn(take, decision)));
        }
        let (answer, answered) = oneshot::channel();
        let key = take.key().clone();
        let until = Instant::now().checked_add(take.max_wait);
        let unserved = self.lock().push(Waiter { take: take.clone(), until, answer })?;
        if unserved {
            // A task of the limiter's own: a caller who gives up does not stop those behind it.
            let serving = Serving { lanes: Arc::clone(self), key, done: false };
            if let Ok(runtime) = Handle::try_current() {
                self.store.tasks.spawn_on(serving.go_on(), &runtime);
            }
        }
        // The task that made the call has ended before it had the answer.
        answered.await.unwrap_or_else(|stopped| Err(Error::OutcomeUnknown(Arc::new(stopped))))
    }

    /// Asks for those of a lane who go together.
    async fn ask(&self, waiters: Vec<Waiter<S>>, turns: &mut Turns) {
        let key = waiters[0].take.key().clone();
        let asked = if waiters.len() > 1 && waiters[0].kind() == Kind::Several {
            self.reserve_several(waiters, turns).await
        } else {
            self.reserve_for(waiters, turns).await
        };
        self.tell_overdue(&key, &asked);
    }

    /// Tells those who stand in a lane for too long if a call for others failed.
    fn tell_overdue(&self, key: &Key, asked: &Result<(), Error>) {
        if let Some(failure) = asked.as_ref().err().filter(|error| error.is_failure()) {
            self.lock().tell_overdue(key, failure);
        }
    }

    /// Under several limits each: they wait by calls of their own, so first they are all asked for without, in one. Who finds
    /// the tokens there does not stand behind those calls.
    async fn reserve_several(&self, waiters: Vec<Waiter<S>>, turns: &mut Turns) -> Result<(), Error> {
        let takes: Vec<Take> = waiters.iter().map(|waiter| waiter.take.clone().max_wait(Duration::ZERO)).collect();
        let waiting = match self.store.take(&takes).await {
            Ok(outcomes) => self.tell_decided(waiters, &takes, outcomes),
            Err(error) => {
                tell(waiters, &error);
                return Err(error);
            }
        };
        let mut waiting = VecDeque::from(waiting);
        let mut asked = Ok(());
        while let Some(waiter) = waiting.pop_front() {
            if waiter.answer.is_closed() {
                continue;
            }
            asked = self.reserve_for(vec![waiter], turns).await;
            if let Err(error) = &asked {
                // Each call may take as long to fail.
                let (overdue, left) = waiting.into_iter().partition::<Vec<_>, _>(Waiter::is_overdue);
                tell_unasked(overdue, error);
                waiting = left.into();
                self.tell_overdue(takes[0].key(), &asked);
            }
        }
        asked
    }

    /// Tells those who have their tokens, or never will, and says who has to wait.
    fn tell_decided(&self, waiters: Vec<Waiter<S>>, takes: &[Take], outcomes: Vec<Outcome>) -> Vec<Waiter<S>> {
        let mut waiting = Vec::new();
        for ((waiter, take), outcome) in waiters.into_iter().zip(takes).zip(outcomes) {
            if outcome.as_ref().is_ok_and(|decision| !decision.is_granted()) {
                waiting.push(waiter);
            } else {
                let turn = outcome.map(|decision| self.turn(take, decision));
                // Of tokens that were there at once nothing is given back.
                drop(waiter.answer.send(Ok(turn)));
            }
        }
        waiting
    }

    /// Reserves for all of them, who go on in their order.
    async fn reserve_for(&self, waiters: Vec<Waiter<S>>, turns: &mut Turns) -> Result<(), Error> {
        let asked = Instant::now();
        let left = |waiter: &Waiter<S>| waiter.until.map_or(waiter.take.max_wait, |until| until - asked);
        let latest = turns.latest().filter(|latest| *latest > asked);
        let take = |waiter: &Waiter<S>| {
            let take = waiter.take.clone().max_wait(left(waiter));
            // Who goes on later, behind somebody who waits, has no tokens that were taken ahead: those are to be used at once.
            let waits = latest.is_some_and(|latest| waiter.until.is_none_or(|until| latest <= until));
            if waits { take.refundable() } else { take }
        };
        let takes: Vec<Take> = waiters.iter().map(take).collect();
        let outcomes = self.store.take(&takes).await;
        let outcomes = match outcomes {
            Ok(outcomes) => outcomes,
            Err(error) => {
                tell(waiters, &error);
                return Err(error);
            }
        };
        let mut given_up = Vec::new();
        // A store may decide one after the other, and answer when it has decided the last: all wait from then.
        let (decided, answered) = (outcomes.iter().flatten().filter_map(Decision::decided_at).max(), Instant::now());
        let since = decided.map_or(answered, |decided| self.clock.lock().here(decided, asked, answered));
        for ((waiter, take), outcome) in waiters.into_iter().zip(&takes).zip(outcomes) {
            let reserved = |decision: Decision| {
                let decision = decision.waiting_from(decided.unwrap_or(0));
                let turn = self.turn(take, decision).since(since);
                // Of several limits another one may be what somebody ahead waits for.
                if take.limits.len() == 1 { turn.behind(turns, waiter.until) } else { turn }
            };
            if let Err(Ok(Ok(turn))) = waiter.answer.send(Ok(outcome.map(reserved))) {
                given_up.push(turn);
            }
        }
        if !given_up.is_empty() {
            // The last one first: then nobody queues behind those that are given back. Nor behind a store that stalls.
            let given_back = Turn::give_back(&self.store, given_up.into_iter().rev());
            drop(timeout(LONGEST_GIVING_BACK, given_back).await);
        }
        Ok(())
    }

    fn turn(&self, take: &Take, decision: Decision) -> Turn<S> {
        Turn::new(Reservation::new(Arc::clone(&self.store), take, decision))
    }

    fn lock(&self) -> MutexGuard<'_, Waiting<S>> {
        self.waiting.lock()
    }
}

/// Who serves a lane. If it ends before its time, by a store that panics or a runtime that ends, those who stand there are
/// told, and the next to come begins anew.
struct Serving<S: Store> {
    lanes: Arc<Lanes<S>>,
    key: Key,
    done: bool,
}

impl<S: Store> Serving<S> {
    /// Asks for all that stand in the lane, again and again until it is empty.
    async fn go_on(mut self) {
        let mut turns = self.lanes.lock().turns(&self.key);
        let mut most = FIRST_AT_ONCE;
        loop {
            let Some(waiters) = self.lanes.lock().next(&self.key, most, &mut turns) else { break };
            if !waiters.is_empty() {
                self.lanes.ask(waiters, &mut turns).await;
            }
            most = (2 * most).min(MOST_AT_ONCE);
        }
        self.done = true;
        let latest = {
            let mut waiting = self.lanes.lock();
            if waiting.is_forgotten(&self.key) {
                return;
            }
            waiting.forget(&self.key)
        };
        if let Some(latest) = latest {
            // Not one of the tasks that somebody waits for in the end. A runtime that ends drops it at once, which locks as well.
            let forgetting = Forgetting { lanes: Arc::downgrade(&self.lanes), key: self.key.clone() };
            tokio::spawn(forgetting.go_on(latest));
        }
    }
}

/// Who forgets a lane once those have gone on who wait there. If its runtime ends before, it does what there is to do then.
struct Forgetting<S: Store> {
    lanes: Weak<Lanes<S>>,
    key: Key,
}

impl<S: Store> Forgetting<S> {
    async fn go_on(self, mut latest: Instant) {
        let mut pause = SOON;
        loop {
            sleep_until(latest.max(Instant::now() + pause)).await;
            let Some(later) = self.lanes.upgrade().and_then(|lanes| lanes.lock().forget(&self.key)) else { return };
            latest = later;
            // Who is not polled any more may never go on.
            pause = (2 * pause).min(LATE);
        }
    }
}

impl<S: Store> Drop for Forgetting<S> {
    fn drop(&mut self) {
        if let Some(lanes) = self.lanes.upgrade() {
            lanes.lock().leave(&self.key);
        }
    }
}

impl<S: Store> Drop for Serving<S> {
    fn drop(&mut self) {
        if !self.done {
            self.lanes.lock().abandon(&self.key);
        }
    }
}

/// How many requests the first call carries, and each later one twice as many: the first in line are due before the answer to a
/// call for all.
const FIRST_AT_ONCE: usize = 16;

/// How many requests one call carries.
const MOST_AT_ONCE: usize = 1000;

/// Who goes on takes a moment to do so.
const SOON: Duration = Duration::from_millis(10);

/// How long somebody who has not gone on is left alone at most.
const LATE: Duration = Duration::from_secs(1);

/// How long those who wait stand behind what is given back for others.
const LONGEST_GIVING_BACK: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::task::{Context, Waker};

    use tokio::runtime::Builder;

    use super::*;
    use crate::layers::Coalesce;
    use crate::limiter::Limiter;
    use crate::model::{Adjusted, Adjustment, TakeError};
    use crate::store::MemoryStore;

    #[test]
    fn a_runtime_that_ends_leaves_no_lane_behind() -> Result<(), Error> {
        let limiter = Limiter::new(Coalesce::new(MemoryStore::new()), "1000/s burst 1")?;
        for number in 0..100 {
            let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
            let waits = async || limiter.wait(format!("user:{number}")).await;
            runtime.block_on(async {
                assert!(waits().await?.is_granted() && waits().await?.is_granted());
                Ok::<_, Error>(())
            })?;
        }
        assert_eq!(limiter.lanes.lock().lanes(), 0);
        Ok(())
    }

    /// A store whose thread stands still until it is let go on.
    struct Still {
        memory: MemoryStore,
        asked: Sender<()>,
        go_on: Mutex<Receiver<()>>,
    }

    impl Store for Still {
        async fn take(&self, takes: &[Take]) -> Result<Vec<Outcome>, Error> {
            self.asked.send(()).expect("the test waits for it");
            self.go_on.lock().recv().expect("the test lets it go on");
            self.memory.take(takes).await
        }

        async fn adjust(&self, adjustments: &[Adjustment]) -> Result<Vec<Result<Adjusted, TakeError>>, Error> {
            self.memory.adjust(adjustments).await
        }
    }

    #[test]
    fn who_asks_for_others_while_its_runtime_ends_keeps_no_lock() -> Result<(), Error> {
        let ((asked, is_asked), (go_on, goes_on)) = (channel(), channel());
        let store = Still { memory: MemoryStore::new(), asked, go_on: Mutex::new(goes_on) };
        let limiter = Limiter::builder(store).without_coalescing().build("1/h")?;
        let _ = limiter.store().memory.decide(&limiter.request("a")?)?;
        let alone = Arc::strong_count(&limiter.lanes);
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
        let within = runtime.enter();
        let mut waits = Box::pin(limiter.wait_n("a", 1, Duration::from_hours(2)));
        assert!(waits.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        is_asked.recv().expect("it asks");
        let handle = runtime.handle().clone();
        drop(within);
        runtime.shutdown_background();
        // No task is begun there any more.
        while !handle.spawn(pending::<()>()).is_finished() {}
        go_on.send(()).expect("it waits");
        for _ in 0..1000 {
            if Arc::strong_count(&limiter.lanes) == alone {
                return Ok(());
            }
            std::thread::sleep(SOON);
        }
        panic!("it never ends");
    }
}
