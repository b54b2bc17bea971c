//! The options of a pool's next connection, where they change: nodes in turn, or credentials that rotate.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use sqlx::{Connection, Pool};
use tokio::time::Instant;

use super::dialect::Dialect;

/// The options of a pool's next connection.
pub(super) enum Endpoints<DB: Dialect> {
    /// Of the nodes of a distributed database, in turn.
    #[cfg_attr(not(feature = "postgres"), expect(dead_code, reason = "no other engine has several nodes"))]
    Nodes { options: Vec<ConnectOptions<DB>>, next: AtomicUsize },
    /// Of a function of the caller's.
    Supplied { supply: Supply<DB>, supplied_at: Mutex<Instant> },
}

pub(super) type ConnectOptions<DB> = <<DB as sqlx::Database>::Connection as Connection>::Options;
type Supply<DB> = Box<dyn Fn() -> Result<ConnectOptions<DB>, sqlx::Error> + Send + Sync>;

/// Shows no password.
impl<DB: Dialect> fmt::Debug for Endpoints<DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoints").finish_non_exhaustive()
    }
}

impl<DB: Dialect> Endpoints<DB> {
    #[cfg(feature = "postgres")]
    pub(super) fn nodes(options: Vec<ConnectOptions<DB>>) -> Self {
        Self::Nodes { options, next: AtomicUsize::new(1) }
    }

    pub(super) fn supplied(supply: Supply<DB>) -> Self {
        Self::Supplied { supply, supplied_at: Mutex::new(Instant::now()) }
    }

    /// Prepares the pool for a call, which may open a connection.
    pub(super) fn prepare(&self, pool: &Pool<DB>) -> Result<(), sqlx::Error> {
        let has_idle = pool.num_idle() > 0;
        match self {
            Self::Nodes { .. } if has_idle => Ok(()),
            Self::Nodes { .. } => self.turn(pool),
            // An idle connection can turn out to be broken.
            Self::Supplied { supplied_at, .. } => {
                let mut supplied_at = supplied_at.lock();
                if has_idle && supplied_at.elapsed() < MAX_AGE {
                    return Ok(());
                }
                *supplied_at = Instant::now();
                drop(supplied_at);
                self.turn(pool)
            }
        }
    }

    /// How many other nodes a call can connect to if one refuses it.
    pub(super) fn others(&self) -> usize {
        match self {
            Self::Nodes { options, .. } => options.len() - 1,
            Self::Supplied { .. } => 0,
        }
    }

    /// Has the pool open its next connection to the next node, or with the latest credentials.
    pub(super) fn turn(&self, pool: &Pool<DB>) -> Result<(), sqlx::Error> {
        pool.set_connect_options(match self {
            Self::Nodes { options, next } => options[next.fetch_add(1, Ordering::Relaxed) % options.len()].clone(),
            Self::Supplied { supply, .. } => supply()?,
        });
        Ok(())
    }
}

/// How long a call waits for a connection before the pool tries the next node, or newer credentials.
pub(super) const NODE_PATIENCE: Duration = Duration::from_millis(250);

/// The age after which credentials are asked for again.
const MAX_AGE: Duration = Duration::from_millis(100);
