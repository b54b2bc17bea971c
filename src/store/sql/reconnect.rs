use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use parking_lot::Mutex;
use sqlx::pool::PoolConnection;
use sqlx::{Connection, Pool};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::dialect::Dialect;

/// Asks the pool anew as soon as an outage has ended.
///
/// While a server refuses connections, a pool of sqlx sleeps between its attempts for ever longer: with its defaults for
/// seconds, which go on after the outage. While calls wait for the pool, one task of the store therefore connects by itself.
/// Once that succeeds after it failed, the calls drop what they wait for, and begin anew.
///
/// The task disturbs no call otherwise: one that waits for a busy pool keeps its place, and a slow connection is completed.
#[derive(Clone, Debug, Default)]
pub(super) struct Reconnect(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// Changes when an outage has ended.
    ended: watch::Sender<()>,
    /// How many connections the pool has handed out.
    acquired: AtomicU64,
    /// The task that connects while calls wait.
    task: Mutex<Option<JoinHandle<()>>>,
}

impl Reconnect {
    pub(super) async fn acquire<DB: Dialect>(&self, pool: &Pool<DB>) -> Result<PoolConnection<DB>, sqlx::Error> {
        loop {
            let mut acquiring = pin!(pool.acquire());
            let acquired = if let Ok(acquired) = timeout(PAUSE, &mut acquiring).await {
                acquired
            } else {
                let mut outage = self.0.ended.subscribe();
                self.connect_meanwhile(pool);
                let mut ended = pin!(outage.changed());
                let answer = poll_fn(|context| match acquiring.as_mut().poll(context) {
                    Poll::Ready(acquired) => Poll::Ready(Some(acquired)),
                    Poll::Pending => ended.as_mut().poll(context).map(|_| None),
                });
                let Some(acquired) = answer.await else { continue };
                acquired
            };
            return acquired.inspect(|_| {
                self.0.acquired.fetch_add(1, Ordering::Relaxed);
            });
        }
    }

    /// Has one task connect for all calls that wait.
    fn connect_meanwhile<DB: Dialect>(&self, pool: &Pool<DB>) {
        let mut task = self.0.task.lock();
        // A task also ends with its runtime.
        if DB::HAS_SERVER && task.as_ref().is_none_or(JoinHandle::is_finished) {
            *task = Some(tokio::spawn(Arc::clone(&self.0).connect_while_awaited(pool.clone())));
        }
    }
}

impl Shared {
    async fn connect_while_awaited<DB: Dialect>(self: Arc<Self>, pool: Pool<DB>) {
        let mut was_away = false;
        while self.is_awaited() {
            let acquired = self.acquired.load(Ordering::Relaxed);
            sleep(PAUSE).await;
            if self.acquired.load(Ordering::Relaxed) == acquired && is_away(&pool).await {
                was_away = true;
            } else if std::mem::take(&mut was_away) {
                self.ended.send_replace(());
            } else {
                // The pool is busy: connections beside its own are to be few.
                sleep(BUSY).await;
            }
        }
    }

    /// Whether calls wait; if not, the next one that does needs another task.
    fn is_awaited(&self) -> bool {
        let mut task = self.task.lock();
        let is_awaited = self.ended.receiver_count() > 0;
        if !is_awaited {
            *task = None;
        }
        is_awaited
    }
}

/// Whether the pool would wait and try again. Any other error ends its attempt, and so do the calls know at once.
async fn is_away<DB: Dialect>(pool: &Pool<DB>) -> bool {
    let options = pool.connect_options();
    match timeout(LONGEST, DB::Connection::connect_with(&options)).await {
        Ok(Ok(connection)) => {
            // What the server makes of the goodbye changes nothing.
            drop(connection.close().await);
            false
        }
        Ok(Err(sqlx::Error::Io(error))) => error.kind() == std::io::ErrorKind::ConnectionRefused,
        Ok(Err(sqlx::Error::Database(error))) => error.is_transient_in_connect_phase(),
        Ok(Err(_)) => false,
        Err(_) => true,
    }
}

/// Between two attempts to connect. A pool that answers within it is not looked at.
const PAUSE: Duration = Duration::from_millis(100);

/// Between two of them where the server accepts connections, and it is the pool that has none to spare.
const BUSY: Duration = Duration::from_secs(1);

/// How long an attempt may take.
const LONGEST: Duration = Duration::from_secs(1);
