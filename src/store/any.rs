//! A store whose type is erased, so that limiters over different stores have one type.

use std::any::type_name;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use crate::model::{Adjusted, Adjustment, Checked, Error, Key, Outcome, Rule, Take, TakeError, Throttle};
use crate::store::{CallOptions, Capabilities, Maintenance, Store, sealed};

/// A store of any kind, chosen at run time: memory for a test, a database in production.
///
/// Each method behaves as that of the underlying store. Clones are the same store, with the same buckets. `Limiter`
/// without a type parameter is a [`Limiter`](crate::Limiter) over this store, so that types that hold the limiter need no
/// parameter.
///
/// A memory store answers `allow` and `reserve` without a future. A call of another store allocates one.
///
/// `AnyStore` is not an [`Admin`](crate::Admin). To change the rules of buckets, or to reach the pool, keep a clone of
/// the store itself, or of its [`Arc`]. Wrap a whole [`LocalReads`](crate::layers::LocalReads):
/// `AnyStore::new(LocalReads::new(store))`.
///
/// ```
/// use tollgate::{AnyStore, Error, Limiter, MemoryStore, Quota};
///
/// #[derive(Clone, Debug)]
/// struct App {
///     limiter: Limiter,
/// }
///
/// impl App {
///     fn over(store: AnyStore) -> Result<Self, Error> {
///         Ok(Self { limiter: Limiter::new(store, Quota::per_second(10))? })
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Error> {
/// let app = App::over(AnyStore::new(MemoryStore::new()))?; // in production PgStore::from(pool)
/// assert!(app.limiter.allow("user:42").await?.is_granted());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct AnyStore {
    store: Arc<dyn Erased>,
    name: &'static str,
    capabilities: Capabilities,
}

impl AnyStore {
    /// Wraps a store, and erases its type.
    pub fn new<S: Store>(store: S) -> Self {
        let capabilities = store.capabilities();
        Self { store: Arc::new(store), name: type_name::<S>(), capabilities }
    }
}

impl sealed::Sealed for AnyStore {}

// Forwards each method that the underlying store can override.
impl Store for AnyStore {
    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    async fn take_checked(&self, takes: Checked<&[Take]>, options: CallOptions) -> Result<Vec<Outcome>, Error> {
        self.store.take_checked(takes, options).await
    }

    async fn take_one_checked(&self, take: Checked<&Take>, options: CallOptions) -> Result<Outcome, Error> {
        self.store.take_one_checked(take, options).await
    }

    fn try_take(&self, take: Checked<&Take>) -> Option<Outcome> {
        self.store.try_take(take)
    }

    async fn adjust_with(
        &self,
        adjustments: &[Adjustment],
        options: CallOptions,
    ) -> Result<Vec<Result<Adjusted, TakeError>>, Error> {
        self.store.adjust_with(adjustments, options).await
    }

    async fn throttle(&self, key: &Key, rule: &Rule, throttle: Throttle) -> Result<bool, Error> {
        self.store.throttle(key, rule, throttle).await
    }

    fn maintenance(&self) -> Option<&dyn Maintenance> {
        self.store.maintenance()
    }
}

impl fmt::Debug for AnyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AnyStore").field(&self.name).finish()
    }
}

/// A [`Store`] with boxed futures, so that it can be a trait object.
trait Erased: Send + Sync {
    fn take_checked<'a>(&'a self, takes: Checked<&'a [Take]>, options: CallOptions) -> ErasedFuture<'a, Vec<Outcome>>;
    fn take_one_checked<'a>(&'a self, take: Checked<&'a Take>, options: CallOptions) -> ErasedFuture<'a, Outcome>;
    fn try_take(&self, take: Checked<&Take>) -> Option<Outcome>;
    fn adjust_with<'a>(
        &'a self,
        adjustments: &'a [Adjustment],
        options: CallOptions,
    ) -> ErasedFuture<'a, Vec<Result<Adjusted, TakeError>>>;
    fn throttle<'a>(&'a self, key: &'a Key, rule: &'a Rule, throttle: Throttle) -> ErasedFuture<'a, bool>;
    fn maintenance(&self) -> Option<&dyn Maintenance>;
}

type ErasedFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send + 'a>>;

impl<S: Store> Erased for S {
    fn take_checked<'a>(&'a self, takes: Checked<&'a [Take]>, options: CallOptions) -> ErasedFuture<'a, Vec<Outcome>> {
        Box::pin(Store::take_checked(self, takes, options))
    }

    fn take_one_checked<'a>(&'a self, take: Checked<&'a Take>, options: CallOptions) -> ErasedFuture<'a, Outcome> {
        Box::pin(Store::take_one_checked(self, take, options))
    }

    fn try_take(&self, take: Checked<&Take>) -> Option<Outcome> {
        Store::try_take(self, take)
    }

    fn adjust_with<'a>(
        &'a self,
        adjustments: &'a [Adjustment],
        options: CallOptions,
    ) -> ErasedFuture<'a, Vec<Result<Adjusted, TakeError>>> {
        Box::pin(Store::adjust_with(self, adjustments, options))
    }

    fn throttle<'a>(&'a self, key: &'a Key, rule: &'a Rule, throttle: Throttle) -> ErasedFuture<'a, bool> {
        Box::pin(Store::throttle(self, key, rule, throttle))
    }

    fn maintenance(&self) -> Option<&dyn Maintenance> {
        Store::maintenance(self)
    }
}
