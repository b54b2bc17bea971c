//! The methods of operators, which stores in memory and in SQL databases implement.

use std::sync::Arc;

use chrono::{DateTime, Utc};

use crate::admin::{
    AdminError, BucketLevel, DenialCount, ExpectedOutcome, Explanation, Filter, ModeSetting, Origin, Override, Page,
    Plan, Usage, UsageFilter, UsageRecording, fixed_level,
};
use crate::model::{Error, Key, Limits, Mode, Quota, Rule, TakeError, Window, WindowLevel};
use crate::store::Store;

/// Methods of operators: read the buckets of a store, change the effective limits and modes, delete buckets.
///
/// A change takes effect with the next request that reaches the store, in every process. A limiter that has just denied a key
/// asks the store again within a second. No method takes a token or waits for one. To delete expired rows, see
/// [`Maintenance::sweep`](crate::store::Maintenance::sweep).
///
/// In a database, each change is a transaction. If another session holds its locks until the store's deadline, the transaction
/// is rolled back and the change is never made later: [`Error::Contended`]. The same happens if the future is dropped. Only
/// [`Error::OutcomeUnknown`], after a broken connection, leaves open whether the change was made.
///
/// ```
/// use tollgate::{admin::Filter, Admin, Key, Limiter, MemoryStore, Quota};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tollgate::Error> {
/// let limiter = Limiter::new(MemoryStore::new(), Quota::per_hour(10))?;
/// let key = Key::try_from("user:42")?;
/// let _ = limiter.allow_n(&key, 3).await?;
/// assert_eq!(limiter.store().peek(&key).await?.map(|level| level.available()), Some(7));
/// assert!(limiter.store().reset(&key).await?);
/// let page = limiter.store().list(&Filter::default().prefix(Key::try_from("user:")?), None, 100).await?;
/// assert_eq!(page[0].available(), 10);
/// # Ok(())
/// # }
/// ```
pub trait Admin: Store {
    /// Provisions a bucket, full.
    ///
    /// A repeated call with the same quota changes nothing. A call with another quota changes the bucket's quota, and the tokens
    /// stay, up to the new capacity.
    ///
    /// # Errors
    ///
    /// Returns an error if the quota is unlimited, or the store is unreachable or has no room.
    fn create_bucket(&self, key: &Key, quota: Quota) -> impl Future<Output = Result<(), AdminError>> + Send;

    /// Reads a bucket, if it exists, without a lock. Takes and writes nothing.
    ///
    /// A limiter's [`peek`](crate::Limiter::peek) also reports what an unused bucket would hold.
    ///
    /// # Errors
    ///
    /// Returns an error if the store is unreachable, or the role may not read the buckets. [`Error::Unreadable`] if a limit or
    /// count of the row is out of bounds.
    fn peek(&self, key: &Key) -> impl Future<Output = Result<Option<BucketLevel>, Error>> + Send;

    /// Reads a key's sliding window without a lock, if it has counted a request and was not swept since. Counts and writes
    /// nothing.
    ///
    /// A window and a bucket of one key are independent. For the window of a limiter, see
    /// [`Limiter::peek_window`](crate::Limiter::peek_window).
    ///
    /// # Errors
    ///
    /// As for [`peek`](Self::peek).
    fn peek_window(&self, key: &Key) -> impl Future<Output = Result<Option<WindowLevel>, Error>> + Send;

    /// Lists at most `limit` buckets after `after`, or the first ones, in the byte order of their keys.
    ///
    /// An index finds keys by their prefix. No index covers plans or provisioned buckets, so a filter by them scans bucket by
    /// bucket. In a large table with few matches, the scan does not end within the deadline: list by prefix there, and filter
    /// each page.
    ///
    /// Skips rows that cannot be read, and [counts](Page::unreadable) them, as all methods that return a [`Page`] do.
    ///
    /// # Errors
    ///
    /// As for [`peek`](Self::peek).
    fn list(
        &self,
        filter: &Filter,
        after: Option<&Key>,
        limit: u32,
    ) -> impl Future<Output = Result<Page<BucketLevel>, Error>> + Send;

    /// Lists at most `limit` sliding windows after `after`, or the first ones, in the byte order of their keys.
    ///
    /// A window is listed if it has counted a request and was not swept since. With a prefix, lists only the windows whose key
    /// begins with it, byte for byte.
    ///
    /// # Errors
    ///
    /// As for [`peek`](Self::peek).
    fn windows(
        &self,
        prefix: Option<&Key>,
        after: Option<&Key>,
        limit: u32,
    ) -> impl Future<Output = Result<Page<WindowLevel>, Error>> + Send;

    /// Fills a key's bucket and clears its window. Returns whether either existed.
    ///
    /// The bucket gets the capacity of the effective quota. While its mode is [off](Mode::Off), the capacity is that of its
    /// last request's quota. Cancelling an earlier reservation then gives nothing back.
    ///
    /// # Errors
    ///
    /// Returns an error if the store is unreachable, or the role may not change the buckets.
    fn reset(&self, key: &Key) -> impl Future<Output = Result<bool, Error>> + Send;

    /// Deletes a key's bucket and window. Returns whether either existed. If the next request creates the bucket again, it is full.
    ///
    /// # Errors
    ///
    /// As for [`reset`](Self::reset).
    fn delete(&self, key: &Key) -> impl Future<Output = Result<bool, Error>> + Send;

    /// Explains a key's effective limit and mode, where they come from, and the result of a request for one token under this plan,
    /// or without one. Takes and writes nothing.
    ///
    /// # Errors
    ///
    /// As for [`peek`](Self::peek).
    fn explain(&self, key: &Key, plan: Option<&Key>) -> impl Future<Output = Result<Explanation, Error>> + Send;

    /// Creates a plan, or changes its limits: a [`Quota`], or [`Limits`] whose names further limits need. Buckets of the plan keep
    /// their tokens, up to the new capacity. The modes of its limits stay.
    ///
    /// A request takes from all limits of its plan, or from none. A process knows of added and removed limits
    /// within five seconds.
    ///
    /// ```
    /// use tollgate::{Admin, Key, Limiter, MemoryStore, Rule, model::Limits};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let (store, free) = (MemoryStore::new(), Key::try_from("free")?);
    /// store.create_plan(&free, "10/s burst 20; day: 1000/day in UTC; month: 20000/month".parse::<Limits>()?).await?;
    /// let limiter = Limiter::new(store, Rule::Plan(free))?;
    /// assert_eq!(limiter.allow_n("user:42", 3).await?.each()[1].remaining(), Some(997));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A service that calls this at each start undoes the changes of operators: call [`plan`](Self::plan) first to see whether
    /// the plan exists.
    ///
    /// # Errors
    ///
    /// Returns an error if a quota is unlimited, a further limit has no name, the store is unreachable, or the role may not change
    /// plans.
    fn create_plan(&self, name: &Key, limits: Limits) -> impl Future<Output = Result<(), AdminError>> + Send;

    /// Sets the mode of all limits of a plan, or of one that [`Key::limit`] names. Removes it with `None`. Returns whether the plan
    /// exists.
    ///
    /// # Errors
    ///
    /// Returns an error if the end is past, the reason is too long, the store is unreachable, or the role may not change plans.
    fn set_plan_mode(
        &self,
        name: &Key,
        mode: Option<Mode>,
        reason: Option<&str>,
        until: Option<DateTime<Utc>>,
    ) -> impl Future<Output = Result<bool, AdminError>> + Send;

    /// Reads a plan, if it exists.
    ///
    /// # Errors
    ///
    /// As for [`peek`](Self::peek).
    fn plan(&self, name: &Key) -> impl Future<Output = Result<Option<Plan>, Error>> + Send;

    /// Lists at most `limit` plans after `after`, or the first ones, in the byte order of their names. Further limits of a plan
    /// follow it.
    ///
    /// # Errors
    ///
    /// As for [`peek`](Self::peek).
    fn plans(&self, after: Option<&Key>, limit: u32) -> impl Future<Output = Result<Page<Plan>, Error>> + Send;

    /// Deletes a plan with its limits. Returns whether it existed. Later requests that name the plan fail.
    ///
    /// # Errors
    ///
    /// Returns an error if the store is unreachable, or the role may not change plans.
    fn delete_plan(&self, name: &Key) -> impl Future<Output = Result<bool, Error>> + Send;

    /// Sets the mode of every key whose override and plan have none.
    ///
    /// # Errors
    ///
    /// Returns an error if the end is past, the reason is too long, the store is unreachable, or the role may not change the
    /// mode.
    fn set_mode(
        &self,
        mode: Mode,
        reason: Option<&str>,
        until: Option<DateTime<Utc>>,
    ) -> impl Future<Output = Result<(), AdminError>> + Send;

    /// Reads the mode that was set for every key. If its end is past, the mode no longer applies.
    ///
    /// # Errors
    ///
    /// As for [`peek`](Self::peek).
    fn mode(&self) -> impl Future<Output = Result<ModeSetting, Error>> + Send;

    /// Sets one key's override of its quota, its mode or both, and replaces an earlier override. The bucket need not exist. An
    /// existing bucket keeps its tokens, up to the new capacity.
    ///
    /// # Errors
    ///
    /// Returns an error if the override changes nothing, expires in the past, or has an unlimited quota or too long a reason.
    /// Also if the store is unreachable, or the role may not change overrides.
    fn set_override(&self, key: &Key, over: Override) -> impl Future<Output = Result<(), AdminError>> + Send;

    /// Removes a key's override. Returns whether it had one.
    ///
    /// # Errors
    ///
    /// Returns an error if the store is unreachable, or the role may not remove overrides.
    fn clear_override(&self, key: &Key) -> impl Future<Output = Result<bool, Error>> + Send;

    /// Lists at most `limit` overrides after `after`, or the first ones, in the byte order of their keys. Expired overrides are
    /// listed until they are swept or removed.
    ///
    /// # Errors
    ///
    /// As for [`peek`](Self::peek).
    fn overrides(
        &self,
        after: Option<&Key>,
        limit: u32,
    ) -> impl Future<Output = Result<Page<(Key, Override)>, Error>> + Send;

    /// Lists the `limit` keys that were denied most in the last 24 hours, the most denied first. Covers the services that
    /// [count](crate::LimiterBuilder::count_denials) their denials.
    ///
    /// # Errors
    ///
    /// As for [`peek`](Self::peek).
    fn most_denied(&self, limit: u32) -> impl Future<Output = Result<Page<DenialCount>, Error>> + Send;

    /// Records from now on which tokens each bucket uses, by hour or day, for invoices and reports. `None`: the next call of
    /// [`Maintenance::record_usage`](crate::store::Maintenance::record_usage) records what was used so far, and then records no more.
    /// Recorded usage stays. Default: usage is not recorded.
    ///
    /// Decisions cost what they cost without it. A limiter records in a background task: once a minute while requests come, and
    /// at its first request after a pause. For other callers, such as SQL clients and short-lived programs, run
    /// `tollgate usage record` by a scheduler.
    ///
    /// Not recorded: sliding windows, requests in the mode [`Off`](Mode::Off), and what a request in the mode
    /// [`Shadow`](Mode::Shadow) took beyond the limit, because these take no tokens from a bucket. On MySQL and MariaDB, the tokens
    /// of a bucket whose row you delete by SQL of your own, since they were recorded last.
    ///
    /// # Errors
    ///
    /// Returns an error if the number of days is invalid, the store is in memory or a Citus cluster, the store is unreachable, or
    /// the role may not change it.
    fn set_usage_recording(
        &self,
        recording: Option<UsageRecording>,
    ) -> impl Future<Output = Result<(), AdminError>> + Send;

    /// Reads whether and how usage is recorded.
    ///
    /// # Errors
    ///
    /// As for [`peek`](Self::peek).
    fn usage_recording(&self) -> impl Future<Output = Result<Option<UsageRecording>, Error>> + Send;

    /// Reads the usage of the next `limit` buckets after the id `after`, or of the first ones, in the byte order of their ids.
    /// A bucket has an entry for each plan that it followed. The list ends with an empty answer.
    ///
    /// The usage is up to date, and its sum over all periods is exact. Tokens taken between a period's end and the next recording
    /// count under the period before.
    ///
    /// # Errors
    ///
    /// As for [`peek`](Self::peek).
    fn usage(
        &self,
        filter: &UsageFilter,
        after: Option<&Key>,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<Usage>, Error>> + Send;
}

impl<T: Admin> Admin for Arc<T> {
    async fn create_bucket(&self, key: &Key, quota: Quota) -> Result<(), AdminError> {
        (**self).create_bucket(key, quota).await
    }

    async fn peek(&self, key: &Key) -> Result<Option<BucketLevel>, Error> {
        (**self).peek(key).await
    }

    async fn peek_window(&self, key: &Key) -> Result<Option<WindowLevel>, Error> {
        (**self).peek_window(key).await
    }

    async fn list(&self, filter: &Filter, after: Option<&Key>, limit: u32) -> Result<Page<BucketLevel>, Error> {
        (**self).list(filter, after, limit).await
    }

    async fn windows(&self, prefix: Option<&Key>, after: Option<&Key>, limit: u32) -> Result<Page<WindowLevel>, Error> {
        (**self).windows(prefix, after, limit).await
    }

    async fn reset(&self, key: &Key) -> Result<bool, Error> {
        (**self).reset(key).await
    }

    async fn delete(&self, key: &Key) -> Result<bool, Error> {
        (**self).delete(key).await
    }

    async fn explain(&self, key: &Key, plan: Option<&Key>) -> Result<Explanation, Error> {
        (**self).explain(key, plan).await
    }

    async fn create_plan(&self, name: &Key, limits: Limits) -> Result<(), AdminError> {
        (**self).create_plan(name, limits).await
    }

    async fn set_plan_mode(
        &self,
        name: &Key,
        mode: Option<Mode>,
        reason: Option<&str>,
        until: Option<DateTime<Utc>>,
    ) -> Result<bool, AdminError> {
        (**self).set_plan_mode(name, mode, reason, until).await
    }

    async fn plan(&self, name: &Key) -> Result<Option<Plan>, Error> {
        (**self).plan(name).await
    }

    async fn plans(&self, after: Option<&Key>, limit: u32) -> Result<Page<Plan>, Error> {
        (**self).plans(after, limit).await
    }

    async fn delete_plan(&self, name: &Key) -> Result<bool, Error> {
        (**self).delete_plan(name).await
    }

    async fn set_mode(&self, mode: Mode, reason: Option<&str>, until: Option<DateTime<Utc>>) -> Result<(), AdminError> {
        (**self).set_mode(mode, reason, until).await
    }

    async fn mode(&self) -> Result<ModeSetting, Error> {
        (**self).mode().await
    }

    async fn set_override(&self, key: &Key, over: Override) -> Result<(), AdminError> {
        (**self).set_override(key, over).await
    }

    async fn clear_override(&self, key: &Key) -> Result<bool, Error> {
        (**self).clear_override(key).await
    }

    async fn overrides(&self, after: Option<&Key>, limit: u32) -> Result<Page<(Key, Override)>, Error> {
        (**self).overrides(after, limit).await
    }

    async fn most_denied(&self, limit: u32) -> Result<Page<DenialCount>, Error> {
        (**self).most_denied(limit).await
    }

    async fn set_usage_recording(&self, recording: Option<UsageRecording>) -> Result<(), AdminError> {
        (**self).set_usage_recording(recording).await
    }

    async fn usage_recording(&self) -> Result<Option<UsageRecording>, Error> {
        (**self).usage_recording().await
    }

    async fn usage(&self, filter: &UsageFilter, after: Option<&Key>, limit: u32) -> Result<Vec<Usage>, Error> {
        (**self).usage(filter, after, limit).await
    }
}

/// The level that a request under a rule would find.
pub(crate) async fn level_under<S: Admin>(store: &S, key: &Key, rule: &Rule) -> Result<BucketLevel, AdminError> {
    if let Some(level) = fixed_level(key, rule) {
        return level;
    }
    let (level, explained) = (store.peek(key).await?, store.explain(key, rule.plan()).await?);
    if let Some(level) = level {
        return Ok(level.after_next_request(rule, &explained));
    }
    let overridden = explained.quota_from == Some(Origin::Override);
    let quota = match rule {
        Rule::Quota(own) if !overridden => Some(*own),
        Rule::Provisioned => None,
        _ => explained.quota,
    };
    match quota {
        _ if explained.expected_outcome == ExpectedOutcome::UnknownPlan => {
            Err(Error::from(TakeError::UnknownPlan { key: key.clone(), plan: rule.plan().cloned() }).into())
        }
        None => Err(Error::from(TakeError::UnknownBucket(key.clone())).into()),
        Some(quota) => Ok(BucketLevel { overridden, ..BucketLevel::unused(key.clone(), quota, rule.plan().cloned()) }),
    }
}

/// The level of a key's sliding window, unused if the store has none.
pub(crate) async fn window_level_under<S: Admin>(store: &S, key: &Key, window: &Window) -> Result<WindowLevel, Error> {
    Ok(store.peek_window(key).await?.unwrap_or_else(|| WindowLevel::unused(key.clone(), *window)))
}
