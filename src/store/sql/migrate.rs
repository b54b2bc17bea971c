//! Migrations: runs the missing ones, repairs routines, and prints the SQL for other tools.

use std::collections::HashSet;
use std::sync::Arc;

use sqlx::Pool;

use super::dialect::Dialect;
use super::retry::{ErrorClass, Failure};
use crate::model::Error;
use crate::model::error::Cause;
use crate::telemetry;

#[cfg(feature = "postgres")]
pub(super) mod citus;
#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "sqlite")]
mod sqlite;

/// Brings the database to this crate's schema, and returns the migrations that it ran: none if the schema was there.
///
/// The ledger is tollgate's own, so `migrate` leaves the host's migrations in the same database alone. Any number of
/// instances can start at once, and the next one completes a run that was killed. Each instance waits for the others
/// for a minute at most, or for a shorter `lock_timeout` (on MySQL and MariaDB `lock_wait_timeout`) of its session.
///
/// A migration is complete if the ledger lists it and all objects that it creates exist. So `migrate` also completes a
/// database that was restored without its routines, views or triggers, or without the rows of the ledger. It keeps the
/// rows of every table.
///
/// A database that a newer version of this crate has migrated needs no change: migrations add, and change nothing that
/// an older version calls. So services with older versions start and keep running.
///
/// To run the SQL in migrations of your own, print it with [`migrations`].
///
/// # Errors
///
/// Returns [`Error::NewerSchema`] if a newer version of this crate has removed what this one needs. Returns
/// [`Error::Database`] if an object has the name of one that a migration creates, and the ledger does not list that
/// migration. Returns other errors if the role may not create tables, if on MySQL and MariaDB another account has
/// created the existing routines, or if the database cannot be reached.
pub async fn migrate<DB: Migrate>(pool: &Pool<DB>) -> Result<Vec<Migration>, Error> {
    let applied = DB::applied(pool).await?;
    if pending::<DB>(&applied)?.is_empty() {
        if let Some(found) = newest(&applied).filter(|found| *found > known::<DB>()) {
            telemetry::newer(DB::URL_SCHEMES[0], found, known::<DB>());
        }
        return Ok(Vec::new());
    }
    run(pool, Scope::Pending).await
}

/// Runs every migration again, and returns them. Replaces routines, views and triggers, with this role as their owner.
/// Tables keep their rows.
///
/// Repairs routines whose owner or definer is gone or lacks rights, and routines that were changed by hand. On MySQL
/// and MariaDB requests fail while their routine is replaced, and a routine loses its grants: run the grants again.
///
/// # Errors
///
/// As for [`migrate`].
pub async fn repair<DB: Migrate>(pool: &Pool<DB>) -> Result<Vec<Migration>, Error> {
    run(pool, Scope::All).await
}

async fn run<DB: Migrate>(pool: &Pool<DB>, scope: Scope) -> Result<Vec<Migration>, Error> {
    let migrated = match DB::migrate(pool, scope).await {
        Err(Error::NotPermitted(refusal)) => {
            return Err(Error::NotPermitted(match DB::needs(pool, &refusal.to_string()).await {
                Ok(Some(needs)) => Arc::new(NotPermitted { needs, refusal }),
                _ => refusal,
            }));
        }
        migrated => migrated?,
    };
    report::<DB>(&migrated);
    Ok(migrated)
}

fn report<DB: Migrate>(migrated: &[Migration]) {
    for migration in migrated {
        telemetry::migrated(DB::URL_SCHEMES[0], migration.version(), migration.name());
    }
}

/// Returns the migrations that [`migrate`] would run now, and changes nothing.
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
/// for migration in tollgate::store::migrations::<sqlx::Postgres>() {
///     println!("{}\n", migration.sql());
/// }
/// ```
#[must_use]
pub fn migrations<DB: Migrate>() -> &'static [Migration] {
    DB::MIGRATIONS
}

/// Returns the roles `tollgate_app` and `tollgate_operator` with their grants, as a script for psql, mysql or mariadb.
///
/// An administrator runs the script after each [`migrate`]. `None` on SQLite, which has no roles.
///
/// ```
/// # #[cfg(feature = "postgres")]
/// if let Some(script) = tollgate::store::grants::<sqlx::Postgres>() {
///     println!("{script}");
/// }
/// ```
#[must_use]
pub fn grants<DB: Migrate>() -> Option<&'static str> {
    DB::GRANTS
}

/// A step of the schema: a file of statements that can be run again. The last statement enters the step in the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Migration {
    version: i64,
    name: &'static str,
    sql: &'static str,
}

impl Migration {
    /// Returns the place of the migration, from 1.
    #[must_use]
    pub fn version(&self) -> i64 {
        self.version
    }

    /// Returns the name of the migration.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the statements, as one text. The last statement enters the migration in the ledger, where [`migrate`] looks it
    /// up.
    #[must_use]
    pub fn sql(&self) -> &'static str {
        self.sql
    }

    /// Returns the text in parts, each with a semicolon at its end: on MySQL and MariaDB one statement each, elsewhere one or
    /// more.
    ///
    /// For tools that would end a statement at a semicolon within a routine.
    pub fn statements(&self) -> impl Iterator<Item = &'static str> {
        let (sql, mut from, mut to) = (self.sql, 0, 0);
        sql.split_inclusive('\n').filter_map(move |line| {
            to += line.len();
            // Lines within a statement are indented, or do not end with a semicolon.
            let is_last = line.trim_end().ends_with(';') && !line.starts_with([' ', '-']);
            is_last.then(|| sql[std::mem::replace(&mut from, to)..to].trim())
        })
    }

    /// The names of the objects that the migration creates, without a schema.
    fn creates(&self) -> impl Iterator<Item = &'static str> {
        self.sql.lines().filter_map(created).map(|(_, name)| name)
    }
}

/// The kind and the name of what a line begins to create.
fn created(line: &str) -> Option<(&str, &str)> {
    const KINDS: [&str; 7] = ["function", "index", "procedure", "table", "trigger", "type", "view"];
    let mut words = line.trim_start().strip_prefix("create ")?.split([' ', '(']);
    let kind = words.find(|word| KINDS.contains(word))?;
    let name = words.find(|word| !["if", "not", "exists"].contains(word))?;
    Some((kind, name.rsplit('.').next().unwrap_or(name)))
}

/// A database for which this crate has migrations.
pub trait Migrate: Dialect + MigrationRunner {}

/// The migrations of one kind of database.
#[allow(unreachable_pub, reason = "it seals a public trait")]
pub trait MigrationRunner: Dialect {
    const MIGRATIONS: &'static [Migration];

    const GRANTS: Option<&'static str>;

    /// The versions in the ledger whose objects all exist. None if there is no ledger.
    fn applied(pool: &Pool<Self>) -> impl Future<Output = Result<Vec<i64>, Error>> + Send;

    /// Waits until no other session migrates, and runs migrations.
    fn migrate(pool: &Pool<Self>, scope: Scope) -> impl Future<Output = Result<Vec<Migration>, Error>> + Send;

    /// The statement by which an administrator lets this role migrate, after the server refused it with the message
    /// `refusal`.
    fn needs(pool: &Pool<Self>, refusal: &str) -> impl Future<Output = Result<Option<String>, sqlx::Error>> + Send;
}

/// Which migrations to run.
#[allow(unreachable_pub, reason = "the signatures of a public trait name it")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    Pending,
    All,
}

impl Scope {
    /// The migrations to run, or an error if another object has a name that they need.
    fn of<DB: Migrate>(self, ledger: &Ledger) -> Result<Vec<Migration>, Error> {
        let pending = pending::<DB>(&ledger.applied::<DB>())?;
        if self == Self::All {
            return Ok(DB::MIGRATIONS.to_vec());
        }
        match ledger.foreign::<DB>() {
            Some(name) => Err(Error::Database(Arc::new(Foreign { name }))),
            None => Ok(pending),
        }
    }
}

/// The migrations of a database: the versions in its ledger, if it has one, and the names of all objects. Each version
/// has a flag that tells whether its migration completed.
struct Ledger {
    versions: Option<Vec<(i64, bool)>>,
    names: HashSet<String>,
}

impl Ledger {
    /// The ledger of a schema before the first release, whose migrations all have to run again.
    fn outdated(self) -> Self {
        let begun = |versions: Vec<(i64, bool)>| versions.into_iter().map(|(version, _)| (version, false)).collect();
        Self { versions: self.versions.map(begun), ..self }
    }

    /// The versions that completed and whose objects all exist: a dump can leave out routines.
    fn applied<DB: Migrate>(&self) -> Vec<i64> {
        let has_run = self.versions.iter().flatten().filter(|(_, has_run)| *has_run).map(|(version, _)| *version);
        let is_whole = |migration: &Migration| migration.creates().all(|name| self.names.contains(name));
        let is_broken = |version: &i64| {
            DB::MIGRATIONS.iter().any(|migration| migration.version == *version && !is_whole(migration))
        };
        has_run.filter(|version| !is_broken(version)).collect()
    }

    /// A name that a migration creates and that exists, although no migration in the ledger creates it.
    fn foreign<DB: Migrate>(&self) -> Option<&'static str> {
        // A dump can leave out the ledger's rows.
        let has_begun = |migration: &&Migration| {
            let is_listed = |all: &Vec<(i64, bool)>| all.iter().any(|(version, _)| *version == migration.version);
            self.versions.as_ref().is_some_and(|all| all.is_empty() || is_listed(all))
        };
        let ours: HashSet<&str> = DB::MIGRATIONS.iter().filter(has_begun).flat_map(Migration::creates).collect();
        let mut all = DB::MIGRATIONS.iter().flat_map(Migration::creates);
        all.find(|name| self.names.contains(*name) && !ours.contains(name))
    }
}

/// An object in the place of one that a migration creates.
#[derive(Debug, thiserror::Error)]
#[error("{name} already exists, and is not in tollgate's ledger")]
struct Foreign {
    name: &'static str,
}

/// The server refused a migration; `needs` is what lets the role migrate.
#[derive(Debug, thiserror::Error)]
#[error("{needs}")]
struct NotPermitted {
    needs: String,
    #[source]
    refusal: Cause,
}

/// The migrations that are not in the ledger. If some are missing and the ledger has newer versions, those removed
/// them, and this version must not restore them.
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

/// The error of a wait for another session that migrates, with that session and the statement that ends it.
#[cfg(any(feature = "mysql", feature = "postgres"))]
fn locked_by(holder: Option<(String, String)>) -> Error {
    let (session, end) = holder.unwrap_or_else(|| ("another session".to_owned(), "end it".to_owned()));
    Error::other(std::io::Error::other(format!(
        "{session} has held the lock of migrations for too long: wait until it is done and repeat this, or end it: {end}"
    )))
}

/// The error of a database that cannot be migrated so. Nothing was changed.
#[cfg(feature = "postgres")]
fn refused(message: &'static str) -> Error {
    Error::Database(Arc::new(Refused(message)))
}

#[cfg(feature = "postgres")]
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Refused(&'static str);

fn failed<DB: Dialect>(error: sqlx::Error) -> Error {
    let class = match &error {
        sqlx::Error::Database(error) => match DB::classify(error.as_ref()) {
            class @ (ErrorClass::NotPermitted | ErrorClass::Locked) => class,
            _ => ErrorClass::Refused,
        },
        _ => ErrorClass::Unavailable,
    };
    Failure::new(class, error).into_error(1, std::time::Duration::ZERO)
}

/// The files of a dialect's directory, each between two statements, with their versions.
macro_rules! files {
    ($directory:literal, $before:literal, $after:literal, $($version:literal $name:literal),+ $(,)?) => {
        &[$(crate::store::sql::migrate::Migration {
            version: $version,
            name: $name,
            sql: concat!($before, include_str!(concat!("../../../../migrations/", $directory, "/", $name, ".sql")), $after),
        }),+]
    };
}
use files;
