//! Looking at a bucket without taking from it.

use std::pin::pin;

use super::{Bound, Limiter};
use crate::admin::level_of_itself;
use crate::{BucketLevel, Error, Key, Rule, Store};

impl<S: Store> Limiter<S> {
    /// Reads a key's tokens, and takes none: see [`BucketLevel::available`], negative if requests wait for them already.
    ///
    /// A bucket that nobody has used yet is full. It is read from the store as it is: what this process has
    /// [taken ahead](super::LimiterBuilder::lease) is gone from it, and another [rule](Self::set_rule) of the limiter shows
    /// with the first request under it.
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
    /// If the text is no [`Key`], the rule is a sliding window, there is no such plan or provisioned bucket, a store of
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
            None => self.policy.in_time(pin!(self.store().level(&key, rule))).await,
        }
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
}
