//! Requests of the caller's own making, which all verbs come to.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use super::reservation::ScheduledReservation;
use super::settings::CurrentMode;
use super::{Limiter, Reservation};
use crate::model::{Decision, Error, Mode, Outcome, Source, Take};
use crate::store::Store;
use crate::telemetry::{DecisionTimer, GaugeShare, WAITERS};

impl<S: Store> Limiter<S> {
    /// Decides a request of the caller's own making, for instance for several limits at once. It says all by itself: the
    /// limiter's rule, what it keeps and its longest wait are those of [`request`](Self::request) and of the other verbs.
    ///
    /// # Errors
    ///
    /// As for [`allow_n`](Self::allow_n).
    pub async fn decide(&self, take: &Take) -> Result<Decision, Error> {
        let mode = self.mode();
        let at_once;
        let take = if mode == Mode::Shadow && !take.max_wait.is_zero() {
            // Who would have to wait passes instead.
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

    /// Decides a request without waiting, if this process knows the answer, or returns `None`.
    ///
    /// It does for a [`MemoryStore`](crate::MemoryStore), from a [lease](crate::layers::Lease), for what was just
    /// [denied](crate::layers::DenyCache), and where a [mode](Self::set_mode) decides. After `None`, [`decide`](Self::decide) asks
    /// the store. So does a request with a [longest wait](Take::max_wait).
    ///
    /// # Errors
    ///
    /// As for [`allow_n`](Self::allow_n).
    #[inline]
    #[must_use = "if it is granted, its tokens are taken"]
    pub fn try_decide(&self, take: &Take) -> Option<Result<Decision, Error>> {
        if take.max_wait.is_zero() { self.decide_now(take, self.mode()) } else { None }
    }

    /// What is not known at once.
    async fn decide_in_time(&self, take: &Take, mode: Mode) -> Result<Decision, Error> {
        let begun = self.decisions.begin();
        let answer = match self.policy.bounded(take.key(), pin!(self.stack.take_one(take))).await {
            Ok(outcome) => outcome.map_err(Error::Take),
            Err(failure) => self.policy.instead(take, failure),
        }
        .map(|decision| CurrentMode::see(mode, decision));
        self.end(begun, take, answer.as_ref());
        answer
    }

    /// Without the futures of the layers and of the policy, which are large, and only to be moved about for such an answer.
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

    /// Reserves what a request of the caller's own making says, for instance of several limits at once, or with an id.
    ///
    /// # Errors
    ///
    /// As for [`allow_n`](Self::allow_n).
    pub async fn reserve_all(&self, take: &Take) -> Result<Reservation<S>, Error> {
        let decision = self.decide(take).await?;
        Ok(Reservation::new(Arc::clone(&self.stack), take, decision))
    }

    /// Waits for the turn of a request of the caller's own making, and for its [longest wait](Take::max_wait) at most.
    ///
    /// If its turn would come later, it is denied at once, and takes nothing.
    ///
    /// # Errors
    ///
    /// As for [`allow_n`](Self::allow_n).
    ///
    /// # Cancel safety
    ///
    /// As for [`wait_n`](Self::wait_n). A turn of a request with an [id](Take::id) is not given back: who asked with the same id,
    /// or asks again, goes on with it. Whoever knows that nobody will cancels it, by [`reserve_all`](Self::reserve_all) with that
    /// id and [`Reservation::cancel`].
    pub async fn wait_all(&self, take: &Take) -> Result<Reservation<S>, Error> {
        let _waiting = GaugeShare::one(WAITERS);
        let turn = match self.mode() {
            // Nobody waits then, but for the turn that the same request was given before.
            Mode::Shadow => self.turn(take, self.decide(take).await?),
            mode => self.wait_with_mode(mode, take).await?,
        };
        Ok(turn.sleep_until_scheduled().await)
    }

    /// Its turn, or the answer that needs none.
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
            Err(failure) => self.policy.instead(take, failure).map(|decision| self.turn(take, decision)),
        }
    }

    /// Tells those who watch what a request came to.
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
                // What a lease gives back makes rows, though not for each request: a sample will do.
                Source::Lease if fastrand::u8(..) == 0 => sweeper.count(256, &self.stack),
                // What memory answers makes none, however much of it there is.
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

/// What is to be said of a request whether the store answers or not.
fn known(take: &Take) -> Option<Outcome> {
    match take.request() {
        Err(error) => Some(Err(error)),
        Ok(_) => take.is_unlimited().then(|| Ok(Decision::grant(u64::MAX))),
    }
}
