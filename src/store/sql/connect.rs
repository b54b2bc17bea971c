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
use tokio::time::{sleep, timeout};

use super::dialect::Dialect;
use super::retry::{Class, Failure};
use super::store::SqlStore;
use crate::model::Error;
use crate::telemetry;

/// What a crash of the database may forget.
///
/// It belongs to connections, so it is chosen for a pool of the store's own: see [`SqlStore::connect`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Durability {
    /// Grants of the last moments: answers do not wait for the disk. On PostgreSQL those of three times its
    /// `wal_writer_delay`, 0.6 s if it is as usual; on SQLite those since its last checkpoint, and only if the host
    /// itself crashes. So a crash grants a bucket at most its capacity once more, and what came in that
    /// time.
    #[default]
    Asynchronous,
    /// Nothing that was answered. On `MySQL` and `MariaDB` this changes nothing, as no connection can choose it: it holds only
    /// if the server has `innodb_flush_log_at_trx_commit = 1` and, with a binary log, `sync_binlog = 1`. Where it has not, the
    /// store warns of it with its first connection, by an event of `tracing`; `tollgate doctor` says it as well.
    Synchronous,
}

impl<DB: Dialect> SqlStore<DB> {
    /// Buckets behind a small pool of the store's own, for hosts that use another driver, or whose limits need not be as
    /// durable as their data. It connects when it is first asked. On SQLite it makes a missing file, for this user alone (0600).
    ///
    /// `MySQL` and `MariaDB` let nobody but an administrator choose how durable they are, for all
    /// (`innodb_flush_log_at_trx_commit`, `sync_binlog`): there the [`Durability`] is the server's own, and one that is less than
    /// [`Synchronous`](Durability::Synchronous), if that was asked for, is warned of. PgBouncer refuses the
    /// connection unless `options` is among its `ignore_startup_parameters`, as the error says then, and then the role's own
    /// setting holds: say `alter role … set synchronous_commit = off`.
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
    /// If the URL is none of this database or names several hosts, or no Tokio runtime is there.
    pub fn connect(url: &str, durability: Durability) -> Result<Self, Error> {
        let wrong = |error| Failure::new(Class::Unavailable, error).into_error(1, Duration::ZERO);
        // A file of SQLite's may have any name, even that of another database's server with its password.
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
            .max_connections(CONNECTIONS)
            // Without the task that looks after them: that of sqlx 0.9.0 may spin for ever (its issue 3645).
            .idle_timeout(None)
            .max_lifetime(None)
            // A ping for each call would be a round trip for each call.
            .test_before_acquire(false)
            .before_acquire(|connection: &mut DB::Connection, idle| {
                Box::pin(async move {
                    if idle.idle_for > RESTED {
                        connection.ping().await?;
                    }
                    Ok(idle.age < LIFETIME)
                })
            })
            .after_connect(move |connection: &mut DB::Connection, _| {
                let looks = Arc::clone(&looks);
                Box::pin(async move {
                    // A connection that cannot tell is of use all the same, or shows it when it is asked for tokens.
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

    /// The pool that it asks through.
    #[must_use]
    pub fn pool(&self) -> &Pool<DB> {
        &self.pool
    }
}

/// Rejects a URL with several hosts, of which the driver would make one name that does not exist.
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

/// The IPv6 address of a URL, without its brackets: sqlx 0.9.0 looks it up with them, as a name.
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

/// Two calls under way, a few that take long, and an operator's.
const CONNECTIONS: u32 = 8;

/// Then a connection is replaced, so that another server behind the same name is found.
const LIFETIME: Duration = Duration::from_mins(30);

/// After so long, a connection may be broken without anybody having noticed.
const RESTED: Duration = Duration::from_secs(1);

/// Between two attempts to connect. A pool that answers within it is not looked at.
const PAUSE: Duration = Duration::from_millis(100);

/// Between two of them where the server accepts connections, and it is the pool that has none to spare.
const BUSY: Duration = Duration::from_secs(1);

/// How long an attempt may take.
const LONGEST: Duration = Duration::from_secs(1);
