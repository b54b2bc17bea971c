//! Looking at a bucket or a sliding window without taking from it.

use std::pin::pin;

use super::{Bound, Limiter};
use crate::admin::BucketLevel;
use crate::admin::level_of_itself;
use crate::model::{AdminError, Error, Key, Rule, WindowLevel};
use crate::store::{Maintenance, Store};

impl<S: Store> Limiter<S> {
    /// Reads a key's tokens, and takes none: see [`BucketLevel::available`], negative if requests wait for them already.
    ///
    /// A bucket that nobody has used yet is full, and one that was under other terms, before [`set_rule`](Self::set_rule) or a
    /// change of its plan, has what the next request would find: its tokens come as before until then, up to the new capacity.
    /// What this process has [taken ahead](super::LimiterBuilder::lease) is gone from it. The store is asked twice.
    ///
    /// ```
    /// use tollgate::{Limiter, MemoryStore, Quota};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tollgate::Error> {
    /// let limiter = Limiter::new(MemoryStore::new(), Quota::per_hour(10))?;
    /// assert_eq!(limiter.peek("user:42").await?.available, 10);
    /// let _ = limiter.allow_n("user:42", 3).await?;
    /// assert_eq!(limiter.peek("user:42").await?.available, 7);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// If the text is no [`Key`], the rule is a sliding window (see [`peek_window`](Self::peek_window)), there is no such plan or provisioned bucket, a store of
    /// somebody else's making cannot tell, the role may not look, or there is no answer; there is no fallback then.
    pub async fn peek<K>(&self, key: K) -> Result<BucketLevel, Error>
    where
        K: TryInto<Key>,
        Error: From<K::Error>,
    {
        self.peek_under(key, &self.rule()).await
    }

    /// The same for a bucket under another rule than the limiter's: of a client's plan, or one of several that a request
    /// names.
    ///
    /// # Errors
    ///
    /// As for [`peek`](Self::peek).
    pub async fn peek_under<K>(&self, key: K, rule: &Rule) -> Result<BucketLevel, Error>
    where
        K: TryInto<Key>,
        Error: From<K::Error>,
    {
        let key = key.try_into()?;
        match level_of_itself(&key, rule) {
            Some(level) => level,
            None => self.policy.in_time(pin!(self.maintenance()?.level(&key, rule))).await,
        }
    }

    /// Reads what counts in a key's sliding window, and counts nothing: see [`WindowLevel::available`], negative if requests
    /// wait for it already.
    ///
    /// In a window that nobody has used yet, nothing counts. It is read from the store as it is: other terms of the limiter
    /// show with the first request under them.
    ///
    /// ```
    /// use tollgate::{Limiter, MemoryStore};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tollgate::Error> {
    /// let limiter = Limiter::new(MemoryStore::new(), "10 in 60s at 5s")?;
    /// let _ = limiter.allow_n("user:42", 3).await?;
    /// assert_eq!(limiter.peek_window("user:42").await?.available(), 7);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// If the text is no [`Key`], the rule is no sliding window, a store of somebody else's making cannot tell, the role may not
    /// look, or there is no answer; there is no fallback then.
    pub async fn peek_window<K>(&self, key: K) -> Result<WindowLevel, Error>
    where
        K: TryInto<Key>,
        Error: From<K::Error>,
    {
        let key = key.try_into()?;
        let Rule::Window(window) = self.rule() else { return Err(AdminError::NoWindow(key).into()) };
        self.policy.in_time(pin!(self.maintenance()?.window_level(&key, &window))).await
    }

    fn maintenance(&self) -> Result<&dyn Maintenance, AdminError> {
        self.store().maintenance().ok_or(AdminError::Unsupported)
    }
}

impl<S: Store> Bound<S> {
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
}
