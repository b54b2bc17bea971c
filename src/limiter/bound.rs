//! A limiter for one key: the limiter's methods without their key.

use std::time::Duration;

use super::Limiter;
use super::reservation::Reservation;
use crate::admin::{AdminError, BucketLevel};
use crate::model::{Decision, Error, Key, Source, Throttle, WindowLevel};
use crate::requester::{MAX_PAUSE, MIN_PAUSE, TokenRequester};
use crate::store::{AnyStore, Store};

/// A [`Limiter`] for one key, such as a global limit.
///
/// When its bucket is empty, `allow` denies, `reserve` returns how long to wait, and `wait` waits.
///
/// ```
/// use tollgate::{Limiter, MemoryStore, Quota};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tollgate::Error> {
/// let limiter = Limiter::new(MemoryStore::new(), Quota::per_second(10))?.bind("third-party-api")?;
/// assert!(limiter.allow().await?.is_granted());
/// // From the next request on.
/// limiter.limiter().set_rule(Quota::per_second(20))?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Bound<S: Store = AnyStore> {
    pub(super) limiter: Limiter<S>,
    pub(super) key: Key,
}

impl<S: Store> Clone for Bound<S> {
    fn clone(&self) -> Self {
        Self { limiter: self.limiter.clone(), key: self.key.clone() }
    }
}

impl<S: Store> Bound<S> {
    /// Returns the limiter, for its other methods.
    #[must_use]
    pub fn limiter(&self) -> &Limiter<S> {
        &self.limiter
    }

    /// Takes a token now, or denies: see [`Limiter::allow`].
    ///
    /// # Errors
    ///
    /// As for [`Limiter::allow`].
    pub async fn allow(&self) -> Result<Decision, Error> {
        self.limiter.allow(&self.key).await
    }

    /// Takes `cost` tokens now, or denies: see [`Limiter::allow_n`].
    ///
    /// # Errors
    ///
    /// As for [`Limiter::allow_n`].
    pub async fn allow_n(&self, cost: u64) -> Result<Decision, Error> {
        self.limiter.allow_n(&self.key, cost).await
    }

    /// Takes a token now or later: see [`Limiter::reserve`].
    ///
    /// # Errors
    ///
    /// As for [`Limiter::reserve`].
    pub async fn reserve(&self) -> Result<Reservation<S>, Error> {
        self.limiter.reserve(&self.key).await
    }

    /// Takes `cost` tokens now or later: see [`Limiter::reserve_n`].
    ///
    /// # Errors
    ///
    /// As for [`Limiter::reserve_n`].
    pub async fn reserve_n(&self, cost: u64) -> Result<Reservation<S>, Error> {
        self.limiter.reserve_n(&self.key, cost).await
    }

    /// Waits for a token, and takes it: see [`Limiter::wait`].
    ///
    /// # Errors
    ///
    /// As for [`Limiter::wait`].
    pub async fn wait(&self) -> Result<Reservation<S>, Error> {
        self.limiter.wait(&self.key).await
    }

    /// Waits at most `max_wait` for `cost` tokens, and takes them: see [`Limiter::wait_n`].
    ///
    /// # Errors
    ///
    /// As for [`Limiter::wait_n`].
    pub async fn wait_n(&self, cost: u64, max_wait: Duration) -> Result<Reservation<S>, Error> {
        self.limiter.wait_n(&self.key, cost, max_wait).await
    }

    /// Lowers the bucket to an upstream's level: see [`Limiter::throttle`].
    ///
    /// # Errors
    ///
    /// As for [`Limiter::throttle`].
    pub async fn throttle(&self, throttle: Throttle) -> Result<bool, Error> {
        self.limiter.throttle(&self.key, throttle).await
    }

    /// Reads the key's tokens without taking any: see [`Limiter::peek`].
    ///
    /// # Errors
    ///
    /// As for [`Limiter::peek`].
    pub async fn peek(&self) -> Result<BucketLevel, AdminError> {
        self.limiter.peek(&self.key).await
    }

    /// Reads the counts of the key's sliding window: see [`Limiter::peek_window`].
    ///
    /// # Errors
    ///
    /// As for [`Limiter::peek_window`].
    pub async fn peek_window(&self) -> Result<WindowLevel, AdminError> {
        self.limiter.peek_window(&self.key).await
    }

    /// Waits for `cost` tokens, as [`wait_for_token`](TokenRequester::wait_for_token) does for one.
    pub(crate) async fn wait_for_tokens(&self, cost: u64) -> Result<Decision, Error> {
        let max_wait = self.limiter.max_wait;
        loop {
            let decision = self.wait_n(cost, max_wait).await?.into_decision();
            if decision.is_granted() {
                return Ok(decision);
            }
            let pause = match decision.retry_after() {
                // A full window states when all of its promised requests have acted; some act before.
                Some(retry_after) => retry_after.checked_sub(max_wait).unwrap_or(retry_after / 100),
                // A cost that the fallback can never grant may be granted once the store is back.
                None if decision.source() == Source::Fallback => OUTAGE_PAUSE,
                None => return Ok(decision),
            };
            tokio::time::sleep(pause.clamp(MIN_PAUSE, MAX_PAUSE)).await;
        }
    }

    /// Returns the key.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.key
    }
}

impl<S: Store> TokenRequester for Bound<S> {
    async fn request_token(&self) -> Result<Decision, Error> {
        self.allow().await
    }

    /// Waits in the queue. If the wait would exceed the [longest wait](crate::LimiterBuilder::max_wait), queues again after a
    /// pause, until the token is granted or can never be.
    ///
    /// The pause is 30 s at most. So a raised plan, a reset or the end of a mode takes effect within 30 s. A token that is
    /// scheduled keeps its time.
    async fn wait_for_token(&self) -> Result<Decision, Error> {
        self.wait_for_tokens(1).await
    }
}

/// The pause while only a fallback answers.
const OUTAGE_PAUSE: Duration = Duration::from_secs(1);
