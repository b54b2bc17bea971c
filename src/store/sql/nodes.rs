//! The nodes of a distributed database, to which a pool connects in turn.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use sqlx::{Connection, Pool};

use super::dialect::Dialect;

/// The nodes of a distributed database, to which a pool connects in turn.
pub(super) struct Nodes<DB: Dialect> {
    options: Vec<<DB::Connection as Connection>::Options>,
    next: AtomicUsize,
}

/// Shows no password.
impl<DB: Dialect> fmt::Debug for Nodes<DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nodes").field("nodes", &self.options.len()).finish_non_exhaustive()
    }
}

#[cfg(feature = "postgres")]
impl<DB: Dialect> Nodes<DB> {
    pub(super) fn new(options: Vec<<DB::Connection as Connection>::Options>) -> Self {
        Self { options, next: AtomicUsize::new(1) }
    }
}

impl<DB: Dialect> Nodes<DB> {
    /// Has the pool open its next connection to the next node.
    pub(super) fn turn(&self, pool: &Pool<DB>) {
        let next = self.next.fetch_add(1, Ordering::Relaxed) % self.options.len();
        pool.set_connect_options(self.options[next].clone());
    }
}

/// How long a call waits for a connection before the pool tries the next node.
pub(super) const NODE_PATIENCE: Duration = Duration::from_millis(250);
