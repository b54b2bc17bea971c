use super::MemoryStore;
use crate::clock::Clock;
use crate::model::window;
use crate::model::window::Counted;
use crate::model::{Error, Key, Mode, Outcome, Rule, Take, Window};
use crate::store::SharedWindows;

impl<C: Clock> MemoryStore<C> {
    /// Decides a request under a sliding window.
    pub(super) fn decide_window(&self, take: &Take, window: &Window) -> Outcome {
        let request = take.request()?;
        let key = take.key();
        let mut shard = self.shard(key).lock();
        let now = self.clock.now();
        let mode = self.rules.of(key, &take.limits[0].rule, None).mode(None, now);
        let of = key.of_window();
        if let Some(id) = take.id {
            shard.receipts.make_room(id, &of, now)?;
        }
        let held = take.id.and_then(|id| shard.receipts.get(id, &of, now));
        let counted = if mode.0 == Mode::Off {
            window::decide(&mut shard.known_window(key, window, now), window, request, mode, held, now)
        } else {
            window::decide(shard.window(key, window, now)?, window, request, mode, held, now)
        };
        let outcome = counted.outcome(take, window, request);
        if let (Some(id), Ok(decision), None) = (take.id, &outcome, held)
            && let Some((_, receipt)) = decision.taken().next()
        {
            shard.receipts.grant(id, &of, receipt, take.id_of, now.saturating_add(take.hold_ns()));
        }
        outcome
    }
}

impl<C: Clock> SharedWindows for MemoryStore<C> {
    async fn count(&self, key: &Key, window: &Window, cost: u64) -> Result<Counted, Error> {
        let cost = i64::try_from(cost).unwrap_or(i64::MAX);
        let mut shard = self.shard(key).lock();
        let now = self.clock.now();
        let mode = self.rules.of(key, &Rule::Window(*window), None).mode(None, now);
        if mode.0 == Mode::Off {
            return Ok(shard.known_window(key, window, now).count_now(window, mode, cost, now));
        }
        Ok(shard.window(key, window, now)?.count_now(window, mode, cost, now))
    }
}
