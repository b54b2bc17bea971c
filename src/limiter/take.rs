//! The methods that take tokens.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use super::Limiter;
use super::reservation::{Reservation, ScheduledReservation};
use super::settings::CurrentMode;
use crate::layers::deny_cache::CacheMiss;
use crate::model::{Checked, Decision, Error, Key, Mode, Receipt, Source, Take, TakeError, TakeInParts};
use crate::store::Store;
use crate::store::interface::{expand, expand_known};
use crate::telemetry::{DecisionTimer, GaugeShare, WAITERS};

impl<S: Store> Limiter<S> {
    /// Takes a token now.
    ///
    /// Denies immediately, and takes nothing, if no token is available.
    ///
    /// # Errors
    ///
    /// As for [`allow_n`](Self::allow_n).
    pub async fn allow<K>(&self, key: K) -> Result<Decision, Error>
    where
        K: TryInto<Key>,
        Error: From<K::Error>,
    {
        self.decide(&self.take(key.try_into()?, 1)).await
    }

    /// Takes `cost` tokens now, or none.
    ///
    /// Denies immediately, and takes nothing, if fewer tokens are available.
    ///
    /// # Errors
    ///
    /// Returns an error if the text is not a valid [`Key`], the cost is 0 or above the bucket's capacity, or the store fails
    /// and there is no [`fallback`](crate::LimiterBuilder::fallback).
    ///
    /// # Cancel safety
    ///
    /// If dropped, the tokens may have been taken.
    pub async fn allow_n<K>(&self, key: K, cost: u64) -> Result<Decision, Error>
    where
        K: TryInto<Key>,
        Error: From<K::Error>,
    {
        self.decide(&self.take(key.try_into()?, cost)).await
    }

    /// Takes a token now or later. The reservation states how long to wait.
    ///
    /// Denies at once, and takes nothing, if the wait would exceed the [longest wait](crate::LimiterBuilder::max_wait).
    /// Default: 30 s.
    ///
    /// # Errors
    ///
    /// As for [`allow_n`](Self::allow_n).
    pub async fn reserve<K>(&self, key: K) -> Result<Reservation<S>, Error>
    where
        K: TryInto<Key>,
        Error: From<K::Error>,
    {
        self.reserve_n(key, 1).await
    }

    /// Takes `cost` tokens now or later. The reservation states how long to wait. Later requests queue behind it.
    ///
    /// Denies at once, and takes nothing, if the wait would exceed the [longest wait](crate::LimiterBuilder::max_wait). Default: 30 s.
    /// If the process dies, the tokens of its reservations count as used. A cost above the bucket's capacity is an error, not a
    /// denial.
    ///
    /// # Errors
    ///
    /// As for [`allow_n`](Self::allow_n).
    ///
    /// # Cancel safety
    ///
    /// As for [`allow_n`](Self::allow_n).
    pub async fn reserve_n<K>(&self, key: K, cost: u64) -> Result<Reservation<S>, Error>
    where
        K: TryInto<Key>,
        Error: From<K::Error>,
    {
        let take = self.take(key.try_into()?, cost).max_wait(self.max_wait);
        self.reserve_request(&take).await
    }

    /// Waits for a token, and takes it. Returns the reservation when the token can be used, or at once if it is denied.
    ///
    /// Denies, and takes nothing, if the wait would exceed the [longest wait](crate::LimiterBuilder::max_wait). Default: 30 s.
    ///
    /// # Errors
    ///
    /// As for [`allow_n`](Self::allow_n).
    ///
    /// # Cancel safety
    ///
    /// As for [`wait_n`](Self::wait_n).
    pub async fn wait<K>(&self, key: K) -> Result<Reservation<S>, Error>
    where
        K: TryInto<Key>,
        Error: From<K::Error>,
    {
        self.wait_n(key, 1, self.max_wait).await
    }

    /// Waits at most `max_wait` for `cost` tokens, and takes them. Returns the reservation when the tokens can be used, or at once
    /// if they are denied.
    ///
    /// Denies, and takes nothing, if the wait would be longer. The limiter calls the store once and then sleeps.
    /// Requests that wait for one key of one limiter and its clones are served in the order of their calls.
    ///
    /// # Errors
    ///
    /// As for [`allow_n`](Self::allow_n).
    ///
    /// # Cancel safety
    ///
    /// If dropped before the scheduled time, the tokens that no later request queues behind are given back. Tokens that were
    /// granted without a wait count as used.
    pub async fn wait_n<K>(&self, key: K, cost: u64, max_wait: Duration) -> Result<Reservation<S>, Error>
    where
        K: TryInto<Key>,
        Error: From<K::Error>,
    {
        let take = self.take(key.try_into()?, cost).max_wait(max_wait);
        self.wait_request(&take).await
    }

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
        self.decide_expanded(take).await.map(|(_, decision)| decision)
    }

    /// Decides a request. Also returns the request for each limit of its plans and rules, if they have several.
    async fn decide_expanded(&self, take: &Take) -> Result<(Option<Box<Take>>, Decision), Error> {
        for is_last in [false, true] {
            let expanded = match self.expand(take).await? {
                Ok(expanded) => expanded,
                Err(decision) => return Ok((None, decision)),
            };
            match self.decide_each(expanded.as_deref().unwrap_or(take)).await {
                // The limit was removed from the plan since this process read it. The store has forgotten the plan.
                Err(Error::Take(TakeError::UnknownPlan { plan: Some(plan), .. }))
                    if !is_last && plan.limit_name().is_some() => {}
                answer => return Ok((expanded, answer?)),
            }
        }
        unreachable!("the second attempt is the last one")
    }

    /// The request for each limit of its plans and rules, if they have several. `Err`: the fallback's answer, if a plan cannot be
    /// read.
    async fn expand(&self, take: &Take) -> Result<Result<Option<Box<Take>>, Decision>, Error> {
        if CurrentMode::answer(self.mode()).is_some() {
            return Ok(Ok(None));
        }
        if let Ok(expanded) = expand_known(&*self.stack.store, take) {
            return Ok(Ok(expanded.map(Box::new)));
        }
        let begun = self.decisions.begin();
        let mut expanded = None;
        let read = {
            let reading = async {
                expanded = expand(&*self.stack.store, take).await?;
                Ok(Ok(Decision::without_limit()))
            };
            self.policy.call(take.key(), pin!(reading)).await
        };
        match read {
            Ok(_) => Ok(Ok(expanded.map(Box::new))),
            Err(failure) => {
                let take = take.without_named_costs();
                let answer =
                    Checked::try_from(&take).map_err(Error::Take).and_then(|take| self.fall_back(take, failure));
                self.end(begun, &take, answer.as_ref());
                answer.map(Err)
            }
        }
    }

    /// Decides a request with one limit for each bucket.
    async fn decide_each(&self, take: &Take) -> Result<Decision, Error> {
        let mode = self.mode();
        let immediate;
        let take = if mode == Mode::Shadow && !take.max_wait.is_zero() {
            // In shadow mode, a request that would wait passes instead.
            immediate = Box::new(take.clone().max_wait(Duration::ZERO));
            &*immediate
        } else {
            take
        };
        if take.has_modes() && CurrentMode::answer(mode).is_none() {
            let begun = self.decisions.begin();
            let answer = self.decide_in_parts(take).await.map(|decision| CurrentMode::apply_shadow(mode, decision));
            self.end(begun, take, answer.as_ref());
            return answer;
        }
        let (checked, miss) = match self.decide_locally(take, mode) {
            Ok(answer) => return answer,
            Err(unknown) => unknown,
        };
        let begun = self.decisions.begin();
        let answer = match self.policy.call(take.key(), pin!(self.stack.take_one(checked, miss))).await {
            Ok(outcome) => outcome.map_err(Error::Take),
            Err(failure) => self.fall_back(checked, failure),
        };
        let answer = answer.map(|decision| CurrentMode::apply_shadow(mode, decision));
        self.end(begun, take, answer.as_ref());
        answer
    }

    /// Decides a request whose limits have modes of their own.
    async fn decide_in_parts(&self, take: &Take) -> Result<Decision, Error> {
        let checked = Checked::try_from(take).map_err(Error::Take)?;
        let Some(mut parts) = TakeInParts::of(checked) else { unreachable!("a limit has a mode") };
        while let Some(part) = parts.next_part() {
            let take = part.take.as_ref();
            let answer = match self.stack.try_take(take) {
                Ok(outcome) => Ok(outcome),
                Err(_) if take.is_unlimited() => Ok(Ok(Decision::without_limit())),
                Err(miss) => match self.policy.call(take.key(), pin!(self.stack.take_one(take, miss))).await {
                    Err(failure) if !part.is_trial => self.fall_back(take, failure).map(Ok),
                    answer => answer,
                },
            };
            parts.record(&part, answer);
        }
        parts.into_answer()?.map_err(Error::Take)
    }

    /// Decides a request without waiting, if this process knows the answer. Otherwise returns `None`: then call
    /// [`decide`](Self::decide), which calls the store.
    ///
    /// The process knows the answer with a [`MemoryStore`](crate::MemoryStore), from a [lease](crate::layers::Lease), for a key
    /// that was just [denied](crate::layers::DenyCache), and if the limiter's [mode](Self::set_mode) decides. Returns `None`
    /// for a request with a [longest wait](Take::max_wait), or with a [mode](crate::Limit::mode) for one of its limits.
    ///
    /// # Errors
    ///
    /// As for [`allow_n`](Self::allow_n).
    #[inline]
    #[must_use = "if it is granted, its tokens are taken"]
    pub fn try_decide(&self, take: &Take) -> Option<Result<Decision, Error>> {
        if !take.max_wait.is_zero() || take.has_modes() {
            return None;
        }
        match expand_known(&*self.stack.store, take).ok()? {
            None => self.decide_locally(take, self.mode()).ok(),
            Some(take) => self.decide_locally(&take, self.mode()).ok(),
        }
    }

    /// Decides a request from this process. Otherwise returns the request, checked, for the store.
    ///
    /// Not async, because moving the large futures of the layers costs more than such an answer.
    #[inline]
    fn decide_locally<'a>(
        &self,
        take: &'a Take,
        mode: Mode,
    ) -> Result<Result<Decision, Error>, (Checked<&'a Take>, CacheMiss)> {
        let answer = match (CurrentMode::answer(mode), Checked::try_from(take)) {
            (Some(decision), _) => Ok(decision),
            (None, Err(error)) => Err(Error::Take(error)),
            (None, Ok(checked)) => match self.stack.try_take(checked) {
                Ok(outcome) => outcome.map(|decision| CurrentMode::apply_shadow(mode, decision)).map_err(Error::Take),
                Err(_) if take.is_unlimited() => Ok(Decision::without_limit()),
                Err(miss) => return Err((checked, miss)),
            },
        };
        self.end(DecisionTimer::untimed(), take, answer.as_ref());
        Ok(answer)
    }

    /// Reserves the tokens of a request that you build, for instance with several limits or an id.
    ///
    /// Denies at once, and takes nothing, if the wait would exceed the request's [longest wait](Take::max_wait).
    ///
    /// # Errors
    ///
    /// As for [`allow_n`](Self::allow_n).
    pub async fn reserve_request(&self, take: &Take) -> Result<Reservation<S>, Error> {
        let (expanded, decision) = self.decide_expanded(take).await?;
        Ok(Reservation::new(Arc::clone(&self.stack), expanded.as_deref().unwrap_or(take), decision))
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
    /// repeated request keeps the scheduled time. To give them back, call [`reserve_request`](Self::reserve_request) with the same id,
    /// and then [`Reservation::cancel`].
    pub async fn wait_request(&self, take: &Take) -> Result<Reservation<S>, Error> {
        let _waiting = GaugeShare::one(WAITERS);
        let reservation = self.reserve_request(take).await?;
        Ok(ScheduledReservation::new(reservation).sleep_until_scheduled().await)
    }

    /// The fallback's answer to a failure, or the failure.
    fn fall_back(&self, take: Checked<&Take>, failure: Error) -> Result<Decision, Error> {
        if matches!(failure, Error::CircuitOpen { .. }) {
            self.probe(take);
        }
        self.policy.fall_back(&take, failure)
    }

    /// Tests the store in a task, by the decision that a request under an open circuit breaker does not get. Gives the tokens back.
    fn probe(&self, take: Checked<&Take>) {
        let Some(probe) = self.policy.probe(take.key()) else { return };
        let (policy, stack) = (self.policy.clone(), Arc::clone(&self.stack));
        // The id stays free for a repeated request.
        let take = take.cloned().without_id().max_wait(Duration::ZERO).refundable();
        self.stack.tasks.spawn(async move {
            let call = pin!(stack.take_one(take.as_ref(), CacheMiss::Unknown));
            if let Some(decision) = policy.call_probe(probe, take.key(), call).await {
                // On an error, the tokens count as used, as after other unknown outcomes.
                drop(Reservation::new(Arc::clone(&stack), &take, decision).refund_each(Receipt::cost).await);
            }
        });
    }

    /// Records the answer in metrics, traces and denial counts, and lets the background tasks begin.
    #[inline]
    fn end(&self, begun: DecisionTimer, take: &Take, answer: Result<&Decision, &Error>) {
        let passed;
        let answer = match answer {
            Ok(denied) if take.shadow && !denied.is_granted() => {
                passed = denied.clone().granted_by(Mode::Shadow);
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
        if let Some(usage) = &self.usage {
            usage.schedule(&self.stack);
        }
        if let (Some(denials), Ok(decision)) = (&self.denials, answer) {
            for place in decision.denying_limits() {
                denials.count(&take.limits[place].key, &self.stack.store);
            }
        }
    }
}
