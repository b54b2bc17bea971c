//! The store's own small pool, and the checks of its URL.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sqlx::pool::PoolOptions;
use sqlx::{Connection, Pool};

use super::dialect::Dialect;
use super::endpoints::{ConnectOptions, Endpoints};
use super::retry::{ErrorClass, Failure};
use super::settings::Durability;
use super::store::SqlStore;
use crate::model::Error;
use crate::telemetry;

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
        Ok(Self::from(own_pool(checked_options::<DB>(url, durability)?, durability)))
    }

    /// Creates a store as [`connect`](Self::connect) does, whose connections get their options from a function: for passwords and
    /// tokens that rotate.
    ///
    /// The store calls the function before it connects, and at most ten times a second. So it must return at once, without a
    /// request of its own: have a task of yours renew a token. After a change of the password, open connections stay, and new ones
    /// use the new password.
    ///
    /// ```no_run
    /// use tollgate::{store::Durability, Limiter, PgStore};
    ///
    /// # async fn example() -> Result<(), tollgate::Error> {
    /// let durability = Durability::Synchronous;
    /// let options = PgStore::connect_options("postgres://app@db/app", durability).map_err(tollgate::Error::other)?;
    /// let store = PgStore::connect_with(
    ///     move || {
    ///         let password = std::fs::read_to_string("/run/secrets/database")?;
    ///         Ok(options.clone().password(password.trim()))
    ///     },
    ///     durability,
    /// )?;
    /// let limiter = Limiter::new(store, "100/s")?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an error if the function does, or outside a Tokio runtime. Later errors of the function are those of calls:
    /// [`Error::Unavailable`].
    pub fn connect_with<F>(options: F, durability: Durability) -> Result<Self, Error>
    where
        F: Fn() -> Result<ConnectOptions<DB>, sqlx::Error> + Send + Sync + 'static,
    {
        let wrong = |error| Failure::new(ErrorClass::Unavailable, error).into_error(1, Duration::ZERO);
        tokio::runtime::Handle::try_current().map_err(|none| wrong(sqlx::Error::Configuration(none.into())))?;
        let pool = own_pool(options().map_err(wrong)?, durability);
        Ok(Self::from(pool).with_endpoints(Endpoints::supplied(Box::new(options))))
    }

    /// Sets how many connections the pool of a store that [`connect`](Self::connect) created opens at most. Default: 8. Give it at least
    /// 2, because a locked bucket occupies one.
    ///
    /// Opens a new pool with the options of the store's, and does not share the connections of a pool of your own.
    ///
    /// ```no_run
    /// use tollgate::{store::Durability, PgStore};
    ///
    /// # fn example() -> Result<(), tollgate::Error> {
    /// let store = PgStore::connect("postgres://app:secret@db/app", Durability::Synchronous)?.max_connections(2);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn max_connections(mut self, connections: u32) -> Self {
        let options = self.pool.options().clone().max_connections(connections.max(1));
        self.pool = options.connect_lazy_with((*self.pool.connect_options()).clone());
        self
    }

    /// Parses a URL as [`connect`](Self::connect) does: for a pool of your own. Logs no value of the URL.
    ///
    /// # Errors
    ///
    /// Returns an error if the URL is not valid, or if it names several hosts.
    pub fn parse_url(url: &str) -> Result<<DB::Connection as Connection>::Options, sqlx::Error> {
        DB::parse_url(url)
    }

    /// Returns the options with which [`connect`](Self::connect) connects: for a pool of your own. On SQLite it creates a
    /// missing file.
    ///
    /// # Errors
    ///
    /// Returns an error if the URL is not valid, or if it names several hosts or no file.
    pub fn connect_options(
        url: &str,
        durability: Durability,
    ) -> Result<<DB::Connection as Connection>::Options, sqlx::Error> {
        DB::connect_options(url, durability)
    }

    /// Returns the pool of the store.
    #[must_use]
    pub fn pool(&self) -> &Pool<DB> {
        &self.pool
    }
}

#[cfg(feature = "postgres")]
impl SqlStore<sqlx::Postgres> {
    /// Creates a store as [`connect`](Self::connect) does, on several nodes of a database that Citus
    /// [distributes](Self::distributed). Each new connection goes to the next node, with 8 connections in all.
    ///
    /// While a node is away, the store connects to the others.
    ///
    /// ```no_run
    /// use tollgate::{store::Durability, Limiter, PgStore};
    ///
    /// # async fn example() -> Result<(), tollgate::Error> {
    /// let nodes = ["postgres://app@node1/app", "postgres://app@node2/app"];
    /// let store = PgStore::connect_nodes(&nodes, Durability::Synchronous)?;
    /// let limiter = Limiter::new(store, "100/s")?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`connect`](Self::connect). Also if there is no URL.
    pub fn connect_nodes(urls: &[&str], durability: Durability) -> Result<Self, Error> {
        let nodes = urls.iter().map(|url| checked_options::<sqlx::Postgres>(url, durability));
        let nodes: Vec<_> = nodes.collect::<Result<_, _>>()?;
        let Some(first) = nodes.first() else {
            return Err(Error::Unavailable(Arc::new(sqlx::Error::Configuration("the URL of no node".into()))));
        };
        let pool = own_pool(first.clone(), durability);
        Ok(Self::from(pool).distributed().with_endpoints(Endpoints::nodes(nodes)))
    }
}

/// The options of a connection to a URL, which must be one of this database.
fn checked_options<DB: Dialect>(
    url: &str,
    durability: Durability,
) -> Result<<DB::Connection as Connection>::Options, Error> {
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
    DB::connect_options(url, durability).map_err(wrong)
}

fn own_pool<DB: Dialect>(options: <DB::Connection as Connection>::Options, durability: Durability) -> Pool<DB> {
    let must_check = Arc::new(AtomicBool::new(durability == Durability::Synchronous));
    PoolOptions::new()
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
            let must_check = Arc::clone(&must_check);
            Box::pin(async move {
                // A connection that cannot read the settings can still serve. If it cannot, the first call fails.
                if must_check.load(Ordering::Relaxed)
                    && let Ok(lacks) = DB::lacks_durability(connection).await
                    && must_check.swap(false, Ordering::Relaxed)
                    && let Some(settings) = lacks
                {
                    telemetry::less_durable(DB::URL_SCHEMES[0], &settings);
                }
                Ok(())
            })
        })
        .connect_lazy_with(options)
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

/// Enough for two concurrent calls, a few slow ones, and an operator's.
const MAX_CONNECTIONS: u32 = 8;

/// The pool replaces a connection of this age, so that it finds another server behind the same name.
const MAX_LIFETIME: Duration = Duration::from_mins(30);

/// The pool pings a connection that was idle for longer: it may have broken unnoticed.
const PING_AFTER_IDLE: Duration = Duration::from_secs(1);
