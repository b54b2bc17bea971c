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
        4 "0004_usage",
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
        let outdated = migrations.iter().any(|migration| migration.version() == 1)
            && has_outdated_tables(&mut transaction).await.map_err(failed::<Self>)?;
        if outdated && !has_column(&mut transaction, "period_end").await.map_err(failed::<Self>)? {
            sqlx::raw_sql(ADD_PERIOD_END).execute(&mut *transaction).await.map_err(failed::<Self>)?;
        }
        let copies = if outdated { [SET_ASIDE, COPY_BACK] } else { ["", ""] };
        let files = migrations.iter().map(Migration::sql);
        for sql in std::iter::once(copies[0]).chain(files).chain(std::iter::once(copies[1])) {
            sqlx::raw_sql(sql).execute(&mut *transaction).await.map_err(failed::<Self>)?;
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

/// Whether the tables are those of a schema before the first release: without the columns of usage, or with checks that refuse
/// calendar periods. SQLite cannot change a check.
async fn has_outdated_tables(connection: &mut SqliteConnection) -> Result<bool, sqlx::Error> {
    Ok(has_column(connection, "id").await? && !has_column(connection, "recorded").await?)
}

/// Whether the table of buckets exists, and has a column.
async fn has_column(connection: &mut SqliteConnection, name: &str) -> Result<bool, sqlx::Error> {
    let found = "select exists (select * from pragma_table_info('token_buckets') where name = ?1)";
    sqlx::query_scalar(found).bind(name).fetch_one(connection).await
}

/// No bucket is under a calendar period yet.
const ADD_PERIOD_END: &str = "alter table token_buckets add column period_end integer";

/// Renames the outdated tables, without the views that name them.
const SET_ASIDE: &str = "
    drop view if exists token_bucket_levels;
    drop view if exists token_rules;
    drop view if exists token_sizes;
    drop trigger if exists token_bucket_begins;
    alter table token_buckets rename to token_buckets_before;
    alter table token_plans rename to token_plans_before;
    alter table token_overrides rename to token_overrides_before;";

/// Copies the rows into the tables that the first migration has created.
const COPY_BACK: &str = "
    insert into token_buckets (id, capacity, refill_seconds, refill, plan, provisioned, over_capacity, over_refill_ns, over_refill,
                               anchor, full_at, granted, max_granted_wait, period_end)
    select id, capacity, refill_seconds, refill, plan, provisioned, over_capacity, over_refill_ns, over_refill, anchor, full_at,
           granted, max_granted_wait, period_end
      from token_buckets_before;
    insert into token_plans (name, capacity, refill_seconds, refill, mode, mode_reason, mode_until)
    select name, capacity, refill_seconds, refill, mode, mode_reason, mode_until from token_plans_before;
    insert into token_overrides (id, capacity, refill_seconds, refill, mode, reason, expires_at)
    select id, capacity, refill_seconds, refill, mode, reason, expires_at from token_overrides_before;
    drop table token_buckets_before;
    drop table token_plans_before;
    drop table token_overrides_before;";

async fn ledger(connection: &mut SqliteConnection) -> Result<Ledger, sqlx::Error> {
    let names: Vec<String> = sqlx::query_scalar("select name from sqlite_schema").fetch_all(&mut *connection).await?;
    let names: HashSet<String> = names.into_iter().collect();
    if !names.contains("token_migrations") {
        return Ok(Ledger { versions: None, names });
    }
    let versions: Vec<i64> =
        sqlx::query_scalar("select version from token_migrations").fetch_all(&mut *connection).await?;
    let ledger = Ledger { versions: Some(versions.into_iter().map(|version| (version, true)).collect()), names };
    Ok(if has_outdated_tables(connection).await? { ledger.outdated() } else { ledger })
}
