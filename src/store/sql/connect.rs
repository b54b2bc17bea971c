use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use parking_lot::Mutex;
use sqlx::pool::{PoolConnection, PoolOptions};
use sqlx::{Connection, Pool};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use super::dialect::Dialect;
use super::retry::{ErrorClass, Failure};
use super::store::SqlStore;
use crate::model::Error;
use crate::telemetry;

/// Whether a crash of the database can lose the latest grants.
///
/// Durability is a setting of connections, so you choose it for a pool of the store's own: see [`SqlStore::connect`].
/// Default: [`Asynchronous`](Self::Asynchronous).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Durability {
    /// Answers do not wait for the disk, so a crash can lose the latest grants.
    ///
    /// On PostgreSQL these are the grants of three times `wal_writer_delay`: 0.6 s by default. On SQLite these are the
    /// grants since the last checkpoint, and only if the host itself crashes. So after a crash, a bucket can grant at most
    /// its capacity once more, plus the tokens that were refilled in that time.
    #[default]
    Asynchronous,
    /// A crash loses no answer.
    ///
    /// On `MySQL` and `MariaDB` no connection can choose this. It holds only if the server has
    /// `innodb_flush_log_at_trx_commit = 1` and, with a binary log, `sync_binlog = 1`. Otherwise the store's first
    /// connection logs a warning through `tracing`, and `tollgate doctor` reports it.
    Synchronous,
}

impl<DB: Dialect> SqlStore<DB> {
    /// Creates a store with a small pool of its own: for hosts that use another driver, or whose limits need not be as
    /// durable as their data. The pool connects at the first request. On SQLite it creates a missing file, for this
    /// user alone (0600), and refuses an in-memory database: use [`MemoryStore`](crate::MemoryStore).
    ///
    /// On `MySQL` and `MariaDB` only an administrator sets the durability, for all connections
    /// (`innodb_flush_log_at_trx_commit`, `sync_binlog`). If you ask for [`Synchronous`](Durability::Synchronous) and
    /// the server is less durable, the store logs a warning.
    ///
    /// PgBouncer refuses the connection unless its `ignore_startup_parameters` lists `extra_float_digits` and `options`,
    /// and the error says so. With `options` ignored, the role's own setting holds: run `alter role … set
    /// synchronous_commit = off`.
    ///
    /// ```no_run
    /// use tollgate::{store::Durability, Limiter, PgStore};
    ///
    /// # async fn example() -> Result<(), tollgate::Error> {
    /// let store = PgStore::connect("postgres://app:secret@db/app", Durability::Asynchronous)?;
    /// let limiter = Limiter::new(store, "100/s")?;
    /// assert!(limiter.allow("user:42").await?.is_granted());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an error if the URL is not one of this database, if it names several hosts or no file, or outside a Tokio
    /// runtime.
    pub fn connect(url: &str, durability: Durability) -> Result<Self, Error> {
        let wrong = |error| Failure::new(ErrorClass::Unavailable, error).into_error(1, Duration::ZERO);
        // A SQLite file can have any name, even the URL of another database's server with its password.
        let scheme = url.split_once(':').map_or("", |(scheme, _)| scheme);
        if !DB::URL_SCHEMES.contains(&scheme) {
            let expected = format!("the URL of a {} database begins with {}:", DB::NAME, DB::URL_SCHEMES.join(": or "));
            return Err(wrong(sqlx::Error::Configuration(expected.into())));
        }
        if let Err(none) = tokio::runtime::Handle::try_current() {
            return Err(wrong(sqlx::Error::Configuration(none.into())));
        }
        let options = DB::connect_options(url, durability).map_err(wrong)?;
        let looks = Arc::new(AtomicBool::new(durability == Durability::Synchronous));
        let pool: Pool<DB> = PoolOptions::new()
            .max_connections(MAX_CONNECTIONS)
            // Without sqlx's maintenance task, which can spin forever in sqlx 0.9.0 (its issue 3645).
            .idle_timeout(None)
            .max_lifetime(None)
            // A ping before each call would cost each call a round trip.
            .test_before_acquire(false)
            .before_acquire(|connection: &mut DB::Connection, idle| {
                Box::pin(async move {
                    if idle.idle_for > PING_AFTER_IDLE {
                        connection.ping().await?;
                    }
                    Ok(idle.age < MAX_LIFETIME)
                })
            })
            .after_connect(move |connection: &mut DB::Connection, _| {
                let looks = Arc::clone(&looks);
                Box::pin(async move {
                    // A connection that cannot read the settings can still serve. If it cannot, the first call fails.
                    if looks.load(Ordering::Relaxed)
                        && let Ok(lacks) = DB::lacks_durability(connection).await
                        && looks.swap(false, Ordering::Relaxed)
                        && let Some(settings) = lacks
                    {
                        telemetry::less_durable(DB::URL_SCHEMES[0], &settings);
                    }
                    Ok(())
                })
            })
            .connect_lazy_with(options);
        Ok(Self::from(pool))
    }

    /// Returns the pool of the store.
    #[must_use]
    pub fn pool(&self) -> &Pool<DB> {
        &self.pool
    }
}

/// Rejects a URL with several hosts, which the driver would take for one name that does not exist.
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(super) fn require_one_host(url: &str) -> Result<(), sqlx::Error> {
    let (address, query) = url.split_once('?').unwrap_or((url, ""));
    let named = ["host=", "hostaddr=", "port="];
    let parameters = query.split('&').filter(|parameter| named.iter().any(|name| parameter.starts_with(name)));
    if std::iter::once(host(address))
        .chain(parameters)
        .any(|host| [",", "%2C", "%2c"].iter().any(|comma| host.contains(comma)))
    {
        let one = "the URL names several hosts: name one, such as a proxy or a DNS name that follows the primary";
        return Err(sqlx::Error::Configuration(one.into()));
    }
    Ok(())
}

/// The IPv6 address of a URL, without its brackets: sqlx 0.9.0 would resolve it with them, as a name.
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(super) fn ipv6_address(url: &str) -> Option<&str> {
    let (address, _) = host(url).strip_prefix('[')?.split_once(']')?;
    Some(address)
}

/// The hosts of a URL and their ports, as written.
#[cfg(any(feature = "mysql", feature = "postgres"))]
fn host(url: &str) -> &str {
    let (_, rest) = url.split_once("://").unwrap_or_default();
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    authority.rsplit_once('@').map_or(authority, |(_, host)| host)
}

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
    pub(super) async fn works_since<DB: Dialect>(&self, pool: &Pool<DB>, age: Duration) -> bool {
        let _one_at_a_time = self.0.watching.lock().await;
        let options = pool.connect_options();
        let asking = async {
            let mut connection = DB::Connection::connect_with(&options).await?;
            let works = DB::works_since(&mut connection, age).await;
            drop(connection.close().await);
            works
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

/// Enough for two concurrent calls, a few slow ones, and an operator's.
const MAX_CONNECTIONS: u32 = 8;

/// The pool replaces a connection of this age, so that it finds another server behind the same name.
const MAX_LIFETIME: Duration = Duration::from_mins(30);

/// The pool pings a connection that was idle for longer: it may have broken unnoticed.
const PING_AFTER_IDLE: Duration = Duration::from_secs(1);

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
