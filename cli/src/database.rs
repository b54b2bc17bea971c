//! Connections to the database of each engine. No message shows the password.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;
use std::time::Duration;

use sqlx::error::DatabaseError;
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection, MySqlDatabaseError};
use sqlx::pool::PoolOptions;
use sqlx::postgres::PgConnectOptions;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, Connection, MySql, PgPool, Pool, Postgres, Sqlite, Transaction};
use tokio::time::{sleep, timeout};
use tollgate::{
    SqlStore,
    store::{Durability, Migrate, Migration},
};

use crate::exit::{CliError, DATABASE, GRANT_HINT, NOT_PERMITTED};
use crate::redact::redact;

/// How to handle an SQLite file that does not exist.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Missing {
    Refuse,
    Make,
    /// Use an empty database in memory instead.
    Imagine,
}

/// A database engine of the CLI.
pub(crate) trait Engine: Migrate {
    /// An example of a URL.
    const EXAMPLE: &'static str;
    /// The hint if the database is unreachable.
    const UNREACHABLE: &'static str =
        "is the server up, and are host, port, user, password and database of the URL right?";

    /// The connection options, and the address without the password.
    fn options(url: &str, missing: Missing) -> anyhow::Result<(<Self::Connection as Connection>::Options, String)>;

    /// The exit code and the hint for a server that answers, and refuses the connection for a reason of its own.
    fn refusal(_: &dyn DatabaseError) -> Option<(u8, String)> {
        None
    }

    /// Migrates a database of Citus, and distributes the tables.
    fn migrate_citus(_: &Pool<Self>) -> impl Future<Output = anyhow::Result<Vec<Migration>>> + Send {
        let message = "Citus is an extension of PostgreSQL";
        std::future::ready(Err(CliError::arguments(message, "give the URL of its coordinator: postgres://…").into()))
    }

    /// Prepares a new connection.
    fn prepare(_: &mut Self::Connection) -> impl Future<Output = Result<(), sqlx::Error>> + Send {
        std::future::ready(Ok(()))
    }
}

impl Engine for Postgres {
    const EXAMPLE: &'static str = "postgres://app@localhost/app";

    fn options(url: &str, _: Missing) -> anyhow::Result<(PgConnectOptions, String)> {
        let options = SqlStore::<Self>::parse_url(url).map_err(|error| unreadable::<Self>(&error))?;
        let options = options.application_name("tollgate");
        let place = match options.get_socket() {
            Some(socket) => socket.display().to_string(),
            None => address(options.get_host(), options.get_port()),
        };
        let database = options.get_database().unwrap_or_else(|| options.get_username());
        let address = format!("{database} at {place} as {}", options.get_username());
        Ok((options, address))
    }

    fn refusal(error: &dyn DatabaseError) -> Option<(u8, String)> {
        Some(match &*error.code()? {
            "42501" => {
                (NOT_PERMITTED, format!("let the role connect: `grant connect on database … to …`; {GRANT_HINT}"))
            }
            "53300" => (DATABASE, "end sessions, or raise max_connections or the role's connection limit".to_owned()),
            "28P01" => (
                DATABASE,
                "correct the user or the password of the URL; it may have expired (`valid until`)".to_owned(),
            ),
            _ => return None,
        })
    }

    async fn migrate_citus(pool: &PgPool) -> anyhow::Result<Vec<Migration>> {
        Ok(tollgate::store::migrate_citus(pool).await?)
    }
}

impl Engine for MySql {
    const EXAMPLE: &'static str = "mysql://app@localhost/app";

    fn options(url: &str, _: Missing) -> anyhow::Result<(MySqlConnectOptions, String)> {
        let options = SqlStore::<Self>::parse_url(url).map_err(|error| unreadable::<Self>(&error))?;
        let Some(database) = options.get_database().filter(|name| !name.is_empty()) else {
            return Err(
                CliError::arguments("the URL names no database", format!("write it like {}", Self::EXAMPLE)).into()
            );
        };
        let place = address(options.get_host(), options.get_port());
        let address = format!("{database} at {place} as {}", options.get_username());
        Ok((options, address))
    }

    fn refusal(error: &dyn DatabaseError) -> Option<(u8, String)> {
        Some(match error.try_downcast_ref::<MySqlDatabaseError>()?.number() {
            NO_DATABASE_PRIVILEGE => (NOT_PERMITTED, GRANT_HINT.to_owned()),
            TOO_MANY_CONNECTIONS | TOO_MANY_USER_CONNECTIONS | USER_LIMIT => {
                let hint = "end sessions, or raise max_connections, max_user_connections or the account's own limit";
                (DATABASE, hint.to_owned())
            }
            EXPIRED_PASSWORD | EXPIRED_PASSWORD_LOGIN => {
                (DATABASE, "set a new password: `alter user … identified by …`".to_owned())
            }
            _ => return None,
        })
    }

    /// Sets a lock timeout below the store's deadline, so that no statement waits for a lock after its command has ended.
    /// The second statement fails here if the password has expired, when MariaDB accepts the first.
    async fn prepare(connection: &mut MySqlConnection) -> Result<(), sqlx::Error> {
        sqlx::raw_sql("set innodb_lock_wait_timeout = 4; do 0").execute(connection).await.map(drop)
    }
}

impl Engine for Sqlite {
    const EXAMPLE: &'static str = "sqlite:app.db";
    const UNREACHABLE: &'static str = "let this user read and write the file and its directory";

    fn options(url: &str, missing: Missing) -> anyhow::Result<(SqliteConnectOptions, String)> {
        let options = SqlStore::<Self>::parse_url(url).map_err(|error| unreadable::<Self>(&error))?;
        let file = options.get_filename();
        if url.contains(":memory:") || url.contains("mode=memory") || file.as_os_str().is_empty() {
            let hint = format!("name a file: {}", Self::EXAMPLE);
            return Err(CliError::arguments("an in-memory database ends with this command", hint).into());
        }
        let address = file.display().to_string();
        if file.exists() {
            if !is_database(file).map_err(|error| unreachable::<Self>(&address, &error.to_string()))? {
                let hint = format!("name another file: {}", Self::EXAMPLE);
                return Err(CliError::database(format!("{address} is not a database of SQLite's"), hint).into());
            }
            // SQLite creates no files beside an immutable one.
            #[cfg(unix)]
            if !query_parameters(url).any(|parameter| ["immutable=1", "immutable=true"].contains(&parameter)) {
                crate::sidecars::require_shared(file)?;
            }
            return Ok((options.create_if_missing(false), address));
        }
        if missing == Missing::Refuse {
            let message = format!("there is no file {address}");
            return Err(CliError::database(message, "`tollgate migrate` makes it, with its tables").into());
        }
        directory_exists(file)?;
        let options = match missing {
            Missing::Make => SqlStore::<Self>::connect_options(url, Durability::Synchronous)?,
            Missing::Imagine | Missing::Refuse => SqliteConnectOptions::new(),
        };
        Ok((options, address))
    }
}

fn query_parameters(url: &str) -> impl Iterator<Item = &str> {
    url.split_once('?').map_or("", |(_, query)| query).split('&')
}

/// A server's address as in a URL.
fn address(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// Whether a file is an SQLite database, or empty: a database without tables.
fn is_database(file: &Path) -> io::Result<bool> {
    let mut head = Vec::new();
    File::open(file)?.take(16).read_to_end(&mut head)?;
    Ok(head.is_empty() || head == b"SQLite format 3\0")
}

fn directory_exists(file: &Path) -> Result<(), CliError> {
    match file.parent().filter(|directory| !directory.as_os_str().is_empty()) {
        Some(directory) if !directory.is_dir() => {
            let message = format!("there is no directory {}", directory.display());
            Err(CliError::database(message, format!("mkdir -p {}", directory.display())))
        }
        _ => Ok(()),
    }
}

fn unreadable<DB: Engine>(error: &sqlx::Error) -> CliError {
    let cause = redact(&error.to_string());
    CliError::arguments(
        format!("invalid URL of a {} database: {cause}", DB::NAME),
        format!("write it like {}", DB::EXAMPLE),
    )
}

/// Opens a store with a few connections. Commits keep the server's durability, because the CLI changes configuration.
pub(crate) async fn open<DB: Engine>(url: &str, missing: Missing) -> anyhow::Result<SqlStore<DB>> {
    let (options, address) = DB::options(url, missing)?;
    // Disables the maintenance task of the pool, which may spin forever in sqlx 0.9.0 (its issue 3645).
    let pool: PoolOptions<DB> = PoolOptions::new().idle_timeout(None).max_lifetime(None);
    let pool = pool.after_connect(|connection, _| Box::pin(DB::prepare(connection)));
    let pool =
        pool.max_connections(MAX_CONNECTIONS).acquire_timeout(CONNECT_TIMEOUT).connect_lazy_with(options.clone());
    // The pool retries without reporting the cause, so a separate connection finds it.
    let diagnosis = async {
        sleep(CLOSE_TIMEOUT).await;
        let prepared = async { DB::prepare(&mut options.connect().await?).await };
        match prepared.await {
            Ok(()) => std::future::pending().await,
            Err(error) => error,
        }
    };
    let connected = tokio::select! {
        biased;
        connected = pool.acquire() => connected,
        error = diagnosis => Err(error),
    };
    connected.map(drop).map_err(|error| match error {
        sqlx::Error::PoolTimedOut => unreachable::<DB>(&address, &format!("no answer within {CONNECT_TIMEOUT:?}")),
        // Omits the source lines that the server adds.
        sqlx::Error::Database(error) => match DB::refusal(&*error) {
            Some((code, hint)) => CliError { code, hint, ..unreachable::<DB>(&address, error.message()) },
            None => unreachable::<DB>(&address, error.message()),
        },
        error => unreachable::<DB>(&address, &error.to_string()),
    })?;
    // Waits for the idle connection, so that the first call does not connect again.
    let _ = timeout(CLOSE_TIMEOUT, all_back(&pool)).await;
    Ok(SqlStore::from(pool))
}

/// Begins a transaction that resolves names in `pg_catalog` only, because `public` may offer operators and functions that match
/// better. Sets this per transaction, because a pooler would pass a session's setting on to other clients.
pub(crate) async fn begin(pool: &PgPool) -> Result<Transaction<'static, Postgres>, sqlx::Error> {
    let mut transaction = pool.begin().await?;
    sqlx::query("set local search_path = pg_catalog, pg_temp").execute(&mut *transaction).await?;
    Ok(transaction)
}

/// Closes idle connections during a long wait. The next call connects again.
pub(crate) async fn rest<DB: sqlx::Database>(pool: &Pool<DB>) {
    let resting = async {
        all_back(pool).await;
        while let Some(idle) = pool.try_acquire() {
            drop(idle.close().await);
        }
    };
    let _ = timeout(CLOSE_TIMEOUT, resting).await;
}

/// Waits until all connections are idle, because a task checks each connection before it returns to the pool.
async fn all_back<DB: sqlx::Database>(pool: &Pool<DB>) {
    while pool.num_idle() < pool.size() as usize {
        sleep(POLL_INTERVAL).await;
    }
}

/// Closes the connections, unless the server is too slow to do so.
pub(crate) async fn close<DB: sqlx::Database>(pool: &Pool<DB>) {
    let _ = timeout(CLOSE_TIMEOUT, pool.close()).await;
}

fn unreachable<DB: Engine>(address: &str, cause: &str) -> CliError {
    CliError::database(format!("cannot connect to {address}: {}", redact(cause)), DB::UNREACHABLE)
}

const TOO_MANY_CONNECTIONS: u16 = 1040;
const NO_DATABASE_PRIVILEGE: u16 = 1044;
const TOO_MANY_USER_CONNECTIONS: u16 = 1203;
const USER_LIMIT: u16 = 1226;
const EXPIRED_PASSWORD: u16 = 1820;
const EXPIRED_PASSWORD_LOGIN: u16 = 1862;

const MAX_CONNECTIONS: u32 = 4;
const POLL_INTERVAL: Duration = Duration::from_millis(1);
const CLOSE_TIMEOUT: Duration = Duration::from_millis(500);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
