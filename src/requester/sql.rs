//! Tokens of one bucket in a SQL database.

use std::time::Duration;

use sqlx::Pool;

use super::TokenRequester;
use crate::model::{Decision, Error, Key, Take};
use crate::store::{Dialect, Isolation, SqlStore, Store};

/// Requests tokens of one bucket in a SQL database, through your own pool.
///
/// When the bucket is empty, the request is denied at once, and nothing is written. The bucket must be provisioned: see
/// [`create_bucket`](crate::create_bucket). Each request is one round trip.
///
/// ```no_run
/// use tollgate::{limit, SqlTokenRequester};
///
/// # async fn fetch() {}
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let pool = sqlx::PgPool::connect("postgres://localhost/app").await?;
/// let fetch = limit(SqlTokenRequester::new(pool, "third-party-api")?, || fetch());
/// fetch.call().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct SqlTokenRequester<DB: Dialect> {
    store: SqlStore<DB>,
    take: [Take; 1],
}

impl<DB: Dialect> SqlTokenRequester<DB> {
    /// Creates a requester for a bucket, without a call of the database. The id is a text or a [`Uuid`](uuid::Uuid).
    ///
    /// # Errors
    ///
    /// Returns an error if the id is not a valid [`Key`].
    pub fn new<K>(pool: Pool<DB>, bucket_id: K) -> Result<Self, Error>
    where
        K: TryInto<Key>,
        Error: From<K::Error>,
    {
        Ok(Self { store: SqlStore::from(pool), take: [Take::from(bucket_id.try_into()?)] })
    }

    /// Runs each request in a transaction of this level: see [`SqlStore::isolation`].
    #[must_use]
    pub fn isolation(self, isolation: Isolation) -> Self {
        Self { store: self.store.isolation(isolation), ..self }
    }

    /// Sets the deadline of each request: see [`SqlStore::deadline`].
    #[must_use]
    pub fn deadline(self, deadline: Duration) -> Self {
        Self { store: self.store.deadline(deadline), ..self }
    }
}

impl<DB: Dialect> TokenRequester for SqlTokenRequester<DB> {
    async fn request_token(&self) -> Result<Decision, Error> {
        let outcome = self.store.take(&self.take).await?.pop();
        Ok(outcome.expect("a store answers each request")?)
    }
}
