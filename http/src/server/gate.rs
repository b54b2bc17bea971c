//! A limiter over any store, behind one type: so that the layer has no parameters of its own.

use std::pin::Pin;

use tollgate::telemetry::MiddlewareEvent;
use tollgate::{Decision, Error, Key, Limit, Limiter, Mode, Receipt, Reservation, Rule, Store, Take};

/// An answer that may be there at once, as memory's is: the future for any other is large.
pub(super) enum PendingDecision<'a> {
    Now(Result<Decision, Error>),
    Later(Later<'a, Result<Charged, Error>>),
}

pub(super) type Later<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

pub(super) trait Gate: Send + Sync {
    /// Begins a request: with the limiter's own limit, or with another one.
    fn request(&self, limit: Limit, own: bool) -> Take;

    /// Returns how many tokens each request leaves.
    fn required_remaining(&self) -> u64;

    /// The rule that holds now.
    fn rule(&self) -> Rule;

    /// Counts and logs a request for which the limiter was not asked, or tokens that were not given back.
    fn record(&self, event: MiddlewareEvent<'_>);

    /// Whether it is switched off, or to shadow.
    fn lets_pass(&self) -> bool;

    /// Decides a request, and then sleeps until its scheduled time if `asks` says so. If it is refundable, the answer can give
    /// its tokens back.
    fn ask<'a>(&'a self, take: &'a Take, asks: WaitOptions) -> PendingDecision<'a>;
}

/// What a layer asks beside the tokens.
#[derive(Clone, Copy, Debug)]
pub(super) struct WaitOptions {
    pub(super) waits: bool,
    pub(super) refundable: bool,
}

/// An answer, and what was taken if it may have to be given back.
pub(super) type Charged = (Decision, Option<Box<dyn Charge>>);

/// Tokens that were taken.
pub(super) trait Charge: Send + Sync {
    /// Gives back what was not used of what each bucket gave, if that is anything.
    fn refund(self: Box<Self>, unused: &dyn Fn(&Receipt) -> u64) -> Option<Later<'static, Result<u64, Error>>>;
}

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
                // A client that goes away now has used its tokens. Otherwise clients that come and go could ask for ever more.
                reservation.wait().await;
            }
            let decision = reservation.decision().clone();
            let charge = (refundable && decision.is_granted()).then(|| Box::new(reservation) as Box<dyn Charge>);
            Ok((decision, charge))
        }))
    }
}

impl<S: Store> Charge for Reservation<S> {
    fn refund(self: Box<Self>, unused: &dyn Fn(&Receipt) -> u64) -> Option<Later<'static, Result<u64, Error>>> {
        let unused: Vec<(Key, u64)> =
            self.receipts().iter().map(|receipt| (receipt.key().clone(), unused(receipt))).collect();
        if unused.iter().all(|(_, unused)| *unused == 0) {
            return None;
        }
        let of_key = move |receipt: &Receipt| {
            unused.iter().find_map(|(key, unused)| (key == receipt.key()).then_some(*unused)).unwrap_or(0)
        };
        Some(Box::pin(self.refund_each(of_key)))
    }
}
