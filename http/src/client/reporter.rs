use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;

use super::report::{ReportedLimit, bounded};
use super::throttles::Throttles;
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
    pub(super) async fn settle(&self, settlements: Vec<Adjustment>) -> Result<Vec<Result<Adjusted, TakeError>>, Error> {
        let bounded = settlements.into_iter().map(|settlements| settlements.max_debt(self.max_throttle));
        self.limiter.adjust(bounded.collect()).await
    }

    /// Reports an answer for all limits at once. Returns whether the store has the throttles of a refusal.
    ///
    /// Settles estimates before it applies the tokens left: the upstream counted them after its own settlement.
    pub(super) async fn report(self, settlements: Vec<Adjustment>, reported: Vec<ReportedLimit>) -> bool {
        let bounded = reported.into_iter().map(|limit| ReportedLimit {
            throttle: shortened_for_window(bounded(limit.throttle, self.max_throttle), limit.window),
            ..limit
        });
        let limiter_rule = self.limiter.rule();
        let reported: Vec<_> = bounded.map(|reported| (refused_until(&reported, &limiter_rule), reported)).collect();
        for (until, reported) in &reported {
            if let Some(until) = until {
                self.throttles.announce(&reported.key, *until);
            }
        }
        let is_settled = |(_, reported): &(_, ReportedLimit)| {
            settlements.iter().any(|settlements| *settlements.receipt().key() == reported.key)
        };
        let (with_settlement, unsettled): (Vec<_>, Vec<_>) = reported.into_iter().partition(is_settled);
        let mut tasks = JoinSet::new();
        for (until, reported) in unsettled {
            tasks.spawn(self.clone().report_one(reported, until));
        }
        // Throttles the other limits even if the settlement fails.
        let mut all_stored = self.settle(settlements).await.is_ok_and(|settlements| settlements.iter().all(is_applied));
        for (until, reported) in with_settlement {
            tasks.spawn(self.clone().report_one(reported, until));
        }
        let mut refusal_stored = true;
        while let Some(is_stored) = tasks.join_next().await {
            let (is_stored, refused) = is_stored.unwrap_or((false, true));
            all_stored &= is_stored;
            refusal_stored &= is_stored || !refused;
        }
        if !all_stored {
            self.unreported.fetch_add(1, Ordering::Relaxed);
        }
        refusal_stored
    }

    /// Returns whether the store has the throttle, and whether the request was refused because of this limit.
    async fn report_one(self, reported: ReportedLimit, until: Option<Instant>) -> (bool, bool) {
        let is_stored = match &reported.limit {
            Some(limit) => self.limiter.throttle_limit(limit, reported.throttle).await,
            None => self.limiter.throttle(&reported.key, reported.throttle).await,
        };
        match (until, &is_stored) {
            (Some(until), Ok(_)) => self.throttles.stored(&reported.key, until),
            // The store can never apply the throttle, so waiting requests keep their scheduled times.
            (Some(until), Err(error)) if !error.is_failure() => self.throttles.withdraw(&reported.key, until),
            _ => {}
        }
        (is_stored.is_ok(), reported.refused)
    }
}

/// Shortens the wait of a limit with a fixed window, whose tokens come only when a window begins. Otherwise a window that
/// begins just before the end of the wait would be lost. The rest of the current window is always lost.
fn shortened_for_window(throttle: Throttle, window: Option<Duration>) -> Throttle {
    let (wait, Some(window)) = (throttle.wait(), window.filter(|_| !throttle.wait().is_zero())) else {
        return throttle;
    };
    let early_by = MAX_LATENESS.min(window.saturating_sub(Duration::from_nanos(1)));
    let wait = wait.saturating_sub(early_by).max(Duration::from_nanos(1));
    let shortened = Throttle::retry_after(wait).max_wait(wait);
    throttle.get_remaining().map_or(shortened, |remaining| shortened.and(Throttle::remaining(remaining)))
}

/// How much later than an upstream's window its stated wait can end: upstreams round seconds up, and answers travel.
const MAX_LATENESS: Duration = Duration::from_secs(2);

/// Returns until when this limit refuses requests. `None` if it did not refuse, or if it cannot be throttled.
fn refused_until(reported: &ReportedLimit, limiter_rule: &Rule) -> Option<Instant> {
    let can_be_throttled = !matches!(reported.limit.as_ref().map_or(limiter_rule, Limit::rule), Rule::Window(_));
    (reported.refused && can_be_throttled).then(|| Instant::now() + reported.throttle.wait())
}

/// Whether a settlement changed the bucket. A late one has changed nothing.
fn is_applied(settlements: &Result<Adjusted, TakeError>) -> bool {
    matches!(settlements, Ok(Adjusted::Done(_) | Adjusted::Repeated))
}

impl<S: Store> Clone for UpstreamReporter<S> {
    fn clone(&self) -> Self {
        let (throttles, unreported) = (Arc::clone(&self.throttles), Arc::clone(&self.unreported));
        Self { limiter: self.limiter.clone(), throttles, unreported, ..*self }
    }
}
