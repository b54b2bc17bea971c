//! A trait for stores of tests that fail, answer late or count their calls.

use super::{CallOptions, Capabilities, Maintenance, Store, sealed};
use crate::model::{
    Adjusted, Adjustment, Checked, Error, Key, Outcome, Rule, Take, TakeError, Throttle, ThrottleError,
};

/// A store for tests, such as one that fails, answers late or counts its calls. Every `TestStore` is a [`Store`].
///
/// It can forward calls to another store, or build decisions by [`Decision::grant`](crate::Decision::grant) and
/// [`Decision::denial`](crate::Decision::denial).
///
/// ```
/// use std::io;
/// use tollgate::{Adjusted, Adjustment, Error, Limiter, Take, TakeError, model::Outcome, store::TestStore};
///
/// struct Broken;
///
/// impl TestStore for Broken {
///     async fn take(&self, _: &[Take]) -> Result<Vec<Outcome>, Error> {
///         Err(Error::other(io::Error::other("the database is down")))
///     }
///
///     async fn adjust(&self, _: &[Adjustment]) -> Result<Vec<Result<Adjusted, TakeError>>, Error> {
///         Err(Error::other(io::Error::other("the database is down")))
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Error> {
/// let limiter = Limiter::new(Broken, "10/s")?;
/// assert!(limiter.allow("user:42").await.is_err());
/// # Ok(())
/// # }
/// ```
pub trait TestStore: Send + Sync + 'static {
    /// As [`Store::capabilities`].
    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    /// As [`Store::take`], for requests that can be decided.
    ///
    /// # Errors
    ///
    /// As for [`Store::take`].
    fn take(&self, takes: &[Take]) -> impl Future<Output = Result<Vec<Outcome>, Error>> + Send;

    /// As [`Store::adjust`].
    ///
    /// # Errors
    ///
    /// As for [`Store::adjust`].
    fn adjust(
        &self,
        adjustments: &[Adjustment],
    ) -> impl Future<Output = Result<Vec<Result<Adjusted, TakeError>>, Error>> + Send;

    /// As [`Store::take_checked`], for a store that forwards the options to another one. Default: [`take`](Self::take).
    ///
    /// # Errors
    ///
    /// As for [`Store::take`].
    fn take_checked(
        &self,
        takes: Checked<&[Take]>,
        options: CallOptions,
    ) -> impl Future<Output = Result<Vec<Outcome>, Error>> + Send {
        let _ = options;
        async move { self.take(&takes).await }
    }

    /// As [`Store::adjust_with`], for a store that forwards the options to another one. Default: [`adjust`](Self::adjust).
    ///
    /// # Errors
    ///
    /// As for [`Store::adjust`].
    fn adjust_with(
        &self,
        adjustments: &[Adjustment],
        options: CallOptions,
    ) -> impl Future<Output = Result<Vec<Result<Adjusted, TakeError>>, Error>> + Send {
        let _ = options;
        self.adjust(adjustments)
    }

    /// As [`Store::throttle`]. Default: [`ThrottleError::Unsupported`].
    ///
    /// # Errors
    ///
    /// As for [`Store::throttle`].
    fn throttle(&self, key: &Key, rule: &Rule, throttle: Throttle) -> impl Future<Output = Result<bool, Error>> + Send {
        let _ = (key, rule, throttle);
        async { Err(ThrottleError::Unsupported.into()) }
    }

    /// As [`Store::try_take`]. Default: `None`.
    fn try_take(&self, take: &Take) -> Option<Outcome> {
        let _ = take;
        None
    }

    /// As [`Store::maintenance`]. Default: `None`.
    fn maintenance(&self) -> Option<&dyn Maintenance> {
        None
    }
}

impl<T: TestStore> sealed::Sealed for T {}

impl<T: TestStore> Store for T {
    fn capabilities(&self) -> Capabilities {
        TestStore::capabilities(self)
    }

    async fn take_checked(&self, takes: Checked<&[Take]>, options: CallOptions) -> Result<Vec<Outcome>, Error> {
        TestStore::take_checked(self, takes, options).await
    }

    async fn adjust_with(
        &self,
        adjustments: &[Adjustment],
        options: CallOptions,
    ) -> Result<Vec<Result<Adjusted, TakeError>>, Error> {
        TestStore::adjust_with(self, adjustments, options).await
    }

    async fn throttle(&self, key: &Key, rule: &Rule, throttle: Throttle) -> Result<bool, Error> {
        TestStore::throttle(self, key, rule, throttle).await
    }

    fn try_take(&self, take: Checked<&Take>) -> Option<Outcome> {
        TestStore::try_take(self, &take)
    }

    fn maintenance(&self) -> Option<&dyn Maintenance> {
        TestStore::maintenance(self)
    }
}
