use std::sync::Arc;

use super::Store;
use crate::model::{Counted, Error, Key, Window};

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
