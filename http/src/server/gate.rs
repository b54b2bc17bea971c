//! A limiter over any store, behind one type, so that the layer has no type parameters.

use std::pin::Pin;

use tollgate::telemetry::MiddlewareEvent;
use tollgate::{Adjusted, Decision, Error, Key, Limit, Limiter, Mode, Receipt, Rule, Store, Take};

/// A decision that can be ready at once, as from memory. The future is large, so it is created only when needed.
pub(super) enum PendingDecision<'a> {
    Now(Result<Decision, Error>),
    Later(Later<'a, Result<Charged, Error>>),
}

pub(super) type Later<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

pub(super) trait Gate: Send + Sync {
    /// Builds a request under the limiter's own limit, or under another one.
    fn request(&self, limit: Limit, own: bool) -> Take;

    /// Returns the limiter's minimum remaining.
    fn required_remaining(&self) -> u64;

    /// Returns the limiter's current rule.
    fn rule(&self) -> Rule;

    /// Counts and logs a request for which the limiter was not called, or a failed refund.
    fn record(&self, event: MiddlewareEvent<'_>);

    /// Identifies the limiter and its clones while one of them exists.
    fn id(&self) -> usize;

    /// Whether the limiter is in mode `off` or `shadow`.
    fn lets_pass(&self) -> bool;

    /// Decides a request, and sleeps until its scheduled time if `asks.waits`. If `asks.refundable`, the answer can
    /// give tokens back.
    fn ask<'a>(&'a self, take: &'a Take, asks: WaitOptions) -> PendingDecision<'a>;
}

/// Options of a layer's request beyond its tokens.
#[derive(Clone, Copy, Debug)]
pub(super) struct WaitOptions {
    pub(super) waits: bool,
    pub(super) refundable: bool,
}

/// A decision, and the taken tokens if they can be refunded.
pub(super) type Charged = (Decision, Option<Box<dyn Charge>>);

/// Tokens that a request has taken.
pub(super) trait Charge: Send + Sync {
    /// Gives the unused tokens of each bucket back. Returns `None` if there are none.
    fn refund(self: Box<Self>, unused: &dyn Fn(&Receipt) -> u64) -> Option<Later<'static, Result<Refunds, Error>>>;
}

/// How many tokens buckets got back.
pub(super) type Refunds = Vec<(Key, u64)>;

impl<S: Store> Gate for Limiter<S> {
    fn request(&self, limit: Limit, own: bool) -> Take {
        if own { Take::from(limit.min_remaining(self.required_remaining())) } else { self.request_for(limit) }
    }

    fn required_remaining(&self) -> u64 {
        Self::required_remaining(self)
    }

    fn rule(&self) -> Rule {
        Self::rule(self)
    }

    fn record(&self, event: MiddlewareEvent<'_>) {
        Self::record(self, event);
    }

    fn id(&self) -> usize {
        std::ptr::from_ref(self.store()).addr()
    }

    fn lets_pass(&self) -> bool {
        matches!(self.mode(), Mode::Off | Mode::Shadow)
    }

    fn ask<'a>(&'a self, take: &'a Take, asks: WaitOptions) -> PendingDecision<'a> {
        let WaitOptions { waits, refundable } = asks;
        if !waits && !refundable {
            return match self.try_decide(take) {
                Some(answer) => PendingDecision::Now(answer),
                None => PendingDecision::Later(Box::pin(async move { Ok((self.decide(take).await?, None)) })),
            };
        }
        PendingDecision::Later(Box::pin(async move {
            let reservation = self.reserve_all(take).await?;
            if waits {
                // A client that disconnects now has used its tokens. Otherwise clients could reserve and disconnect
                // without end.
                reservation.wait().await;
            }
            let decision = reservation.decision().clone();
            let taken = || Taken { limiter: self.clone(), receipts: reservation.receipts().to_vec() };
            let charge = (refundable && decision.is_granted()).then(|| Box::new(taken()) as Box<dyn Charge>);
            Ok((decision, charge))
        }))
    }
}

struct Taken<S: Store> {
    limiter: Limiter<S>,
    receipts: Vec<Receipt>,
}

impl<S: Store> Charge for Taken<S> {
    fn refund(self: Box<Self>, unused: &dyn Fn(&Receipt) -> u64) -> Option<Later<'static, Result<Refunds, Error>>> {
        let Self { limiter, receipts } = *self;
        let unused = receipts.into_iter().map(|receipt| (unused(&receipt), receipt)).filter(|(unused, _)| *unused > 0);
        let (keys, refunds): (Vec<_>, Vec<_>) =
            unused.map(|(unused, receipt)| (receipt.key().clone(), receipt.refund(unused))).unzip();
        if refunds.is_empty() {
            return None;
        }
        Some(Box::pin(async move {
            let adjusted = limiter.adjust(refunds).await?;
            let given_back = keys.into_iter().zip(adjusted).map(|(key, adjusted)| match adjusted? {
                Adjusted::Done(tokens) => Ok((key, tokens.unsigned_abs())),
                _ => Ok((key, 0)),
            });
            given_back.collect()
        }))
    }
}
