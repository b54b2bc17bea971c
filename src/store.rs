use crate::admin::{BucketLevel, Swept};
use crate::model::{
    Adjusted, Adjustment, AdminError, Error, HoldBack, HoldBackError, Key, Outcome, Rule, Take, TakeError, Window,
    WindowLevel,
};

mod any;
mod capabilities;
pub(crate) mod memory;
mod shared_windows;
#[cfg(feature = "_sql")]
pub(crate) mod sql;

pub use any::AnyStore;
pub use capabilities::Capabilities;
pub use memory::MemoryStore;
pub use shared_windows::SharedWindows;
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
    /// Requests for the same bucket are decided in the order given.
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

    /// Decides one request.
    ///
    /// # Errors
    ///
    /// As for [`take`](Self::take).
    fn take_one(&self, take: &Take) -> impl Future<Output = Result<Outcome, Error>> + Send {
        async { Ok(self.take(std::slice::from_ref(take)).await?.pop().expect("a store answers each request")) }
    }

    /// Decides one request with what this process knows, if that is enough: without a call, and without a future.
    ///
    /// `None`: [`take_one`](Self::take_one) has to be asked, and nothing was taken. It is what a limiter asks first.
    fn take_now(&self, take: &Take) -> Option<Outcome> {
        let _ = take;
        None
    }

    /// What a request for a key under a rule would find: the key's bucket, under the terms that such a request would bring it to,
    /// or the full one that its first request would make.
    /// It is read without a lock, and nothing is taken or written.
    ///
    /// # Errors
    ///
    /// If the rule is a sliding window, there is no such plan or provisioned bucket, this kind of store cannot tell, it cannot
    /// be reached, or the role may not look.
    fn level(&self, key: &Key, rule: &Rule) -> impl Future<Output = Result<BucketLevel, Error>> + Send {
        let _ = (key, rule);
        async { Err(AdminError::Unsupported.into()) }
    }

    /// What a key's sliding window has counted, under the terms that it was last counted under; nothing under those that are
    /// said, if there is none yet. It is read without a lock, and nothing is counted or written.
    ///
    /// # Errors
    ///
    /// If this kind of store cannot tell, it cannot be reached, or the role may not look.
    fn window_level(&self, key: &Key, window: &Window) -> impl Future<Output = Result<WindowLevel, Error>> + Send {
        let _ = (key, window);
        async { Err(AdminError::Unsupported.into()) }
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
    fn sweep(&self, limit: u32) -> impl Future<Output = Result<Swept, Error>> + Send {
        let _ = limit;
        async { Ok(Swept::default()) }
    }

    /// Adds how often keys were denied, to what [`Admin::most_denied`](crate::Admin::most_denied) reads. No decision looks at
    /// it. A store that keeps nothing of its own has nothing to do.
    ///
    /// # Errors
    ///
    /// If the store cannot be reached, or the role may not tell it. Some may have been added.
    fn count_denials(&self, denials: &[(Key, u64)]) -> impl Future<Output = Result<(), Error>> + Send {
        let _ = denials;
        async { Ok(()) }
    }
}

impl<S: Store> Store for std::sync::Arc<S> {
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

    async fn take_one(&self, take: &Take) -> Result<Outcome, Error> {
        (**self).take_one(take).await
    }

    fn take_now(&self, take: &Take) -> Option<Outcome> {
        (**self).take_now(take)
    }

    async fn level(&self, key: &Key, rule: &Rule) -> Result<BucketLevel, Error> {
        (**self).level(key, rule).await
    }

    async fn window_level(&self, key: &Key, window: &Window) -> Result<WindowLevel, Error> {
        (**self).window_level(key, window).await
    }

    async fn sweep(&self, limit: u32) -> Result<Swept, Error> {
        (**self).sweep(limit).await
    }

    async fn count_denials(&self, denials: &[(Key, u64)]) -> Result<(), Error> {
        (**self).count_denials(denials).await
    }
}
