//! A limiter over any store, behind one type, so that the layer has no type parameters.

use tollgate::middleware::{MiddlewareEvent, MiddlewareHooks};
use tollgate::{Decision, Error, Limit, Limiter, Mode, Rule, Store, Take};

use super::future::BoxFuture;
use super::refund::{Charge, LimiterCharge};

/// A decision that can be ready at once, as from memory. The future is large, so it is created only when needed.
pub(super) enum PendingDecision<'a> {
    Now(Result<Decision, Error>),
    Later(BoxFuture<'a, Result<ChargedDecision, Error>>),
}

pub(super) trait ErasedLimiter: Send + Sync {
    /// Builds a request under the limiter's own limit, or under another one.
    fn request(&self, limit: Limit, own: bool) -> Take;

    /// Returns the limiter's minimum remaining.
    fn min_remaining(&self) -> u64;

    /// Returns the limiter's current rule.
    fn rule(&self) -> Rule;

    /// Counts and logs a request for which the limiter was not called, or a failed refund.
    fn record(&self, event: MiddlewareEvent<'_>);

    /// Identifies the limiter and its clones while one of them exists.
    fn id(&self) -> usize;

    /// Whether the limiter is in mode `off` or `shadow`.
    fn admits_denied(&self) -> bool;

    /// Decides a request, and sleeps until its scheduled time if `asks.waits`. If `asks.refundable`, the answer can
    /// give tokens back.
    fn ask<'a>(&'a self, take: &'a Take, options: WaitOptions) -> PendingDecision<'a>;
}

/// Options of a layer's request beyond its tokens.
#[derive(Clone, Copy, Debug)]
pub(super) struct WaitOptions {
    pub(super) waits: bool,
    pub(super) refundable: bool,
}

/// A decision, and the taken tokens if they can be refunded.
pub(super) type ChargedDecision = (Decision, Option<Box<dyn Charge>>);

impl<S: Store> ErasedLimiter for Limiter<S> {
    fn request(&self, limit: Limit, own: bool) -> Take {
        if own {
            Take::from(limit.min_remaining(MiddlewareHooks::min_remaining(self)))
        } else {
            self.request_for(limit)
        }
    }

    fn min_remaining(&self) -> u64 {
        MiddlewareHooks::min_remaining(self)
    }

    fn rule(&self) -> Rule {
        Self::rule(self)
    }

    fn record(&self, event: MiddlewareEvent<'_>) {
        MiddlewareHooks::record(self, event);
    }

    fn id(&self) -> usize {
        std::ptr::from_ref(self.store()).addr()
    }

    fn admits_denied(&self) -> bool {
        matches!(self.mode(), Mode::Off | Mode::Shadow)
    }

    fn ask<'a>(&'a self, take: &'a Take, options: WaitOptions) -> PendingDecision<'a> {
        let WaitOptions { waits, refundable } = options;
        if !waits && !refundable {
            return match self.try_decide(take) {
                Some(answer) => PendingDecision::Now(answer),
                None => PendingDecision::Later(Box::pin(async move { Ok((self.decide(take).await?, None)) })),
            };
        }
        PendingDecision::Later(Box::pin(async move {
            let reservation = self.reserve_request(take).await?;
            if waits {
                // A client that disconnects now has used its tokens. Otherwise clients could reserve and disconnect
                // without end.
                reservation.wait().await;
            }
            let decision = reservation.decision().clone();
            let taken = || LimiterCharge { limiter: self.clone(), receipts: reservation.receipts().to_vec() };
            let charge = (refundable && decision.is_granted()).then(|| Box::new(taken()) as Box<dyn Charge>);
            Ok((decision, charge))
        }))
    }
}
