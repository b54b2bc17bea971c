use std::time::Duration;

use super::{Limiter, Reservation};
use crate::admin::BucketLevel;
use crate::model::{Decision, Error, HoldBack, Key, Source, WindowLevel};
use crate::requester::{LONGEST_PAUSE, SHORTEST_PAUSE, TokenRequester};
use crate::store::{AnyStore, Store};

/// A [`Limiter`] of one key: a global limit reads as simply as one in this process.
///
/// When its bucket is empty, `allow` denies, `reserve` says how long to wait, and `wait` waits.
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
    /// The limiter of which this is one key: to change its rule, to close it, or to ask whether it fell back.
    #[must_use]
    pub fn limiter(&self) -> &Limiter<S> {
        &self.limiter
    }

    /// See [`Limiter::allow`].
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn allow(&self) -> Result<Decision, Error> {
        self.limiter.allow(&self.key).await
    }

    /// See [`Limiter::allow_n`].
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn allow_n(&self, cost: u64) -> Result<Decision, Error> {
        self.limiter.allow_n(&self.key, cost).await
    }

    /// See [`Limiter::reserve`].
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn reserve(&self) -> Result<Reservation<S>, Error> {
        self.limiter.reserve(&self.key).await
    }

    /// See [`Limiter::reserve_n`].
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn reserve_n(&self, cost: u64) -> Result<Reservation<S>, Error> {
        self.limiter.reserve_n(&self.key, cost).await
    }

    /// See [`Limiter::wait`].
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn wait(&self) -> Result<Decision, Error> {
        self.limiter.wait(&self.key).await
    }

    /// See [`Limiter::wait_n`].
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn wait_n(&self, cost: u64, longest: Duration) -> Result<Decision, Error> {
        self.limiter.wait_n(&self.key, cost, longest).await
    }

    /// See [`Limiter::hold_back`].
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn hold_back(&self, hold: HoldBack) -> Result<bool, Error> {
        self.limiter.hold_back(&self.key, hold).await
    }

    /// See [`Limiter::peek`].
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn peek(&self) -> Result<BucketLevel, Error> {
        self.limiter.peek(&self.key).await
    }

    /// See [`Limiter::peek_window`].
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn peek_window(&self) -> Result<WindowLevel, Error> {
        self.limiter.peek_window(&self.key).await
    }

    /// Stands in line for so many, as [`wait_for_token`](TokenRequester::wait_for_token) does for one.
    pub(crate) async fn wait_for_tokens(&self, cost: u64) -> Result<Decision, Error> {
        let longest = self.limiter.longest_wait;
        loop {
            let decision = self.wait_n(cost, longest).await?;
            let is_for_ever = decision.retry_after() == Duration::MAX;
            if decision.is_granted() || is_for_ever && decision.source() != Source::Fallback {
                return Ok(decision);
            }
            let pause = match decision.retry_after().checked_sub(longest) {
                // What a fallback never has may be there once the store is back.
                Some(_) if is_for_ever => WHILE_AWAY,
                Some(pause) => pause,
                // A window that promises no more turns says when all that it promised have come: parts of them come before.
                None => decision.retry_after() / 100,
            };
            tokio::time::sleep(pause.clamp(SHORTEST_PAUSE, LONGEST_PAUSE)).await;
        }
    }

    /// The key.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.key
    }
}

impl<S: Store> TokenRequester for Bound<S> {
    async fn request_token(&self) -> Result<Decision, Error> {
        self.allow().await
    }

    /// Stands in line; for longer than the [longest wait](crate::LimiterBuilder::longest_wait), again and again.
    async fn wait_for_token(&self) -> Result<Decision, Error> {
        self.wait_for_tokens(1).await
    }
}

/// How long it is left alone where only a fallback answers.
const WHILE_AWAY: Duration = Duration::from_secs(1);
