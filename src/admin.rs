//! What operators do: plans, overrides, modes, and reading buckets.

use chrono::{DateTime, Utc};

use crate::model::{Error, Key, Mode, Quota, WindowLevel};
use crate::store::Store;

mod chosen;
mod denials;
mod explain;
mod explanation;
mod filter;
mod level;
mod overrides;
mod page;
mod plan;
mod shared;
mod swept;
mod switch;

pub use denials::Denials;
pub use explanation::{Explanation, Origin, Prospect};
pub use filter::Filter;
pub use level::BucketLevel;
pub(crate) use level::{level_of_itself, level_under, window_level_under};
pub use overrides::Override;
pub use page::Page;
pub use plan::Plan;
pub use swept::Swept;
pub use switch::Switch;

pub(crate) use chosen::{Chosen, limited, reason, until};
pub(crate) use explain::explain;

/// What an operator does with the buckets of a store: look at them, change what rules them, clear away.
///
/// A change is in force with the next request that reaches the store, in every process; a limiter that has just denied a
/// key asks again within a second. Nothing here takes a token, or waits for one. To delete expired rows, see
/// [`Maintenance::sweep`](crate::store::Maintenance::sweep).
///
/// In a database, each change is a transaction. One that is not committed by the store's deadline, because another session
/// holds what it needs, is rolled back and never made later: [`Error::Contended`]. So is one whose future is dropped. Only
/// [`Error::OutcomeUnknown`], when the connection breaks, leaves open whether it was made.
///
/// ```
/// use tollgate::{admin::Filter, Admin, Key, Limiter, MemoryStore, Quota};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tollgate::Error> {
/// let limiter = Limiter::new(MemoryStore::new(), Quota::per_hour(10))?;
/// let key = Key::try_from("user:42")?;
/// let _ = limiter.allow_n(&key, 3).await?;
/// assert_eq!(limiter.store().peek(&key).await?.map(|level| level.available), Some(7));
/// assert!(limiter.store().reset(&key).await?);
/// let page = limiter.store().list(&Filter::default().prefix(Key::try_from("user:")?), None, 100).await?;
/// assert_eq!(page[0].available, 10);
/// # Ok(())
/// # }
/// ```
pub trait Admin: Store {
    /// Provisions a bucket, full; repeated with the same quota it changes nothing, and with another one it changes the
    /// bucket's terms: tokens that are there stay, up to the new capacity.
    ///
    /// # Errors
    ///
    /// If the quota has no limit, or the store cannot be reached or has no room.
    fn create_bucket(&self, key: &Key, quota: Quota) -> impl Future<Output = Result<(), Error>> + Send;

    /// A bucket as it is, if it exists: it is read without a lock, and nothing is taken or written. A limiter's
    /// [`peek`](crate::Limiter::peek) knows what an unused one would hold, too.
    ///
    /// # Errors
    ///
    /// If the store cannot be reached, or the role may not read the buckets; [`Error::Unreadable`] if a limit or count of the row
    /// is out of bounds.
    fn peek(&self, key: &Key) -> impl Future<Output = Result<Option<BucketLevel>, Error>> + Send;

    /// A key's sliding window as it is, if anything was ever counted in it and it was not swept since: it is read without a
    /// lock, and nothing is counted or written. A window and a bucket of one key are two. For a limiter's, see
    /// [`Limiter::peek_window`](crate::Limiter::peek_window).
    ///
    /// # Errors
    ///
    /// As for [`peek`](Self::peek).
    fn peek_window(&self, key: &Key) -> impl Future<Output = Result<Option<WindowLevel>, Error>> + Send;

    /// A page of at most `limit` buckets, in the byte order of their keys: those after `after`, or the first ones.
    ///
    /// An index finds keys by their prefix. No index knows plans, nor who was provisioned: by those a page is looked for from
    /// bucket to bucket, and of a large table that has few of them the look does not end within the deadline. List by prefix
    /// there, and choose from each page.
    ///
    /// Skips and [counts](Page::unreadable) rows that cannot be read; so do the other methods that return a [`Page`].
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

    /// A page of at most `limit` sliding windows in which anything was counted and that were not swept since, in the byte order of
    /// their keys: those after `after`, or the first ones; if a prefix is given, those whose key begins with it, byte for byte.
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

    /// Makes a bucket full under the terms that rule it now (while it is [off](Mode::Off): that ruled it last), forgets what the
    /// key's window has counted, and says whether there was either. Reservations made
    /// before give nothing back any more when they are cancelled.
    ///
    /// # Errors
    ///
    /// If the store cannot be reached, or the role may not change the buckets.
    fn reset(&self, key: &Key) -> impl Future<Output = Result<bool, Error>> + Send;

    /// Forgets a key's bucket and window, and says whether there was either. If its next request makes it again, it is full.
    ///
    /// # Errors
    ///
    /// As for [`reset`](Self::reset).
    fn delete(&self, key: &Key) -> impl Future<Output = Result<bool, Error>> + Send;

    /// What rules a key, where that comes from, and what a request for one token would come to, if it named the plan or
    /// none. Nothing is taken or written.
    ///
    /// # Errors
    ///
    /// As for [`peek`](Self::peek).
    fn explain(&self, key: &Key, plan: Option<&Key>) -> impl Future<Output = Result<Explanation, Error>> + Send;

    /// Makes a plan, or gives it another quota: buckets that follow it keep their tokens, up to the new capacity. Its mode
    /// is left alone. Where a service does so whenever it starts, it takes back what an operator has changed meanwhile: it
    /// may look by [`plan`](Self::plan) whether there is one.
    ///
    /// # Errors
    ///
    /// If the quota has no limit, the store cannot be reached, or the role may not change plans.
    fn create_plan(&self, name: &Key, quota: Quota) -> impl Future<Output = Result<(), Error>> + Send;

    /// Gives a plan a mode of its own, or with `None` that of all, and says whether the plan exists.
    ///
    /// # Errors
    ///
    /// If the end is past, the reason too long, the store cannot be reached, or the role may not change plans.
    fn set_plan_mode(
        &self,
        name: &Key,
        mode: Option<Mode>,
        reason: Option<&str>,
        until: Option<DateTime<Utc>>,
    ) -> impl Future<Output = Result<bool, Error>> + Send;

    /// A plan, if it exists.
    ///
    /// # Errors
    ///
    /// As for [`peek`](Self::peek).
    fn plan(&self, name: &Key) -> impl Future<Output = Result<Option<Plan>, Error>> + Send;

    /// A page of at most `limit` plans, in the byte order of their names: those after `after`, or the first ones.
    ///
    /// # Errors
    ///
    /// As for [`peek`](Self::peek).
    fn plans(&self, after: Option<&Key>, limit: u32) -> impl Future<Output = Result<Page<Plan>, Error>> + Send;

    /// Forgets a plan, and says whether it existed. Requests that name it fail from then on.
    ///
    /// # Errors
    ///
    /// If the store cannot be reached, or the role may not change plans.
    fn delete_plan(&self, name: &Key) -> impl Future<Output = Result<bool, Error>> + Send;

    /// Sets the mode of every key that has none of its own, or of its plan's.
    ///
    /// # Errors
    ///
    /// If the end is past, the reason too long, the store cannot be reached, or the role may not change the mode.
    fn set_mode(
        &self,
        mode: Mode,
        reason: Option<&str>,
        until: Option<DateTime<Utc>>,
    ) -> impl Future<Output = Result<(), Error>> + Send;

    /// The mode that was set for every key. If it has an end that is past, it is over.
    ///
    /// # Errors
    ///
    /// As for [`peek`](Self::peek).
    fn mode(&self) -> impl Future<Output = Result<Switch, Error>> + Send;

    /// Gives one key other terms, another mode, or both, in the place of an override that it may have. The bucket need not
    /// exist; one that does keeps its tokens, up to the new capacity.
    ///
    /// # Errors
    ///
    /// If it changes nothing, expires in the past, has no limit or too long a reason, the store cannot be reached, or the
    /// role may not make overrides.
    fn set_override(&self, key: &Key, over: Override) -> impl Future<Output = Result<(), Error>> + Send;

    /// Takes a key's override away, and says whether there was one.
    ///
    /// # Errors
    ///
    /// If the store cannot be reached, or the role may not take overrides away.
    fn clear_override(&self, key: &Key) -> impl Future<Output = Result<bool, Error>> + Send;

    /// A page of at most `limit` overrides, in the byte order of their keys: those after `after`, or the first ones. Those that
    /// have ended are among them until they are swept or taken away.
    ///
    /// # Errors
    ///
    /// As for [`peek`](Self::peek).
    fn overrides(
        &self,
        after: Option<&Key>,
        limit: u32,
    ) -> impl Future<Output = Result<Page<(Key, Override)>, Error>> + Send;

    /// The `limit` keys that were denied most in the last 24 hours, the most denied first, as far as services
    /// [count](crate::LimiterBuilder::count_denials) their denials.
    ///
    /// # Errors
    ///
    /// As for [`peek`](Self::peek).
    fn most_denied(&self, limit: u32) -> impl Future<Output = Result<Page<Denials>, Error>> + Send;
}
