//! Connections, the clock and error classes of SQLite.

use std::fs::OpenOptions;
use std::path::Path;
use std::sync::Arc;

use sqlx::error::DatabaseError;
use sqlx::sqlite::{Sqlite, SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqliteSynchronous};
use sqlx::{Connection, SqlStr, SqlitePool, Transaction};

use super::dialect::{Dialect, Engine};
use super::retry::ErrorClass;
use super::settings::{Durability, Isolation};
use super::store::SqlStore;
use crate::clock::{Clock, SystemClock};

mod adjust;
mod admin;
mod denials;
mod json;
mod lock;
mod rows;
mod rules;
mod sweep;
mod take;
mod usage;
mod windows;

/// Buckets in a SQLite file, shared by the processes of one host, at the host's clock.
pub type SqliteStore = SqlStore<Sqlite>;

impl SqliteStore {
    /// Creates a store on the caller's clock: for tests.
    pub fn with_clock(pool: SqlitePool, clock: impl Clock) -> Self {
        Self::with(pool, HostClock { clock: Arc::new(clock), is_the_hosts: false })
    }
}

/// Creates a missing file for this user alone: SQLite would let other users read the file. The journals get the same
/// permissions. SQLite reports a file that cannot be created.
fn create_private(file: &Path) {
    let mut file = file.to_owned();
    // A symbolic link can name a missing file, which SQLite would create.
    for _ in 0..MAX_LINKS {
        let Ok(target) = std::fs::read_link(&file) else { break };
        file = file.parent().unwrap_or(&file).join(target);
    }
    let mut options = OpenOptions::new();
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let _ = options.write(true).create_new(true).open(file);
}

/// Whether a URL names a database without a file.
fn is_in_memory(parameters: &[&str], file: &Path) -> bool {
    let name = file.to_string_lossy();
    let has_no_file = name.is_empty() || name == ":memory:" || name.starts_with("file:sqlx-in-memory-");
    has_no_file || ["mode=memory", "vfs=memdb"].iter().any(|parameter| parameters.contains(parameter))
}

impl Dialect for Sqlite {}

impl Engine for Sqlite {
    const ONE_STATEMENT: bool = false;
    const HAS_SERVER: bool = false;
    const CONCURRENT_CALLS: usize = 1;

    fn begin(_: Isolation) -> Option<SqlStr> {
        None
    }

    /// Accepts `sqlite:` and a file's name, or a URI of SQLite: `sqlite:file:app.db`.
    fn parse_url(url: &str) -> Result<SqliteConnectOptions, sqlx::Error> {
        let name = url.strip_prefix("sqlite:").unwrap_or(url);
        let Some(uri) = name.strip_prefix("//").unwrap_or(name).strip_prefix("file:") else { return url.parse() };
        let (uri, _) = uri.split_once('#').unwrap_or((uri, ""));
        let path = match uri.strip_prefix("//") {
            None => uri,
            Some(rest) => {
                let path = rest.strip_prefix("localhost").unwrap_or(rest);
                if !path.starts_with('/') {
                    let wrong = "a file URI names no host: write file:app.db or file:///directory/app.db";
                    return Err(sqlx::Error::Configuration(wrong.into()));
                }
                path
            }
        };
        format!("sqlite://{path}").parse()
    }

    fn connect_options(url: &str, durability: Durability) -> Result<SqliteConnectOptions, sqlx::Error> {
        let synchronous = match durability {
            Durability::Asynchronous => SqliteSynchronous::Normal,
            Durability::Synchronous => SqliteSynchronous::Full,
        };
        let options = Self::parse_url(url)?;
        let (_, query) = url.split_once('?').unwrap_or((url, ""));
        let parameters: Vec<&str> = query.split(['&', '#']).collect();
        if is_in_memory(&parameters, options.get_filename()) {
            let lost = "an in-memory database loses its buckets with a connection: use MemoryStore, or name a file";
            return Err(sqlx::Error::Configuration(lost.into()));
        }
        if !parameters.contains(&"mode=ro") {
            create_private(options.get_filename());
        }
        Ok(options
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(synchronous)
            .pragma("journal_size_limit", MAX_IDLE_WAL))
    }

    fn file(options: &SqliteConnectOptions) -> Option<&Path> {
        Some(options.get_filename())
    }

    fn classify(error: &dyn DatabaseError) -> ErrorClass {
        // Extended result codes carry the primary one in their lowest byte.
        match error.code().and_then(|code| code.parse::<i32>().ok()).map(|code| code & 0xff) {
            Some(SQLITE_BUSY | SQLITE_LOCKED) => ErrorClass::RolledBack,
            Some(SQLITE_ERROR) if error.message().contains("no such table") => ErrorClass::NotMigrated,
            Some(SQLITE_READONLY) => ErrorClass::NotPermitted,
            Some(SQLITE_IOERR) => ErrorClass::Unknown,
            _ => ErrorClass::Refused,
        }
    }

    async fn clean_up(_: &mut SqliteConnection) -> Result<(), sqlx::Error> {
        Ok(())
    }
}

/// The clock that decides in a SQLite file.
#[derive(Clone)]
pub struct HostClock {
    clock: Arc<dyn Clock>,
    /// Whether this is the host's clock.
    is_the_hosts: bool,
}

impl HostClock {
    fn now(&self) -> i64 {
        self.clock.now()
    }
}

impl Default for HostClock {
    fn default() -> Self {
        Self { clock: Arc::new(SystemClock), is_the_hosts: true }
    }
}

impl std::fmt::Debug for HostClock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HostClock")
    }
}

/// Begins a transaction that locks the database at once, also in the caller's transaction: see [`lock_database`](lock).
async fn begin(connection: &mut SqliteConnection) -> Result<Transaction<'_, Sqlite>, sqlx::Error> {
    if connection.is_in_transaction() {
        let mut nested = connection.begin().await?;
        sqlx::query(lock::lock_database!()).execute(&mut *nested).await?;
        Ok(nested)
    } else {
        connection.begin_with("begin immediate").await
    }
}

/// To how many bytes the WAL shrinks after a long read let it grow: twice the size at which SQLite copies it to the file.
const MAX_IDLE_WAL: &str = "8388608";

/// More links than a system follows.
const MAX_LINKS: usize = 40;

const SQLITE_ERROR: i32 = 1;
const SQLITE_BUSY: i32 = 5;
const SQLITE_LOCKED: i32 = 6;
const SQLITE_READONLY: i32 = 8;
const SQLITE_IOERR: i32 = 10;
