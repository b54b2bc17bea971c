//! Connects in a task during an outage, so that waiting calls continue as soon as the server answers.

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
use tokio::time::{Instant, sleep, timeout};

use super::dialect::Dialect;

/// Lets calls acquire a connection as soon as an outage has ended.
///
/// While a server refuses connections, a pool of sqlx sleeps longer after each attempt: by default for seconds, which
/// go on after the outage. So one task of the store connects by itself while calls wait for the pool. When that
/// succeeds after a failure, the calls drop their pending acquire and begin a new one.
///
/// Otherwise the task does not affect calls: a call that waits for a busy pool keeps its place, and a slow connection
/// completes.
///
/// A pool can be larger than the number of connections that the server accepts. After a refusal, calls share the open
/// connections for a while.
#[derive(Clone, Debug, Default)]
pub(super) struct Reconnect(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// Notifies waiting calls when an outage has ended.
    ended: watch::Sender<()>,
    /// How many connections the pool has handed out to calls.
    acquired: AtomicU64,
    /// Until when calls share the open connections, because the server refused another one.
    full_until: Mutex<Option<Instant>>,
    /// Held while a connection asks the server whether it works on a call.
    watching: tokio::sync::Mutex<()>,
    /// The task that connects while calls wait.
    task: Mutex<Option<JoinHandle<()>>>,
}

impl Reconnect {
    pub(super) async fn acquire<DB: Dialect>(&self, pool: &Pool<DB>) -> Result<PoolConnection<DB>, sqlx::Error> {
        loop {
            let acquired = match self.0.acquire_open(pool).await {
                Some(open) => Ok(open),
                None => match self.acquire_from_pool(pool).await {
                    Some(acquired) => acquired,
                    None => continue,
                },
            };
            if acquired.as_ref().is_err_and(is_full::<DB>) && self.0.share(pool) {
                continue;
            }
            return acquired.inspect(|_| {
                self.0.acquired.fetch_add(1, Ordering::Relaxed);
            });
        }
    }

    /// Returns `None` if another attempt is faster: an outage has ended, or the open connections are to be shared.
    async fn acquire_from_pool<DB: Dialect>(&self, pool: &Pool<DB>) -> Option<Result<PoolConnection<DB>, sqlx::Error>> {
        let mut acquiring = pin!(pool.acquire());
        if let Ok(acquired) = timeout(RECONNECT_INTERVAL, &mut acquiring).await {
            return Some(acquired);
        }
        let mut outage = self.0.ended.subscribe();
        self.connect_meanwhile(pool);
        let mut ended = pin!(outage.changed());
        poll_fn(|context| match acquiring.as_mut().poll(context) {
            Poll::Ready(acquired) => Poll::Ready(Some(acquired)),
            Poll::Pending => ended.as_mut().poll(context).map(|_| None),
        })
        .await
    }

    /// Returns whether the server still works on a call that was sent at least `age` ago. An unreachable server counts as
    /// working: until it can be reached, nothing can replace the connection of the call.
    pub(super) async fn is_call_running<DB: Dialect>(&self, pool: &Pool<DB>, age: Duration) -> bool {
        let _one_at_a_time = self.0.watching.lock().await;
        let options = pool.connect_options();
        let asking = async {
            let mut connection = DB::Connection::connect_with(&options).await?;
            let is_running = DB::is_call_running(&mut connection, age).await;
            drop(connection.close().await);
            is_running
        };
        // A closed pool waits for its connections.
        DB::HAS_SERVER && !pool.is_closed() && !matches!(timeout(CONNECT_TIMEOUT, asking).await, Ok(Ok(false)))
    }

    /// Starts the task that connects for all waiting calls, unless it runs.
    fn connect_meanwhile<DB: Dialect>(&self, pool: &Pool<DB>) {
        let mut task = self.0.task.lock();
        // A task also ends with its runtime.
        if DB::HAS_SERVER && task.as_ref().is_none_or(JoinHandle::is_finished) {
            *task = Some(tokio::spawn(Arc::clone(&self.0).connect_while_awaited(pool.clone())));
        }
    }
}

impl Shared {
    /// Lets calls share the open connections for a while, if there are any.
    fn share<DB: Dialect>(&self, pool: &Pool<DB>) -> bool {
        let is_open = pool.size() > 0;
        if is_open {
            *self.full_until.lock() = Some(Instant::now() + FULL_SERVER_PAUSE);
        }
        is_open
    }

    fn is_full(&self) -> bool {
        let mut full_until = self.full_until.lock();
        *full_until = full_until.filter(|until| Instant::now() < *until);
        full_until.is_some()
    }

    /// Waits for an open connection while the server accepts no other one. The pool itself would try to open one.
    async fn acquire_open<DB: Dialect>(&self, pool: &Pool<DB>) -> Option<PoolConnection<DB>> {
        while self.is_full() && pool.size() > 0 {
            match pool.try_acquire() {
                None => sleep(OPEN_CONNECTION_INTERVAL).await,
                // The pool checks no connection here: it may have broken while it was idle.
                Some(mut open) => match open.ping().await {
                    Ok(()) => return Some(open),
                    Err(_) => open.close_on_drop(),
                },
            }
        }
        None
    }

    async fn connect_while_awaited<DB: Dialect>(self: Arc<Self>, pool: Pool<DB>) {
        let mut was_away = false;
        while self.is_awaited() {
            let acquired = self.acquired.load(Ordering::Relaxed);
            sleep(RECONNECT_INTERVAL).await;
            let server = reach(&pool).await;
            let is_served = self.acquired.load(Ordering::Relaxed) != acquired;
            if matches!(server, Server::Full) && self.share(&pool) {
                self.ended.send_replace(());
            } else if !matches!(server, Server::Reachable) && !is_served {
                was_away = true;
            } else if std::mem::take(&mut was_away) {
                self.ended.send_replace(());
            } else {
                // The pool is busy, not the server away: opens few connections beside the pool's own.
                sleep(BUSY_POOL_INTERVAL).await;
            }
        }
    }

    /// Returns whether calls wait. If not, clears the task, so that the next waiting call starts another one.
    fn is_awaited(&self) -> bool {
        let mut task = self.task.lock();
        let is_awaited = self.ended.receiver_count() > 0;
        if !is_awaited {
            *task = None;
        }
        is_awaited
    }
}

/// The answer of a server to a new connection.
enum Server {
    Reachable,
    /// The pool would wait and try again.
    Away,
    /// The server has as many connections as it accepts.
    Full,
}

/// Opens a connection beside the pool. After an error that ends the pool's attempts, the server counts as reachable: the
/// calls see that error at once.
async fn reach<DB: Dialect>(pool: &Pool<DB>) -> Server {
    let options = pool.connect_options();
    match timeout(CONNECT_TIMEOUT, DB::Connection::connect_with(&options)).await {
        Ok(Ok(connection)) => {
            // The server accepted the connection, so an error of closing it does not matter.
            drop(connection.close().await);
            Server::Reachable
        }
        Ok(Err(error)) if is_full::<DB>(&error) => Server::Full,
        Ok(Err(sqlx::Error::Io(error))) if error.kind() == std::io::ErrorKind::ConnectionRefused => Server::Away,
        Ok(Err(sqlx::Error::Database(error))) if error.is_transient_in_connect_phase() => Server::Away,
        Ok(Err(_)) => Server::Reachable,
        Err(_) => Server::Away,
    }
}

/// Whether the server refused a connection because it has as many as it accepts.
fn is_full<DB: Dialect>(error: &sqlx::Error) -> bool {
    error.as_database_error().is_some_and(DB::is_full)
}

/// The pause between two attempts to connect. A pool that answers within this time needs no task.
const RECONNECT_INTERVAL: Duration = Duration::from_millis(100);

/// The pause between two attempts while the server accepts connections and the pool has none to spare.
const BUSY_POOL_INTERVAL: Duration = Duration::from_secs(1);

/// How long calls share the open connections after the server refused another one.
const FULL_SERVER_PAUSE: Duration = Duration::from_secs(10);

/// How often calls search for an open connection that is free.
const OPEN_CONNECTION_INTERVAL: Duration = Duration::from_millis(1);

/// The timeout of an attempt to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
