//! Looking at a bucket without taking from it.

use std::pin::pin;

use super::{Bound, Limiter};
use crate::{Admin, AdminError, BucketLevel, Error, Key, Origin, Prospect, Quota, Rule, TakeError};

impl<S: Admin> Limiter<S> {
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
    /// If the text is no [`Key`], the rule is a sliding window, there is no such plan or provisioned bucket, the role may not
    /// read the buckets, or there is no answer; there is no fallback then.
    pub async fn peek<K>(&self, key: K) -> Result<BucketLevel, Error>
    where
        K: TryInto<Key>,
        Error: From<K::Error>,
    {
        let key = key.try_into()?;
        let rule = self.rule();
        match &rule {
            Rule::Window(_) => return Err(AdminError::Window(key).into()),
            // No store has heard of it.
            Rule::Quota(quota) if *quota == Quota::unlimited() => return Ok(BucketLevel::unused(key, *quota, None)),
            _ => {}
        }
        self.policy.bounded(pin!(self.read(key, &rule))).await
    }

    async fn read(&self, key: Key, rule: &Rule) -> Result<BucketLevel, Error> {
        if let Some(level) = self.store().peek(&key).await? {
            return Ok(level);
        }
        let plan = rule.plan();
        let explained = self.store().explain(&key, plan).await?;
        let overridden = explained.quota_from == Some(Origin::Override);
        let quota = match rule {
            Rule::Quota(own) if !overridden => Some(*own),
            Rule::Provisioned => None,
            _ => explained.quota,
        };
        match quota {
            _ if explained.prospect == Prospect::UnknownPlan => {
                Err(TakeError::UnknownPlan { key, plan: plan.cloned() }.into())
            }
            None => Err(TakeError::UnknownBucket(key).into()),
            Some(quota) => Ok(BucketLevel { overridden, ..BucketLevel::unused(key, quota, plan.cloned()) }),
        }
    }
}

impl<S: Admin> Bound<S> {
    /// See [`Limiter::peek`].
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn peek(&self) -> Result<BucketLevel, Error> {
        self.limiter.peek(&self.key).await
    }
}
