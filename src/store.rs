//! Where buckets are kept: the `Store` trait, and the stores in memory and in SQL databases.

use crate::model::{Adjusted, Adjustment, Error, HoldBack, HoldBackError, Key, Outcome, Rule, Take, TakeError};

mod any;
mod capabilities;
mod maintenance;
pub(crate) mod memory;
mod shared_windows;
#[cfg(feature = "_sql")]
pub(crate) mod sql;

pub use any::AnyStore;
pub use capabilities::Capabilities;
pub use maintenance::{Maintenance, MaintenanceFuture};
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

    fn try_take(&self, take: &Take) -> Option<Outcome> {
        (**self).try_take(take)
    }

    fn maintenance(&self) -> Option<&dyn Maintenance> {
        (**self).maintenance()
    }
}
