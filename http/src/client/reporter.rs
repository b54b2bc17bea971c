use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;

use super::throttles::Throttles;
use super::ticket::UpstreamLimit;
use tollgate::{Adjusted, Adjustment, Error, Limit, Limiter, Rule, Store, TakeError, Throttle};

/// Reports upstream answers to the store.
pub(super) struct UpstreamReporter<S: Store> {
    pub(super) limiter: Limiter<S>,
    pub(super) throttles: Arc<Throttles>,
    /// Answers of the client and its clones that could not be reported.
    pub(super) unreported: Arc<AtomicU64>,
    pub(super) max_throttle: Duration,
}

impl<S: Store> UpstreamReporter<S> {
    /// Settles estimates. Bounds the debt by the longest throttle, because the upstream states the cost.
    pub(super) async fn settle(&self, settled: Vec<Adjustment>) -> Result<Vec<Result<Adjusted, TakeError>>, Error> {
        let bounded = settled.into_iter().map(|settled| settled.max_debt(self.max_throttle));
        self.limiter.adjust(bounded.collect()).await
    }

    /// Reports an answer for all limits at once. Returns whether the store has the throttles of a refusal.
    ///
    /// Settles estimates before it applies the tokens left: the upstream counted them after its own settlement.
    pub(super) async fn report(self, settled: Vec<Adjustment>, held: Vec<UpstreamLimit>) -> bool {
        let bounded = held.into_iter().map(|limit| UpstreamLimit {
            hold: until_window(within(limit.hold, self.max_throttle), limit.window),
            ..limit
        });
        let of_limiter = self.limiter.rule();
        let held: Vec<_> = bounded.map(|held| (refused_until(&held, &of_limiter), held)).collect();
        for (until, held) in &held {
            if let Some(until) = until {
                self.throttles.announce(&held.key, *until);
            }
        }
        let is_settled =
            |(_, held): &(_, UpstreamLimit)| settled.iter().any(|settled| *settled.receipt().key() == held.key);
        let (after, at_once): (Vec<_>, Vec<_>) = held.into_iter().partition(is_settled);
        let mut passing = JoinSet::new();
        for (until, held) in at_once {
            passing.spawn(self.clone().report_one(held, until));
        }
        // Throttles the other limits even if the settlement fails.
        let mut all = self.settle(settled).await.is_ok_and(|settled| settled.iter().all(is_paid));
        for (until, held) in after {
            passing.spawn(self.clone().report_one(held, until));
        }
        let mut of_refusal = true;
        while let Some(passed_on) = passing.join_next().await {
            let (passed_on, refused) = passed_on.unwrap_or((false, true));
            all &= passed_on;
            of_refusal &= passed_on || !refused;
        }
        if !all {
            self.unreported.fetch_add(1, Ordering::Relaxed);
        }
        of_refusal
    }

    /// Returns whether the store has the throttle, and whether the request was refused because of this limit.
    async fn report_one(self, held: UpstreamLimit, until: Option<Instant>) -> (bool, bool) {
        let passed_on = match &held.limit {
            Some(limit) => self.limiter.throttle_limit(limit, held.hold).await,
            None => self.limiter.throttle(&held.key, held.hold).await,
        };
        match (until, &passed_on) {
            (Some(until), Ok(_)) => self.throttles.stored(&held.key, until),
            // The store can never apply the throttle, so waiting requests keep their scheduled times.
            (Some(until), Err(error)) if !error.is_failure() => self.throttles.withdraw(&held.key, until),
            _ => {}
        }
        (passed_on.is_ok(), held.refused)
    }
}

/// Bounds a throttle by a second longest wait. The shorter one counts.
pub(super) fn within(hold: Throttle, max_throttle: Duration) -> Throttle {
    hold.and(Throttle::retry_after(Duration::ZERO).max_wait(max_throttle))
}

/// Shortens the wait of a limit with a fixed window, whose tokens come only when a window begins. Otherwise a window that
/// begins just before the end of the wait would be lost. The rest of the current window is always lost.
fn until_window(hold: Throttle, window: Option<Duration>) -> Throttle {
    let (wait, Some(window)) = (hold.wait(), window.filter(|_| !hold.wait().is_zero())) else { return hold };
    let shorter = MAX_LATENESS.min(window.saturating_sub(Duration::from_nanos(1)));
    let wait = wait.saturating_sub(shorter).max(Duration::from_nanos(1));
    let hold_for = Throttle::retry_after(wait).max_wait(wait);
    hold.remaining_tokens().map_or(hold_for, |left| hold_for.and(Throttle::remaining(left)))
}

/// How much later than an upstream's window its stated wait can end: upstreams round seconds up, and answers travel.
const MAX_LATENESS: Duration = Duration::from_secs(2);

/// Returns until when this limit refuses requests. `None` if it did not refuse, or if it cannot be throttled.
fn refused_until(held: &UpstreamLimit, of_limiter: &Rule) -> Option<Instant> {
    let can_be_held = !matches!(held.limit.as_ref().map_or(of_limiter, Limit::rule), Rule::Window(_));
    (held.refused && can_be_held).then(|| Instant::now() + held.hold.wait())
}

/// Whether a settlement changed the bucket. A late one has changed nothing.
fn is_paid(settled: &Result<Adjusted, TakeError>) -> bool {
    matches!(settled, Ok(Adjusted::Done(_) | Adjusted::Repeated))
}

impl<S: Store> Clone for UpstreamReporter<S> {
    fn clone(&self) -> Self {
        let (throttles, unreported) = (Arc::clone(&self.throttles), Arc::clone(&self.unreported));
        Self { limiter: self.limiter.clone(), throttles, unreported, ..*self }
    }
}
