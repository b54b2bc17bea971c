use std::pin::Pin;

use crate::admin::{BucketLevel, Swept};
use crate::model::{AdminError, Error, Key, Rule, Window, WindowLevel};

/// What operators and housekeeping ask of a [`Store`](crate::Store), beside decisions. Only stores that keep buckets have it.
///
/// ```
/// use tollgate::{store::Maintenance, MemoryStore, Store};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tollgate::Error> {
/// let store = MemoryStore::new();
/// assert!(store.maintenance().is_some());
/// assert!(store.sweep(1000).await?.finished);
/// # Ok(())
/// # }
/// ```
pub trait Maintenance: Send + Sync {
    /// What a request for a key under a rule would find: the key's bucket, under the terms that such a request would bring it to,
    /// or the full one that its first request would make.
    /// It is read without a lock, and nothing is taken or written.
    ///
    /// # Errors
    ///
    /// If the rule is a sliding window, there is no such plan or provisioned bucket, this kind of store cannot tell, it cannot
    /// be reached, or the role may not look.
    fn level<'a>(&'a self, key: &'a Key, rule: &'a Rule) -> MaintenanceFuture<'a, BucketLevel> {
        let _ = (key, rule);
        Box::pin(async { Err(AdminError::Unsupported.into()) })
    }

    /// What a key's sliding window has counted, under the terms that it was last counted under; nothing under those that are
    /// said, if there is none yet. It is read without a lock, and nothing is counted or written.
    ///
    /// # Errors
    ///
    /// If this kind of store cannot tell, it cannot be reached, or the role may not look.
    fn window_level<'a>(&'a self, key: &'a Key, window: &'a Window) -> MaintenanceFuture<'a, WindowLevel> {
        let _ = (key, window);
        Box::pin(async { Err(AdminError::Unsupported.into()) })
    }

    /// Deletes expired rows in one bounded step that looks at about `limit` rows: buckets that are full
    /// and were not provisioned, windows in which nothing counts, receipts and overrides that have expired, counts of
    /// denials of two days ago.
    ///
    /// The store remembers where a step ended, for all processes that use it: the next step goes on there. On a server a
    /// step looks at 1000 rows at most.
    ///
    /// No request that says its terms notices: a bucket that is made again is full as well. A store that keeps nothing of
    /// its own has nothing to do.
    ///
    /// # Errors
    ///
    /// If the store cannot be reached, or the role may not sweep.
    fn sweep(&self, limit: u32) -> MaintenanceFuture<'_, Swept> {
        let _ = limit;
        Box::pin(async { Ok(Swept::default()) })
    }

    /// Adds how often keys were denied, to what [`Admin::most_denied`](crate::Admin::most_denied) reads. No decision looks at
    /// it. A store that keeps nothing of its own has nothing to do.
    ///
    /// # Errors
    ///
    /// If the store cannot be reached, or the role may not tell it. Some may have been added.
    fn count_denials<'a>(&'a self, denials: &'a [(Key, u64)]) -> MaintenanceFuture<'a, ()> {
        let _ = denials;
        Box::pin(async { Ok(()) })
    }
}

/// A call of a [`Maintenance`], boxed so that layers can pass on one of an unknown type.
pub type MaintenanceFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send + 'a>>;
