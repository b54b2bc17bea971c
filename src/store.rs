//! Where buckets are kept: the `Store` trait, and the stores in memory and in SQL databases.

use std::pin::Pin;
use std::sync::Arc;

use crate::admin::{BucketLevel, Swept};
use crate::model::{
    Adjusted, Adjustment, AdminError, Counted, Error, HoldBack, HoldBackError, Key, Outcome, Rule, Take, TakeError,
    Window, WindowLevel,
};

mod any;
pub(crate) mod memory;
#[cfg(feature = "_sql")]
pub(crate) mod sql;

pub use any::AnyStore;
pub use memory::MemoryStore;
#[cfg(feature = "mysql")]
pub use sql::MySqlStore;
#[cfg(feature = "postgres")]
pub use sql::PgStore;
#[cfg(feature = "sqlite")]
pub use sql::SqliteStore;
#[cfg(feature = "_sql")]
pub use sql::{
    Dialect, Durability, Isolation, Migrate, Migration, SqlStore, adjust_within, create_bucket, grants, migrate,
    migrations, pending_migrations, repair, take_within,
};

tokio::task_local! {
    /// Whether a call that is rolled back for a locked row is made again key by key, by the [`Batcher`](crate::layers::Batcher)
    /// that makes it. A database then gives it up after one lock timeout, so that the other keys need not wait for the locked one.
    pub(crate) static IS_REPEATED_BY_KEY: bool;
}

/// Where buckets are kept: the one seam between the limiters above and the databases below.
///
/// A request without tokens is answered with a denial; it never waits for tokens and writes nothing.
pub trait Store: Send + Sync + 'static {
    /// What those above it may count on. It always answers the same; a layer answers as the store beneath does.
    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    /// Decides requests, each for itself, and answers in their order.
    ///
    /// Requests for the same bucket are decided in the order given. If another transaction has locked a row, the call is
    /// repeated until the deadline.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Key, MemoryStore, Rule, Store, Take};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = MemoryStore::new(); // or PgStore::from(pool)
    /// let takes = [
    ///     Take::from(Key::try_from("client:42")?).rule(Rule::Quota("10/s".parse()?)).cost(6),
    ///     Take::from(Key::try_from("uploads")?).rule(Rule::Quota("1/min".parse()?)).max_wait(Duration::from_millis(250)),
    /// ];
    /// for outcome in store.take(&takes).await? {
    ///     let decision = outcome?;
    ///     println!("{} {:?}", decision.is_granted(), decision.wait());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// If there is no answer at all; what can be said of one request alone is its [`Outcome`].
    ///
    /// # Cancel safety
    ///
    /// A future that is dropped leaves nothing open behind, but the tokens may have been taken.
    fn take(&self, takes: &[Take]) -> impl Future<Output = Result<Vec<Outcome>, Error>> + Send;

    /// Gives back, or pays for, what granted requests took, each once, and answers in their order.
    ///
    /// A database does so in one transaction, for each 256 of them.
    ///
    /// # Errors
    ///
    /// If there is no answer to one of them. It is not asked again then: what was given back may have been, unless the error
    /// says otherwise, which is said of all.
    fn adjust(
        &self,
        adjustments: &[Adjustment],
    ) -> impl Future<Output = Result<Vec<Result<Adjusted, TakeError>>, Error>> + Send;

    /// Lowers a bucket to what somebody else says of it, and says whether it held more; it is made if its rule may make it.
    /// Repeated, it changes nothing.
    ///
    /// # Errors
    ///
    /// If the limit cannot be held back, or as for [`take`](Self::take). It may have been lowered then.
    fn hold_back(&self, key: &Key, rule: &Rule, hold: HoldBack) -> impl Future<Output = Result<bool, Error>> + Send {
        let _ = (key, rule, hold);
        async { Err(HoldBackError::Unsupported.into()) }
    }

    /// Decides one request: [`take`](Self::take) of one.
    ///
    /// # Errors
    ///
    /// As for [`take`](Self::take).
    fn take_one(&self, take: &Take) -> impl Future<Output = Result<Outcome, Error>> + Send {
        async { Ok(self.take(std::slice::from_ref(take)).await?.pop().expect("a store answers each request")) }
    }

    /// Decides one request with what this process knows, or returns `None`: then nothing was taken, and [`take`](Self::take)
    /// decides. A limiter asks this first.
    fn try_take(&self, take: &Take) -> Option<Outcome> {
        let _ = take;
        None
    }

    /// Returns what reads, sweeps and counts, if this kind of store has it. A layer returns that of the underlying store.
    fn maintenance(&self) -> Option<&dyn Maintenance> {
        None
    }
}

impl<S: Store> Store for Arc<S> {
    #[inline]
    fn capabilities(&self) -> Capabilities {
        (**self).capabilities()
    }

    async fn take(&self, takes: &[Take]) -> Result<Vec<Outcome>, Error> {
        (**self).take(takes).await
    }

    async fn adjust(&self, adjustments: &[Adjustment]) -> Result<Vec<Result<Adjusted, TakeError>>, Error> {
        (**self).adjust(adjustments).await
    }

    async fn hold_back(&self, key: &Key, rule: &Rule, hold: HoldBack) -> Result<bool, Error> {
        (**self).hold_back(key, rule, hold).await
    }

    fn try_take(&self, take: &Take) -> Option<Outcome> {
        (**self).try_take(take)
    }

    fn maintenance(&self) -> Option<&dyn Maintenance> {
        (**self).maintenance()
    }
}

/// A store that counts requests in sliding windows for others to read.
pub trait SharedWindows: Store {
    /// Counts requests in a key's window now, whatever its maximum, and answers what has been counted by all; 0 only
    /// reads.
    ///
    /// # Errors
    ///
    /// If there is no answer; then nobody knows whether they were counted.
    fn count(&self, key: &Key, window: &Window, cost: u64) -> impl Future<Output = Result<Counted, Error>> + Send;
}

impl<S: SharedWindows> SharedWindows for Arc<S> {
    async fn count(&self, key: &Key, window: &Window, cost: u64) -> Result<Counted, Error> {
        (**self).count(key, window, cost).await
    }
}

/// What operators and housekeeping ask of a [`Store`], beside decisions. Only stores that keep buckets have it.
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

/// What a [`Store`] can do, as those above it need to know.
///
/// ```
/// use tollgate::{store::Capabilities, MemoryStore, Store};
///
/// assert_eq!(MemoryStore::new().capabilities(), Capabilities::default().in_process());
/// let database_with_one_writer = Capabilities::default().calls_at_once(1);
/// assert_ne!(database_with_one_writer, Capabilities::default());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "answer it as a store's capabilities"]
#[non_exhaustive]
pub struct Capabilities {
    /// Whether it decides in this process.
    pub in_process: bool,
    /// How many requests for several buckets each are one call to it.
    pub most_together: usize,
    /// How many calls that each carry many requests it is quickest with.
    pub calls_at_once: usize,
}

impl Capabilities {
    /// It decides in this process: a limiter has no calls to save.
    #[inline]
    pub const fn in_process(self) -> Self {
        Self { in_process: true, ..self }
    }

    /// How many requests for several buckets each are one call to it; 1 if not said. If they are more, they are worth
    /// gathering.
    #[inline]
    pub const fn most_together(self, requests: usize) -> Self {
        Self { most_together: requests, ..self }
    }

    /// How many calls that each carry many requests it is quickest with, from 1 to 64; 2 if not said: while one is on the
    /// network, the other is in the database. One of a single call at a time is locked as a whole, if it is: what was
    /// [`Contended`](crate::Error::Contended) is not asked for again in parts.
    #[inline]
    pub fn calls_at_once(self, calls: usize) -> Self {
        Self { calls_at_once: calls.clamp(1, 64), ..self }
    }
}

impl Default for Capabilities {
    #[inline]
    fn default() -> Self {
        Self { in_process: false, most_together: 1, calls_at_once: 2 }
    }
}
