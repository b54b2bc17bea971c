//! Migrations of SQLite, in one transaction for each run.

use std::collections::HashSet;

use sqlx::sqlite::{Sqlite, SqliteConnection};
use sqlx::{Connection, SqlitePool};

use super::{Ledger, Migrate, Migration, MigrationRunner, Scope, failed, files};
use crate::model::Error;

impl Migrate for Sqlite {}

impl MigrationRunner for Sqlite {
    const GRANTS: Option<&'static str> = None;

    const MIGRATIONS: &'static [Migration] = files!(
        "sqlite",
        "",
        "",
        1 "0001_tables",
        2 "0002_levels",
        3 "0003_operations",
    );

    async fn applied(pool: &SqlitePool) -> Result<Vec<i64>, Error> {
        let mut connection = pool.acquire().await.map_err(failed::<Self>)?;
        Ok(ledger(&mut connection).await.map_err(failed::<Self>)?.applied::<Self>())
    }

    /// Migrates in one transaction, which locks the database: a run that is killed leaves nothing.
    async fn migrate(pool: &SqlitePool, scope: Scope) -> Result<Vec<Migration>, Error> {
        let mut connection = pool.acquire().await.map_err(failed::<Self>)?;
        let mut transaction = connection.begin_with("begin immediate").await.map_err(failed::<Self>)?;
        let ledger = ledger(&mut transaction).await.map_err(failed::<Self>)?;
        let migrations = scope.of::<Self>(&ledger)?;
        encoded(&mut transaction).await?;
        for migration in &migrations {
            sqlx::raw_sql(migration.sql()).execute(&mut *transaction).await.map_err(failed::<Self>)?;
        }
        transaction.commit().await.map_err(failed::<Self>)?;
        Ok(migrations)
    }

    /// A file has no roles.
    async fn needs(_: &SqlitePool, _: &str) -> Result<Option<String>, sqlx::Error> {
        Ok(None)
    }
}

/// Rejects a database in UTF-16, where a text has other bytes than a key.
async fn encoded(connection: &mut SqliteConnection) -> Result<(), Error> {
    let encoding: String =
        sqlx::query_scalar("pragma encoding").fetch_one(connection).await.map_err(failed::<Sqlite>)?;
    if encoding != "UTF-8" {
        return Err(Error::other(std::io::Error::other(format!(
            "this file is encoded in {encoding}, and keys are UTF-8, as files are unless `pragma encoding` says otherwise: \
             give tollgate a file of its own"
        ))));
    }
    Ok(())
}

async fn ledger(connection: &mut SqliteConnection) -> Result<Ledger, sqlx::Error> {
    let names: Vec<String> = sqlx::query_scalar("select name from sqlite_schema").fetch_all(&mut *connection).await?;
    let names: HashSet<String> = names.into_iter().collect();
    if !names.contains("token_migrations") {
        return Ok(Ledger { versions: None, names });
    }
    let versions: Vec<i64> = sqlx::query_scalar("select version from token_migrations").fetch_all(connection).await?;
    Ok(Ledger { versions: Some(versions.into_iter().map(|version| (version, true)).collect()), names })
}
