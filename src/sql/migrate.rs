use sqlx::Pool;

use super::dialect::Dialect;
use super::retry::{Class, Failure};
use crate::Error;
use crate::telemetry;

#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "sqlite")]
mod sqlite;

/// Brings the database to this crate's schema, and says which migrations that took: none if it was there.
///
/// The ledger is tollgate's own, so the host's migrations in the same database are left alone. Any number of
/// instances may start at once, and one that is killed half-way is finished by the next.
///
/// A database that a newer version of this crate has migrated is good as it is: migrations add, and change nothing that an
/// older version calls. So services with older versions start beside it, and go on.
///
/// Those who would rather have it all in the migrations of their own find the SQL in [`migrations`].
///
/// # Errors
///
/// [`Error::NewerSchema`] if a newer version of this crate has been here and took away what this one needs; or if the role
/// may not create tables, on MySQL and MariaDB is not the one that has made the routines there are, or the database cannot be
/// reached.
pub async fn migrate<DB: Migrate>(pool: &Pool<DB>) -> Result<Vec<Migration>, Error> {
    let applied = DB::applied(pool).await?;
    if pending::<DB>(&applied)?.is_empty() {
        if let Some(found) = newest(&applied).filter(|found| *found > known::<DB>()) {
            telemetry::newer(DB::URL_SCHEMES[0], found, known::<DB>());
        }
        return Ok(Vec::new());
    }
    let migrated = DB::migrate(pool).await?;
    for migration in &migrated {
        telemetry::migrated(DB::URL_SCHEMES[0], migration);
    }
    Ok(migrated)
}

/// The migrations that [`migrate`] would run now: a dry run, which changes nothing.
///
/// # Errors
///
/// As for [`migrate`].
pub async fn pending_migrations<DB: Migrate>(pool: &Pool<DB>) -> Result<Vec<Migration>, Error> {
    let applied = DB::applied(pool).await?;
    pending::<DB>(&applied)
}

/// Every migration of a database, in order: to print, or to copy into migrations of the host's own.
///
/// ```
/// # #[cfg(feature = "postgres")]
/// for migration in tollgate::migrations::<sqlx::Postgres>() {
///     println!("{}\n", migration.sql());
/// }
/// ```
#[must_use]
pub fn migrations<DB: Migrate>() -> &'static [Migration] {
    DB::MIGRATIONS
}

/// A step of the schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Migration {
    version: i64,
    name: &'static str,
    sql: &'static str,
    ledger: &'static str,
}

impl Migration {
    /// Its place, from 1.
    #[must_use]
    pub fn version(&self) -> i64 {
        self.version
    }

    /// What it is about.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The statements. On MySQL and MariaDB it is one, with semicolons of its own if it makes a routine.
    #[must_use]
    pub fn sql(&self) -> &'static str {
        self.sql
    }

    /// The statement that enters it in the ledger, for those who run [`sql`](Self::sql) themselves: with it,
    /// [`migrate`] knows what is there.
    #[must_use]
    pub fn record(&self) -> String {
        let Self { version, name, ledger, .. } = self;
        format!("insert into {ledger} (version, name) values ({version}, '{name}')")
    }
}

/// A database that this crate has migrations for.
pub trait Migrate: Dialect {
    #[doc(hidden)]
    const MIGRATIONS: &'static [Migration];

    /// The versions in the ledger; none if there is no ledger.
    #[doc(hidden)]
    fn applied(pool: &Pool<Self>) -> impl Future<Output = Result<Vec<i64>, Error>> + Send;

    /// Runs what is pending once nobody else does.
    #[doc(hidden)]
    fn migrate(pool: &Pool<Self>) -> impl Future<Output = Result<Vec<Migration>, Error>> + Send;
}

/// What is not in the ledger. If that is something, and the ledger has newer ones, they took it away: it is not for this
/// version to bring it back.
fn pending<DB: Migrate>(applied: &[i64]) -> Result<Vec<Migration>, Error> {
    let is_pending = |migration: &&Migration| !applied.contains(&migration.version);
    let pending: Vec<Migration> = DB::MIGRATIONS.iter().filter(is_pending).copied().collect();
    match newest(applied) {
        Some(found) if found > known::<DB>() && !pending.is_empty() => {
            Err(Error::NewerSchema { found, known: known::<DB>() })
        }
        _ => Ok(pending),
    }
}

fn newest(applied: &[i64]) -> Option<i64> {
    applied.iter().copied().max()
}

fn known<DB: Migrate>() -> i64 {
    DB::MIGRATIONS.iter().map(Migration::version).max().unwrap_or(0)
}

fn failed<DB: Dialect>(error: sqlx::Error) -> Error {
    let class = match &error {
        sqlx::Error::Database(error) if DB::classify(error.as_ref()) == Class::NotPermitted => Class::NotPermitted,
        sqlx::Error::Database(_) => Class::Refused,
        _ => Class::Unavailable,
    };
    Failure::new(class, error).into_error(1, std::time::Duration::ZERO)
}

/// The files of a dialect's directory, numbered in the order in which they are named here.
macro_rules! files {
    ($directory:literal, $ledger:literal, $($version:literal $name:literal),+ $(,)?) => {
        &[$(crate::sql::migrate::Migration {
            version: $version,
            name: $name,
            sql: include_str!(concat!("../../../migrations/", $directory, "/", $name, ".sql")),
            ledger: $ledger,
        }),+]
    };
}
use files;
