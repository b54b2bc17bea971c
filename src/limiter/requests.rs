//! The methods for requests that the caller builds. All other methods of the limiter use them.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use super::reservation::ScheduledReservation;
use super::settings::CurrentMode;
use super::{Limiter, Reservation};
use crate::model::{Decision, Error, Mode, Outcome, Receipt, Source, Take};
use crate::store::Store;
use crate::telemetry::{DecisionTimer, GaugeShare, WAITERS};

impl<S: Store> Limiter<S> {
    /// Tries to take the tokens of a request that you build, for instance with several limits.
    ///
    /// Denies at once if they are not available. If the request has a [longest wait](Take::max_wait), takes tokens that become
    /// available within it, and the decision states the [wait](Decision::wait).
    ///
    /// The limiter's own rule, minimum remaining and longest wait do not apply. [`request`](Self::request) builds a request
    /// with the limiter's rule and minimum remaining.
    ///
    /// # Errors
    ///
    /// As for [`allow_n`](Self::allow_n).
    pub async fn decide(&self, take: &Take) -> Result<Decision, Error> {
        let mode = self.mode();
        let at_once;
        let take = if mode == Mode::Shadow && !take.max_wait.is_zero() {
            // In shadow mode, a request that would wait passes instead.
            at_once = Box::new(take.clone().max_wait(Duration::ZERO));
            &*at_once
        } else {
            take
        };
        match self.decide_now(take, mode) {
            Some(answer) => answer,
            None => self.decide_in_time(take, mode).await,
        }
    }

    /// Decides a request without waiting, if this process knows the answer. Otherwise returns `None`: then call
    /// [`decide`](Self::decide), which calls the store.
    ///
    /// The process knows the answer with a [`MemoryStore`](crate::MemoryStore), from a [lease](crate::layers::Lease), for a key
    /// that was just [denied](crate::layers::DenyCache), and if the limiter's [mode](Self::set_mode) decides. Returns `None`
    /// for a request with a [longest wait](Take::max_wait).
    ///
    /// # Errors
    ///
    /// As for [`allow_n`](Self::allow_n).
    #[inline]
    #[must_use = "if it is granted, its tokens are taken"]
    pub fn try_decide(&self, take: &Take) -> Option<Result<Decision, Error>> {
        if take.max_wait.is_zero() { self.decide_now(take, self.mode()) } else { None }
    }

    /// Decides a request by the store, by the deadline.
    async fn decide_in_time(&self, take: &Take, mode: Mode) -> Result<Decision, Error> {
        let begun = self.decisions.begin();
        let answer = match self.policy.bounded(take.key(), pin!(self.stack.take_one(take))).await {
            Ok(outcome) => outcome.map_err(Error::Take),
            Err(failure) => self.fall_back(take, failure),
        }
        .map(|decision| CurrentMode::see(mode, decision));
        self.end(begun, take, answer.as_ref());
        answer
    }

    /// Decides a request from this process. Not async, because moving the large futures of the layers costs more than such an
    /// answer.
    #[inline]
    fn decide_now(&self, take: &Take, mode: Mode) -> Option<Result<Decision, Error>> {
        let answer = match CurrentMode::answer(mode) {
            Some(decision) => Ok(decision),
            None => match self.stack.try_take(take).or_else(|| known(take))? {
                Ok(decision) => Ok(CurrentMode::see(mode, decision)),
                Err(error) => Err(Error::Take(error)),
            },
        };
        self.end(DecisionTimer::untimed(), take, answer.as_ref());
        Some(answer)
    }

    /// Reserves the tokens of a request that you build, for instance with several limits or an id.
    ///
    /// Denies at once, and takes nothing, if the wait would exceed the request's [longest wait](Take::max_wait).
    ///
    /// # Errors
    ///
    /// As for [`allow_n`](Self::allow_n).
    pub async fn reserve_all(&self, take: &Take) -> Result<Reservation<S>, Error> {
        let decision = self.decide(take).await?;
        Ok(Reservation::new(Arc::clone(&self.stack), take, decision))
    }

    /// Takes the tokens of a request that you build, waiting until they are available.
    ///
    /// Denies at once, and takes nothing, if the wait would exceed the request's [longest wait](Take::max_wait).
    ///
    /// # Errors
    ///
    /// As for [`allow_n`](Self::allow_n).
    ///
    /// # Cancel safety
    ///
    /// As for [`wait_n`](Self::wait_n), except for a request with an [id](Take::id): its tokens are not given back, and a
    /// repeated request keeps the scheduled time. To give them back, call [`reserve_all`](Self::reserve_all) with the same id,
    /// and then [`Reservation::cancel`].
    pub async fn wait_all(&self, take: &Take) -> Result<Reservation<S>, Error> {
        let _waiting = GaugeShare::one(WAITERS);
        let turn = match self.mode() {
            // No request waits in shadow mode, except a repeated request that was scheduled before.
            Mode::Shadow => self.turn(take, self.decide(take).await?),
            mode => self.wait_with_mode(mode, take).await?,
        };
        Ok(turn.sleep_until_scheduled().await)
    }

    /// Reserves the tokens in a mode other than shadow.
    async fn wait_with_mode(&self, mode: Mode, take: &Take) -> Result<ScheduledReservation<S>, Error> {
        let begun = self.decisions.begin();
        let turn = match CurrentMode::answer(mode) {
            Some(decision) => Ok(self.turn(take, decision)),
            None => match known(take) {
                Some(outcome) => outcome.map(|decision| self.turn(take, decision)).map_err(Error::Take),
                None => self.reserve_in_time(take).await,
            },
        };
        self.end(begun, take, turn.as_ref().map(ScheduledReservation::decision));
        turn
    }

    async fn reserve_in_time(&self, take: &Take) -> Result<ScheduledReservation<S>, Error> {
        let reserving = async {
            let outcome = self.stack.take_one(take).await?;
            Ok(outcome.map(|decision| self.turn(take, decision)))
        };
        match self.policy.bounded(take.key(), pin!(reserving)).await {
            Ok(turn) => turn.map_err(Error::Take),
            Err(failure) => self.fall_back(take, failure).map(|decision| self.turn(take, decision)),
        }
    }

    /// The fallback's answer to a failure, or the failure.
    fn fall_back(&self, take: &Take, failure: Error) -> Result<Decision, Error> {
        if matches!(failure, Error::CircuitOpen { .. }) {
            self.probe(take);
        }
        self.policy.fall_back(take, failure)
    }

    /// Tests the store in a task, by the decision that a request under an open circuit breaker does not get. Gives the tokens back.
    fn probe(&self, take: &Take) {
        let Some(probe) = self.policy.probe(take.key()) else { return };
        let (policy, stack) = (self.policy.clone(), Arc::clone(&self.stack));
        // The id stays free for a repeated request.
        let take = Take { id: None, max_wait: Duration::ZERO, ..take.clone().refundable() };
        self.stack.tasks.spawn(async move {
            let decision = policy.probed(probe, take.key(), pin!(stack.take_one(&take))).await;
            if let Some(decision) = decision {
                // On an error, the tokens count as used, as after other unknown outcomes.
                drop(Reservation::new(stack, &take, decision).refund_each(Receipt::cost).await);
            }
        });
    }

    /// Records the answer in metrics, traces and denial counts, and counts the request for the sweeper.
    #[inline]
    fn end(&self, begun: DecisionTimer, take: &Take, answer: Result<&Decision, &Error>) {
        let passed;
        let answer = match answer {
            Ok(denied) if take.shadow && !denied.is_granted() => {
                passed = denied.clone().pass(Mode::Shadow);
                Ok(&passed)
            }
            answer => answer,
        };
        self.decisions.end(begun, take, answer);
        if let Some(sweeper) = &self.sweeper {
            match answer.map_or(Source::Store, Decision::source) {
                // A lease makes some rows, but not one for each request, so it counts a sample of 1 in 256.
                Source::Lease if fastrand::u8(..) == 0 => sweeper.count(256, &self.stack),
                // Answers from memory make no rows.
                Source::DenyCache | Source::Fallback | Source::Lease | Source::Limiter => {}
                Source::LocalReads | Source::Store => sweeper.count(1, &self.stack),
            }
        }
        if let (Some(denied), Ok(decision)) = (&self.denied, answer) {
            for place in decision.short() {
                denied.count(&take.limits[place].key, &self.stack.store);
            }
        }
    }

    fn turn(&self, take: &Take, decision: Decision) -> ScheduledReservation<S> {
        ScheduledReservation::new(Reservation::new(Arc::clone(&self.stack), take, decision))
    }
}

/// The answer to a request that needs no store: the request is not valid, or all its limits are unlimited.
fn known(take: &Take) -> Option<Outcome> {
    match take.request() {
        Err(error) => Some(Err(error)),
        Ok(_) => take.is_unlimited().then(|| Ok(Decision::grant(u64::MAX))),
    }
}
