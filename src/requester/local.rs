use parking_lot::Mutex;
use std::time::Duration;

use crate::clock::{Clock, ProcessClock};
use crate::model::bucket::{Bucket, Request, Terms};
use crate::model::{Decision, Error, Quota, QuotaError};
use crate::requester::TokenRequester;

/// A bucket in this process, with the arithmetic of those in a database.
///
/// It starts full, and is full again whenever its period ends: what was left is thrown away. When it is
/// empty, requests are denied until then.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{requester::LocalBucket, TokenRequester};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tollgate::Error> {
/// let bucket = LocalBucket::new(2, Duration::from_secs(3600))?;
/// assert!(bucket.request_token().await?.is_granted());
/// assert_eq!(bucket.request_token().await?.remaining(), 0);
/// assert!(!bucket.request_token().await?.is_granted());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct LocalBucket<C = ProcessClock> {
    terms: Terms,
    bucket: Mutex<Bucket>,
    clock: C,
}

impl LocalBucket {
    /// At most `max_calls` in each period, the first of which begins now.
    ///
    /// # Errors
    ///
    /// If they make no [`Quota::interval`].
    pub fn new(max_calls: u64, period: Duration) -> Result<Self, QuotaError> {
        Quota::interval(max_calls, period).map(|quota| Self::with_clock(quota, ProcessClock::default()))
    }
}

impl<C: Clock> LocalBucket<C> {
    /// A full bucket of any quota, on a clock of the caller's.
    pub fn with_clock(quota: Quota, clock: C) -> Self {
        let terms = Terms::from(&quota);
        Self { terms, bucket: Mutex::new(Bucket::full(&terms, clock.now())), clock }
    }
}

impl<C: Clock> TokenRequester for LocalBucket<C> {
    async fn request_token(&self) -> Result<Decision, Error> {
        let mut bucket = self.bucket.lock();
        // Read under the lock: a clock read before would be as old as the wait for it.
        let now = self.clock.now();
        Ok(Decision::new(bucket.take(&self.terms, now, ONE_TOKEN)))
    }
}

const ONE_TOKEN: Request = Request { cost: 1, max_wait: 0, keep: 0 };
