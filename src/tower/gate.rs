//! A limiter over any store, behind one type: so that the layer has no parameters of its own.

use std::pin::Pin;

use super::NoKey;
use crate::limiter::Abandoned;
use crate::{Decision, Error, Limit, Limiter, Mode, Receipt, Reservation, Rule, Store, Take};

/// An answer that may be there at once, as memory's is: the future for any other is large.
pub(super) enum Asked<'a> {
    Now(Result<Decision, Error>),
    Later(Later<'a, Result<Charged, Error>>),
}

pub(super) type Later<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

pub(super) trait Gate: Send + Sync {
    /// A request for tokens, so many unless the limit says otherwise, which leaves to others what the limiter keeps for them.
    /// Whether the bucket is the limiter's own is for the caller to say.
    fn take(&self, limit: Limit, cost: u64, own: bool) -> Take;

    /// The rule that holds now.
    fn rule(&self) -> Rule;

    /// Tells of a request that is refused because it has no key.
    fn refused(&self, none: &NoKey);

    /// Tells of a request that passes under none of the limits, because it has no key.
    fn passed(&self);

    /// Tells of a request that the service has no terms for: it is refused, unless all is only for show.
    fn failed(&self, error: &Error);

    /// Tells of what a request did not use and was not given back.
    fn not_refunded(&self, error: &Error);

    /// Whether it is switched off, or to shadow.
    fn lets_pass(&self) -> bool;

    /// Decides, and waits for the turn unless it is only for show. If the request is refundable, the answer says how its
    /// tokens are given back.
    fn ask<'a>(&'a self, take: &'a Take) -> Asked<'a>;
}

/// An answer, and what was taken if it may have to be given back.
pub(super) type Charged = (Decision, Option<Box<dyn Charge>>);

/// Tokens that were taken.
pub(super) trait Charge: Send + Sync {
    /// Gives back what was not used of what each bucket gave, if that is anything.
    fn refund(self: Box<Self>, unused: &dyn Fn(&Receipt) -> u64) -> Option<Later<'static, Result<u64, Error>>>;
}

impl<S: Store> Gate for Limiter<S> {
    fn take(&self, limit: Limit, cost: u64, own: bool) -> Take {
        self.take_under(limit, cost, own)
    }

    fn rule(&self) -> Rule {
        Self::rule(self)
    }

    fn refused(&self, none: &NoKey) {
        // What a client left out is in its answer, and may be made up of what it sent.
        let reason = none.status().is_server_error().then(|| none.to_string());
        self.decisions.nobodys(none.status().as_u16(), reason.as_deref());
    }

    fn passed(&self) {
        self.decisions.passed();
    }

    fn failed(&self, error: &Error) {
        self.decisions.without_terms(error);
    }

    fn not_refunded(&self, error: &Error) {
        self.decisions.not_refunded(error);
    }

    fn lets_pass(&self) -> bool {
        matches!(self.mode(), Mode::Off | Mode::Shadow)
    }

    fn ask<'a>(&'a self, take: &'a Take) -> Asked<'a> {
        if take.max_wait.is_zero() && !take.refundable {
            let mode = self.mode();
            return match self.decide_now(take, mode) {
                Some(answer) => Asked::Now(answer),
                None => Asked::Later(Box::pin(async move { Ok((self.decide_in_time(take, mode).await?, None)) })),
            };
        }
        Asked::Later(Box::pin(async move {
            if !take.max_wait.is_zero() && !take.shadow {
                // A client that goes away has used its turn, or it could ask for ever more.
                let turn = self.wait_or(take, Abandoned::Used).await?;
                return Ok(charged(turn, take));
            }
            if take.refundable {
                return Ok(charged(self.reserve_all(take).await?, take));
            }
            Ok((self.decide(take).await?, None))
        }))
    }
}

fn charged<S: Store>(reservation: Reservation<S>, take: &Take) -> Charged {
    let decision = reservation.decision().clone();
    let charge = (take.refundable && decision.is_granted()).then(|| Box::new(reservation) as Box<dyn Charge>);
    (decision, charge)
}

impl<S: Store> Charge for Reservation<S> {
    fn refund(self: Box<Self>, unused: &dyn Fn(&Receipt) -> u64) -> Option<Later<'static, Result<u64, Error>>> {
        let unused: Vec<u64> = self.receipts().iter().map(unused).collect();
        if unused.iter().all(|unused| *unused == 0) {
            return None;
        }
        Some(Box::pin(self.refund_in_turn(unused)))
    }
}
